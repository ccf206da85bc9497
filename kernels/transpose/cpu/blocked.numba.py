"""B[j, i] = A[i, j] in square blocks that stay in the cache.

Idea: all cache lines of a block of A and a block of B are used up before they are evicted.

Constants in front of this text: BLOCK, THREADS.
Letters: i, j run over M, N; i0, j0 are where a block begins.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
from numba import njit, prange


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _transpose(a, b, m, n):
    across = (n + BLOCK - 1) // BLOCK
    blocks = across * ((m + BLOCK - 1) // BLOCK)
    for block in prange(blocks):
        i0, j0 = block // across * BLOCK, block % across * BLOCK
        for j in range(j0, min(j0 + BLOCK, n)):
            for i in range(i0, min(i0 + BLOCK, m)):
                b[j, i] = a[i, j]


def transpose(a, b, m, n):
    """Writes b, and leaves the number of Numba's threads as it was."""
    if THREADS == 1:
        _transpose(a, b, m, n)
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _transpose(a, b, m, n)
    finally:
        numba.set_num_threads(before)
