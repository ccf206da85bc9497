"""Squared distances between all pairs of points: distances[i, j] = sum over axes of (x_i - x_j)^2.

Idea: a band of ROWS points meets a TILE of points, whose coordinates stay in the cache for the whole band.
The sums of a row are kept in a small array and written once; the inner loop runs along memory, so that the
compiler makes vector instructions of it.

Constants in front of this text: TILE, ROWS, THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
import numpy as np
from numba import njit, prange


@njit(fastmath={"contract"})
def _add_squares(total, here, there):
    for j in range(total.size):
        step = here - there[j]
        total[j] += step * step


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _distances(points, out, n, axes):
    for band in prange((n + ROWS - 1) // ROWS):
        total = np.empty(TILE, points.dtype)
        for j0 in range(0, n, TILE):
            width = min(TILE, n - j0)
            for i in range(band * ROWS, min(band * ROWS + ROWS, n)):
                total[:] = 0
                for axis in range(axes):
                    _add_squares(total[:width], points[axis, i], points[axis, j0 : j0 + width])
                out[i, j0 : j0 + width] = total[:width]


def distances(points, out, n, axes):
    """Writes out, and leaves the number of Numba's threads as it was."""
    if THREADS == 1:
        _distances(points, out, n, axes)
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _distances(points, out, n, axes)
    finally:
        numba.set_num_threads(before)
