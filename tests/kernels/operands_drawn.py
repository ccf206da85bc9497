"""Operands of the kinds that the contract of emulated products names."""

import numpy as np

Array = np.ndarray
#: Low parts are scaled by 2 to this; so many rows of B share a factor.
LOW_SHIFT, SHARE = 11, 8


def drawn(kind: str, m: int, n: int, k: int, seed: int = 3) -> tuple[Array, Array]:
    """Operands of a kind that the contract names."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    name, _, value = kind.partition(":")
    if name == "uniform":
        a, b = rng.random((m, k)), rng.random((k, n))
    elif name == "positive":
        a, b = np.abs(a), np.abs(b)
    elif name == "lognormal":
        a, b = (np.exp(float(value) * x) * np.sign(rng.standard_normal(x.shape)) for x in (a, b))
    elif name == "rows":
        a *= 2.0 ** rng.integers(-60, 61, (m, 1))
    elif name == "subnormal":
        a *= 1e-40
    elif name == "largest":
        a, b = a * 5e37, b * 1e-3
    elif name in ("outlier", "outlier_zeros"):
        a[:, ::37] *= float(value)
        if name == "outlier_zeros":
            b[::37] = 0
    elif name == "integers":
        a, b = (rng.integers(-int(value), int(value) + 1, x.shape).astype(float) for x in (a, b))
    elif name == "relu":
        a = np.maximum(a, 0)
    elif name == "zeros":
        a[:] = 0
    elif name == "empty":
        a[::3], b[:, ::5] = 0, 0
    elif name == "identity":
        a = np.eye(m, k)
    elif name in ("inf", "nan"):
        a[m // 2, k // 3] = np.inf if name == "inf" else np.nan
    return a.astype(np.float32), b.astype(np.float32)
