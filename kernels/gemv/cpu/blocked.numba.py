"""y = A x along memory, in bands of rows: vector instructions, A read in the order in which it lies.

Idea: A by rows: dot products, summed in as many parts as a vector has lanes; AT_ONCE rows share a piece of x.
A by columns: a band of BLOCK rows of y stays in the cache while AT_ONCE columns at a time are scaled and added
to it, so that y is read and written once per AT_ONCE columns. Either way the limit is how fast A is read,
and threads on bands of their own read more of it at once.

Constants in front of this text: BLOCK (rows of a band), AT_ONCE, THREADS; A_TRANSPOSED (as stored).
Letters: i, j run over M, N; i0 is where a band begins.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numba
from numba import njit, prange

# contract: a product and a sum may become one fused multiply-add. reassoc: a dot product may be summed in
# as many parts as a vector has lanes. NaN, infinities and signed zeros keep their meaning.
RELAXED = {"contract", "reassoc"}


@njit(fastmath=RELAXED, inline="always")
def _dot(row, x):
    total = x.dtype.type(0)
    for j in range(x.size):
        total += row[j] * x[j]
    return total


@njit(fastmath=RELAXED, nogil=True)
def _two_dots(a, x, y, i):
    first, second = x.dtype.type(0), x.dtype.type(0)
    left, right = a[i], a[i + 1]
    for j in range(x.size):
        first += left[j] * x[j]
        second += right[j] * x[j]
    y[i], y[i + 1] = first, second


@njit(fastmath=RELAXED, nogil=True)
def _four_dots(a, x, y, i):
    zero = x.dtype.type(0)
    s0, s1, s2, s3 = zero, zero, zero, zero
    r0, r1, r2, r3 = a[i], a[i + 1], a[i + 2], a[i + 3]
    for j in range(x.size):
        s0 += r0[j] * x[j]
        s1 += r1[j] * x[j]
        s2 += r2[j] * x[j]
        s3 += r3[j] * x[j]
    y[i], y[i + 1], y[i + 2], y[i + 3] = s0, s1, s2, s3


@njit(fastmath=RELAXED, nogil=True)
def _rows(a, x, y, i0, end):
    i = i0
    if AT_ONCE == 4:
        while i + 4 <= end:
            _four_dots(a, x, y, i)
            i += 4
    if AT_ONCE == 2:
        while i + 2 <= end:
            _two_dots(a, x, y, i)
            i += 2
    while i < end:
        y[i] = _dot(a[i], x)
        i += 1


@njit(fastmath=RELAXED, nogil=True)
def _add_one(part, column, factor):
    for i in range(part.size):
        part[i] += column[i] * factor


@njit(fastmath=RELAXED, nogil=True)
def _add_two(part, left, right, f0, f1):
    for i in range(part.size):
        part[i] += left[i] * f0 + right[i] * f1


@njit(fastmath=RELAXED, nogil=True)
def _add_four(part, a, j, i0, x):
    c0, c1, c2, c3 = a[j, i0:], a[j + 1, i0:], a[j + 2, i0:], a[j + 3, i0:]
    f0, f1, f2, f3 = x[j], x[j + 1], x[j + 2], x[j + 3]
    for i in range(part.size):
        part[i] += (c0[i] * f0 + c1[i] * f1) + (c2[i] * f2 + c3[i] * f3)


@njit(nogil=True)
def _columns(a, x, y, i0, end):
    part = y[i0:end]
    part[:] = 0
    j = 0
    if AT_ONCE == 4:
        while j + 4 <= x.size:
            _add_four(part, a, j, i0, x)
            j += 4
    if AT_ONCE == 2:
        while j + 2 <= x.size:
            _add_two(part, a[j, i0:end], a[j + 1, i0:end], x[j], x[j + 1])
            j += 2
    while j < x.size:
        _add_one(part, a[j, i0:end], x[j])
        j += 1


@njit(cache=True, nogil=True, parallel=THREADS > 1)
def _gemv(a, x, y, m):
    for band in prange((m + BLOCK - 1) // BLOCK):
        i0 = band * BLOCK
        if A_TRANSPOSED:
            _columns(a, x, y, i0, min(i0 + BLOCK, m))
        else:
            _rows(a, x, y, i0, min(i0 + BLOCK, m))


def gemv(a, x, y, m, n):
    """Writes y, and leaves the number of Numba's threads as it was."""
    if THREADS == 1:
        _gemv(a, x, y, m)
        return
    before = numba.get_num_threads()
    numba.set_num_threads(min(THREADS, numba.config.NUMBA_NUM_THREADS))
    try:
        _gemv(a, x, y, m)
    finally:
        numba.set_num_threads(before)
