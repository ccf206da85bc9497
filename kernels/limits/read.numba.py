"""Sums the rows of an array, to see how fast memory can be read.

Constants in front of this text: THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import njit


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _rows(x, sums, first, last):
    for row in range(first, last):
        total = x.dtype.type(0)
        for j in range(x.shape[1]):
            total += x[row, j]
        sums[row] = total


def read(x, sums, parts, n):
    """Writes sums."""
    count = min(THREADS, parts)
    bounds = [parts * part // count for part in range(count + 1)]
    run_together(_rows, [(x, sums, bounds[part], bounds[part + 1]) for part in range(count)])
