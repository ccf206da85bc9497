"""Sums the rows of an array, to see how fast memory can be read.

Constants in front of this text: THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import carray


@njit(nogil=True, fastmath={"contract", "reassoc"})
def _sum(row):
    total = row.dtype.type(0)
    for j in range(row.size):
        total += row[j]
    return total


@njit(inline="always")
def work(crew, member, like):
    """Takes rows."""
    parts, n = word(crew, 2), word(crew, 3)
    x, sums = carray(place_at(word(crew, 0), like), (parts, n)), place_at(word(crew, 1), like)
    row = take(crew, 0)
    while row < parts:
        sums[row] = _sum(x[row])
        finish(crew, 0)
        row = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, parts)


def read(x, sums, parts, n):
    """Writes sums."""
    run_together(THREADS, x.dtype, (address_of(x), address_of(sums), parts, n))
