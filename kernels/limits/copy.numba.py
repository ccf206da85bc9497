"""Copies an array, to see how fast memory can be read and written.

Constants in front of this text: THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import njit


@njit(cache=True, nogil=True)
def _part(x, y, first, last):
    for i in range(first, last):
        y[i] = x[i]


def copy(x, y, n):
    """Writes y."""
    count = min(THREADS, n)
    bounds = [n * part // count for part in range(count + 1)]
    run_together(_part, [(x, y, bounds[part], bounds[part + 1]) for part in range(count)])
