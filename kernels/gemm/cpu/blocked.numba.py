"""C = op(A) op(B) in square blocks: each element in the cache is used BLOCK times.

Idea: a block of C is summed in an array of its own over blocks of A and B, and written once. The innermost
loop runs along memory, so that the compiler makes vector instructions of it. The rows of B decide its dim,
as stored or after TRANSPOSE_B has transposed B first:

    rows of N values:  sum[i, :] += A[i, p] * B[p, :]         a scaled row is added to a row
    rows of K values:  sum[i, j] += A[i, :] . B[j, :]         a dot product

Constants in front of this text: BLOCK, TRANSPOSE_B, THREADS; A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K; i0, j0, p0 are where a block begins.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
import numpy as np
from numba import njit, prange

B_HAS_ROWS_OF_K = B_TRANSPOSED != TRANSPOSE_B
# contract: a product and a sum may become one fused multiply-add. reassoc: a dot product may be summed in
# as many parts as a vector has lanes, without which it cannot be vectorised. Nothing else is relaxed: NaN,
# infinities and signed zeros keep their meaning.
RELAXED = {"contract", "reassoc"}


@njit(fastmath=RELAXED)
def _add_scaled_row(total, factor, row):
    for j in range(total.size):
        total[j] += factor * row[j]


@njit(fastmath=RELAXED)
def _dot_product(left, right):
    dot = left.dtype.type(0)
    for p in range(left.size):
        dot += left[p] * right[p]
    return dot


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _transposed(b):
    rows, columns = b.shape
    turned = np.empty((columns, rows), b.dtype)
    bands = (columns + 31) // 32
    # In bands of 32 columns a line of the cache is read once and not once per column.
    for band in prange(bands):
        for i in range(rows):
            for j in range(32 * band, min(32 * band + 32, columns)):
                turned[j, i] = b[i, j]
    return turned


@njit(nogil=True)
def _block_of_c(a, b, c, i0, j0, depth):
    rows, columns = min(BLOCK, c.shape[0] - i0), min(BLOCK, c.shape[1] - j0)
    total = np.zeros((rows, columns), c.dtype)
    part = np.empty((rows, BLOCK), a.dtype)
    for p0 in range(0, depth, BLOCK):
        width = min(BLOCK, depth - p0)
        # Element by element: assignments of slices take Numba seconds to compile, for their messages.
        if A_TRANSPOSED:
            for p in range(width):
                for i in range(rows):
                    part[i, p] = a[p0 + p, i0 + i]
        else:
            for i in range(rows):
                for p in range(width):
                    part[i, p] = a[i0 + i, p0 + p]
        for i in range(rows):
            if B_HAS_ROWS_OF_K:
                for j in range(columns):
                    total[i, j] += _dot_product(part[i, :width], b[j0 + j, p0 : p0 + width])
            else:
                for p in range(width):
                    _add_scaled_row(total[i], part[i, p], b[p0 + p, j0 : j0 + columns])
    for i in range(rows):
        for j in range(columns):
            c[i0 + i, j0 + j] = total[i, j]


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _gemm(a, b, c, m, n, k):
    across = (n + BLOCK - 1) // BLOCK
    blocks = across * ((m + BLOCK - 1) // BLOCK)
    for block in prange(blocks):
        _block_of_c(a, b, c, block // across * BLOCK, block % across * BLOCK, k)


def gemm(a, b, c, m, n, k):
    """Writes c, and leaves the number of Numba's threads as it was."""
    before = numba.get_num_threads() if THREADS > 1 else 1
    if THREADS > 1:
        numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _gemm(a, _transposed(b) if TRANSPOSE_B else b, c, m, n, k)
    finally:
        if THREADS > 1:
            numba.set_num_threads(before)
