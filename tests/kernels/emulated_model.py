"""The emulated gemm in NumPy: how operands are split, and how Hopper's tensor cores sum.

wgmma aligns sixteen products and the running sum to the largest exponent, keeps 25 bits of each and cuts off
the rest; the sum is cut off at FP32's 24 bits. Errors of this model and of an H200 agree within a few percent.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray
TOP, LOW_SHIFT, SHARE = 15, 11, 8
#: From here on, relative to its power of two, FP16 rounds the largest up to infinity.
INFINITE = 65520 / 2.0**TOP
#: Scaled elements below this, but zeros, ask for low parts that are scaled up.
TINY = 2.0**-5


def half(x: Array) -> Array:
    """Rounded to FP16."""
    return x.astype(np.float16).astype(np.float64)


def cut(x: Array, bits: int) -> Array:
    """Toward zero, to that many significant bits."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def split(x: Array, share: int) -> tuple[Array, Array, Array, Array]:
    """High parts, low parts, factors and shifts of a chunk: rows x terms, `share` rows with one factor."""
    rows, terms = x.shape
    groups = x.reshape(-1, share * terms)
    top = np.abs(groups).max(1)
    fraction, exponent = np.frexp(np.where(top > 0, top, 0.5))
    exponent = exponent - 1 + (2 * fraction >= INFINITE)
    scale = 2.0 ** np.minimum(TOP - exponent, 126)
    scaled = groups * scale[:, None]
    shifted = ((scaled != 0) & (np.abs(scaled) < TINY)).any(1)
    shift = np.where(shifted, 2.0**LOW_SHIFT, 1.0)
    high = half(scaled)
    low = half((scaled - high) * shift[:, None])
    repeated = (np.repeat(each, share) for each in (np.where(top > 0, 1 / scale, 0), shift))
    return high.reshape(rows, terms), low.reshape(rows, terms), *repeated


def wgmma(total: Array, a: Array, b: Array) -> Array:
    """total + a @ b.T over sixteen terms, as the tensor cores round."""
    terms = np.concatenate([a[:, None, :] * b[None, :, :], total[:, :, None]], 2)
    quantum = np.ldexp(1.0, np.frexp(np.abs(terms).max(2))[1] - 25)[:, :, None]
    return cut((np.trunc(terms / quantum) * quantum).sum(2), 24)


def sums(total: Array, a: Array, b: Array) -> Array:
    """All terms of a chunk."""
    for k in range(0, a.shape[1], 16):
        total = wgmma(total, a[:, k : k + 16], b[:, k : k + 16])
    return total


def emulated(a: Array, b: Array, chunk: int = 64, compensated: bool = False) -> Array:
    """a @ b as the kernel computes it; a is m x k, b is k x n, n a multiple of eight."""
    total = lost = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], chunk):
        left, right = (x[:, start : start + chunk].astype(np.float64) for x in (a, b.T))
        missing = ((0, 0), (0, chunk - left.shape[1]))
        high_a, low_a, factor_a, shift_a = split(np.pad(left, missing), 1)
        high_b, low_b, factor_b, shift_b = split(np.pad(right, missing), SHARE)
        t = np.zeros(total.shape)
        if shift_a.max() == shift_b.max() == 1:
            for k in range(0, chunk, 16):
                now = slice(k, k + 16)
                t = wgmma(t, low_a[:, now], high_b[:, now])
            t = sums(t, high_a, low_b)
        else:
            t = sums(t, high_a, low_b) / shift_b * shift_a[:, None]
            t = sums(t, low_a, high_b) / shift_a[:, None]
        t = sums(t, high_a, high_b)
        term = (t * (factor_a[:, None] * factor_b) - lost).astype(np.float32)
        grown = (total + term).astype(np.float32)
        if compensated:
            lost = (grown - total) - term
        total = grown
    return total


def plain(a: Array, b: Array) -> Array:
    """a @ b in FP32, one fused multiply-add after the other: what a library's kernel does."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    left, right = a.astype(np.float64), b.astype(np.float64)
    for k in range(a.shape[1]):
        total = (total + left[:, k : k + 1] * right[k]).astype(np.float32)
    return total


def shared(a: Array, b: Array, blocks: int) -> Array:
    """As `plain`, by so many blocks that share k, whose sums are added up: a library, for a small C."""
    each = -(-a.shape[1] // blocks)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], each):
        total = total + plain(a[:, start : start + each], b[start : start + each])
    return total


def largest_error(c: Array, a: Array, b: Array) -> float:
    """The largest error of an element over its sum of |a||b|."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    scale = np.abs(left) @ np.abs(right)
    return float((np.abs(c - left @ right) / np.where(scale > 0, scale, 1)).max())


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
