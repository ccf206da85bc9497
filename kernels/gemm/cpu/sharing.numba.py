"""How threads share a gemm: C is cut into parts of whole tiles, and each thread computes one.

Nobody waits for anybody: what a thread packs it packs for itself. That reads A or B more than once, which
costs little as long as the parts are large; parts near to square need the least of A and B together.

Constants in front of this text: THREADS, SPLIT (what is cut: rows, columns or both), MR, NR.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from itertools import pairwise


def _cuts(total, parts, unit):
    """Where to cut total into so many parts of nearly the same number of whole units."""
    units = -(-total // unit)
    return [min(total, units * part // parts * unit) for part in range(parts + 1)]


def _grid(m, n):
    """Into how many strips of rows and of columns the threads cut C."""
    if SPLIT == "rows":
        return THREADS, 1
    if SPLIT == "columns":
        return 1, THREADS
    strips = [count for count in range(1, THREADS + 1) if THREADS % count == 0]
    rows = min(strips, key=lambda count: m / count + n * count / THREADS)
    return rows, THREADS // rows


def share(part_of_c, a, b, c, m, n, k):
    """Calls part_of_c(a, b, c, m, n, k, top, bottom, left, right) for every part."""
    strips, bands = _grid(m, n)
    rows, columns = _cuts(m, strips, MR), _cuts(n, bands, NR)
    parts = [
        (a, b, c, m, n, k, top, bottom, left, right)
        for top, bottom in pairwise(rows)
        for left, right in pairwise(columns)
        if top < bottom and left < right
    ]
    run_together(part_of_c, parts)
