"""Inputs of the emulated gemm by their kinds, and errors of its results, for `scripts/bench/emulated`."""

from __future__ import annotations

from typing import Any


def drawn(cp: Any, kind: str, m: int, n: int, k: int, seed: int = 1) -> tuple[Any, Any]:
    """A (m x k) and B (k x n) of a kind of the contract."""
    rng = cp.random.RandomState(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=cp.float32)

    a, b = normal(m, k), normal(k, n)
    name, _, value = kind.partition(":")
    if name in ("uniform",):
        a, b = rng.random_sample((m, k), dtype=cp.float32), rng.random_sample((k, n), dtype=cp.float32)
    elif name == "positive":
        a, b = cp.abs(a), cp.abs(b)
    elif name == "lognormal":
        a, b = (cp.exp(float(value) * each) * cp.sign(normal(*each.shape)) for each in (a, b))
    elif name == "rows":
        most = int(value)
        a *= (2.0 ** rng.randint(-most, most + 1, (m, 1))).astype(cp.float32)
    elif name == "columns":
        most = int(value)
        b *= (2.0 ** rng.randint(-most, most + 1, (1, n))).astype(cp.float32)
    elif name == "subnormal":
        a = rng.randint(1, 1 << 23, (m, k)).astype(cp.int32).view(cp.float32)  # CuPy's own casts flush them
    elif name == "largest":
        a, b = a * cp.float32(5e37), b * cp.float32(1e-3)
    elif name == "scattered":
        a.reshape(-1)[::97] *= cp.float32(value)
        b.reshape(-1)[::97] *= cp.float32(value)
    elif name in ("outlier", "outlier_zeros"):
        a[:, ::97] *= cp.float32(value)
        if name == "outlier_zeros":
            b[::97] = 0
    elif name == "integers":
        most = int(value)
        a, b = (rng.randint(-most, most + 1, each.shape).astype(cp.float32) for each in (a, b))
    elif name == "relu":
        a = cp.maximum(a, 0)
    elif name == "identity":
        a[:] = 0
        a[cp.arange(min(m, k)), cp.arange(min(m, k))] = 1
    elif name == "zeros":
        a[:] = 0
    elif name == "empty":
        a[::3], b[:, ::5] = 0, 0
    elif name in ("inf", "nan"):
        a[m // 2, k // 3] = cp.inf if name == "inf" else cp.nan
    return a.astype(cp.float32), b.astype(cp.float32)


def stored(cp: Any, a: Any, b: Any, layout: str) -> tuple[Any, Any]:
    """Operands as a layout stores them."""
    return (
        cp.ascontiguousarray(each.T if way == "t" else each) for each, way in zip((a, b), layout, strict=True)
    )


def errors(cp: Any, c: Any, exact: Any, scale: Any) -> tuple[float, float]:
    """rms over the reference's, and the largest over sum |a||b|."""
    off = c.astype(cp.float64) - exact
    largest = float((cp.abs(off) / cp.where(scale > 0, scale, 1)).max())
    return float(cp.linalg.norm(off) / max(float(cp.linalg.norm(exact)), 1e-300)), largest
