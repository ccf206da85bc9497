"""C = op(A) op(B) by the definition: C[i, j] is the sum over k of op(A)[i, k] * op(B)[k, j].

Idea: none yet; every later step is compared with this one. A and B are read M*N*K times each, mostly
from caches that soon evict them, and the running sum is one long chain of dependent additions.

Constants in front of this text: THREADS; A_TRANSPOSED and B_TRANSPOSED say how A and B are stored.
Letters: i, j, k run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
from numba import njit, prange


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _gemm(a, b, c, m, n, k):
    # Each thread takes whole rows: no element of C is written by two of them.
    for i in prange(m):
        for j in range(n):
            total = a.dtype.type(0)
            for p in range(k):
                left = a[p, i] if A_TRANSPOSED else a[i, p]
                right = b[j, p] if B_TRANSPOSED else b[p, j]
                total += left * right
            c[i, j] = total


def gemm(a, b, c, m, n, k):
    """Writes c, and leaves the number of Numba's threads as it was."""
    if THREADS == 1:
        _gemm(a, b, c, m, n, k)
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _gemm(a, b, c, m, n, k)
    finally:
        numba.set_num_threads(before)
