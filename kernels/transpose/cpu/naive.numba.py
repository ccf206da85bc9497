"""B[j, i] = A[i, j], element by element.

Idea: none yet. A is read along its rows, and B is written a whole row apart: every store touches another
cache line, which is evicted before its neighbours are written.

Constants in front of this text: THREADS.
Letters: i, j run over M, N.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
from numba import njit, prange


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _transpose(a, b, m, n):
    for i in prange(m):
        for j in range(n):
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
