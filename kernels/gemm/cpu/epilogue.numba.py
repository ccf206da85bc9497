"""The epilogue of a product on a CPU: activation(alpha * sum + beta * c_in + bias) + residual, in place.

Comes before a kernel's source. EPILOGUE, in front of this text, has the parts that the problem declares, joined by
"+"; it is empty where there are none. Everything is computed in C's dtype. GELU is by erf, or by tanh (gelu-tanh).
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import math

import numba
import numpy as np
from numba import njit, prange

PARTS = EPILOGUE.split("+")
WITH_ALPHA, WITH_BETA, WITH_RESIDUAL = "alpha" in PARTS, "beta" in PARTS, "residual" in PARTS
ROW_BIAS, COLUMN_BIAS = "bias-row" in PARTS, "bias-col" in PARTS
IS_RELU, IS_GELU, IS_GELU_TANH, IS_SILU = (each in PARTS for each in ("relu", "gelu", "gelu-tanh", "silu"))
#: Rows that a thread finishes at a time where a whole result is.
BAND = 16


def split_arguments(others):
    """(C, dims, what `finish_block` takes) of what a kernel is given behind A and B.

    An array that the problem has not is another one of the same type in its place; it is not read.
    """
    given = list(others)
    factors = [given.pop() for there in (WITH_BETA, WITH_ALPHA) if there]
    dims = tuple(given[-3:])
    arrays, c = given[:-4], given[-4]
    taken = iter(arrays)
    c_in = next(taken) if WITH_BETA else c
    bias = next(taken) if ROW_BIAS or COLUMN_BIAS else c[0]
    residual = next(taken) if WITH_RESIDUAL else c
    alpha = factors[-1] if WITH_ALPHA else 1.0
    beta = factors[0] if WITH_BETA else 0.0
    return c, dims, (c_in, bias, residual, c.dtype.type(alpha), c.dtype.type(beta))


@njit(inline="always")
def activated(x, one):
    """The activation of a number; `one` is 1 in its dtype."""
    half = one / (one + one)
    if IS_RELU:
        return x if x > one - one or x != x else one - one
    if IS_GELU:
        return x * half * (one + math.erf(x * type(one)(0.7071067811865476)))
    if IS_GELU_TANH:
        inner = x + type(one)(0.044715) * x * x * x
        return x * half * (one + math.tanh(type(one)(0.7978845608028654) * inner))
    if IS_SILU:
        return x * half * (one + math.tanh(x * half))
    return x


@njit(nogil=True)
def finish_block(c, c_in, bias, residual, alpha, beta, i0, i1, j0, j1):
    """Finishes the rows from i0 to i1 and columns from j0 to j1 of C, which has the sums."""
    one = c.dtype.type(1)
    for i in range(i0, i1):
        for j in range(j0, j1):
            x = c[i, j]
            if WITH_ALPHA:
                x = x * alpha
            if WITH_BETA:
                x = x + beta * c_in[i, j]
            if ROW_BIAS:
                x = x + bias[i]
            if COLUMN_BIAS:
                x = x + bias[j]
            x = activated(x, one)
            if WITH_RESIDUAL:
                x = x + residual[i, j]
            c[i, j] = x


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _finish_bands(c, c_in, bias, residual, alpha, beta):
    rows, columns = c.shape
    for band in prange((rows + BAND - 1) // BAND):
        top = band * BAND
        finish_block(c, c_in, bias, residual, alpha, beta, top, min(top + BAND, rows), 0, columns)


def finish_whole(c, *operands):
    """Finishes all of C, which has the sums, in one pass; leaves the number of Numba's threads as it was."""
    before = numba.get_num_threads() if THREADS > 1 else 1
    if THREADS > 1:
        numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _finish_bands(c, *operands)
    finally:
        if THREADS > 1:
            numba.set_num_threads(before)
