"""Sums the rows of an array, to measure how fast memory can be read.

Idea: a thread reads STREAMS rows side by side, from front to back. The CPU prefetches each of them,
but not beyond the current page: with one row alone it would start again at each page.

Constants in front of this text: THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
STREAMS, LANES = 8, 16


@njit(**INNER)
def _sum(row, n, start):
    total_of_row = row[0] * 0
    for j in range(start, n):
        total_of_row += row[j]
    return total_of_row


@intrinsic(prefer_literal=True)
def add_rows(context, sums, x, row):
    """Adds a vector from each of as many rows as there are sums."""

    def generate(target, builder, signature, args):
        totals, address, step = args
        vector = target.get_value_type(sums.dtype)
        starts = [builder.gep(address, [builder.mul(step, step.type(i))]) for i in range(len(sums))]
        pieces = [emit_load(builder, start, vector) for start in starts]
        kept = cgutils.unpack_tuple(builder, totals, len(sums))
        return cgutils.pack_array(builder, [builder.fadd(*each) for each in zip(kept, pieces, strict=True)])

    return sums(sums, x, types.intp), generate


@njit(inline="always")
def work(crew, member, like):
    """Takes STREAMS rows at a time."""
    x, sums = place_at(word(crew, 0), like), place_at(word(crew, 1), like)
    parts, n = word(crew, 2), word(crew, 3)
    whole, jobs = n - n % LANES, -(-parts // STREAMS)
    job = take(crew, 0)
    while job < jobs:
        first, zero = job * STREAMS, broadcast(like.dtype.type(0), LANES)
        rows = min(STREAMS, parts - first)
        if rows == STREAMS:
            totals = (zero, zero, zero, zero, zero, zero, zero, zero)
            for j in range(0, whole, LANES):
                totals = add_rows(totals, forward(x, first * n + j), n)
            for i in range(STREAMS):
                sums[first + i] = total(totals[i]) + _sum(forward(x, (first + i) * n), n, whole)
        else:
            for i in range(first, parts):
                sums[i] = _sum(forward(x, i * n), n, 0)
        finish(crew, 0)
        job = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, jobs)


def read(x, sums, parts, n):
    """Writes sums."""
    run_together(THREADS, x.dtype, (address_of(x), address_of(sums), parts, n))
