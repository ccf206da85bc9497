"""The epilogue of a product on a CPU: activation(alpha * sum + beta * c_in + bias) + residual, in place.

Comes behind a kernel's source, where a problem has an epilogue, and takes the place of its `gemm`: all of C is
finished in one more pass, by all threads. EPILOGUE, in front of this text, has the parts that the problem
declares, joined by "+". Everything is computed in C's dtype. GELU is by erf, or by tanh (gelu-tanh).
"""

# ruff: noqa: ANN001, ANN002, ANN201, ANN202, F821
import math

import numba
from numba import njit, prange

DECLARED = EPILOGUE.split("+")
WITH_ALPHA, WITH_BETA, WITH_RESIDUAL = "alpha" in DECLARED, "beta" in DECLARED, "residual" in DECLARED
ROW_BIAS, COLUMN_BIAS = "bias-row" in DECLARED, "bias-col" in DECLARED
IS_RELU, IS_GELU, IS_GELU_TANH, IS_SILU = (each in DECLARED for each in ("relu", "gelu", "gelu-tanh", "silu"))
#: Rows that a thread finishes at a time.
BAND = 16
_product = gemm


@njit(inline="always")
def _activated(x, one):
    """The activation of a number; `one` is 1 in its dtype."""
    half = one / (one + one)
    if IS_RELU:
        return one - one if x < one - one else x
    if IS_GELU:
        return x * half * (one + math.erf(x * type(one)(0.7071067811865476)))
    if IS_GELU_TANH:
        inner = x + type(one)(0.044715) * x * x * x
        return x * half * (one + math.tanh(type(one)(0.7978845608028654) * inner))
    if IS_SILU:
        return x / (one + math.exp(-x))
    return x


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _finish(c, c_in, bias, residual, alpha, beta):
    rows, columns = c.shape
    one = c.dtype.type(1)
    for band in prange((rows + BAND - 1) // BAND):
        for i in range(band * BAND, min(band * BAND + BAND, rows)):
            for j in range(columns):
                x = c[i, j]
                if WITH_ALPHA:
                    x = x * alpha
                if WITH_BETA:
                    x = x + beta * c_in[i, j]
                if ROW_BIAS:
                    x = x + bias[i]
                if COLUMN_BIAS:
                    x = x + bias[j]
                x = _activated(x, one)
                if WITH_RESIDUAL:
                    x = x + residual[i, j]
                c[i, j] = x


def gemm(a, b, *others):
    """Writes c, and leaves the number of Numba's threads as it was.

    Args:
        a: As for the product.
        b: As for the product.
        others: c_in, bias, residual, as far as they are declared; c, m, n, k; alpha and beta, likewise.
    """
    given = list(others)
    beta = given.pop() if WITH_BETA else 0.0
    alpha = given.pop() if WITH_ALPHA else 1.0
    c, dims = given[-4], given[-3:]
    _product(a, b, c, *dims)
    arrays = iter(given[:-4])
    # What is not declared is not read: another array of the same type stands in its place.
    c_in = next(arrays) if WITH_BETA else c
    bias = next(arrays) if ROW_BIAS or COLUMN_BIAS else c[0]
    residual = next(arrays) if WITH_RESIDUAL else c
    before = numba.get_num_threads() if THREADS > 1 else 1
    if THREADS > 1:
        numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _finish(c, c_in, bias, residual, c.dtype.type(alpha), c.dtype.type(beta))
    finally:
        if THREADS > 1:
            numba.set_num_threads(before)
