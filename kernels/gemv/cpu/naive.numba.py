"""y = A x by the definition: y[i] is the sum over j of A[i, j] * x[j].

Idea: none yet. Each sum is one long chain of dependent additions, so the vector unit is idle, and A stored
by columns is read with a stride of a whole column.

Constants in front of this text: THREADS; A_TRANSPOSED says how A is stored.
Letters: i, j run over M, N.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
from numba import njit, prange


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _gemv(a, x, y, m, n):
    for i in prange(m):
        total = x.dtype.type(0)
        for j in range(n):
            total += (a[j, i] if A_TRANSPOSED else a[i, j]) * x[j]
        y[i] = total


def gemv(a, x, y, m, n):
    """Writes y, and leaves the number of Numba's threads as it was."""
    if THREADS == 1:
        _gemv(a, x, y, m, n)
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _gemv(a, x, y, m, n)
    finally:
        numba.set_num_threads(before)
