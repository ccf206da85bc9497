"""Copies an array, to measure how fast memory can be read and written.

Idea: threads copy parts. With STREAM, stores of whole lines bypass the cache, which then need not read lines
before they are overwritten. Elements before the first and after the last aligned vector are copied one by one.

Constants in front of this text: STREAM, THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numpy as np

#: Elements of a vector: one line of the cache, or two. Elements of a job.
LANES, PIECE = 16, 1 << 16


@intrinsic
def store_past_the_cache(context, address, vector):
    """Writes every lane; the address is a multiple of the vector's size."""

    def generate(compiler, builder, signature, args):
        to, value = args
        size = value.type.count * _element_bytes(value.type.element)
        written = builder.store(value, builder.bitcast(to, value.type.as_pointer()), align=size)
        written.set_metadata("nontemporal", builder.module.add_metadata([INDEX(1)]))
        return compiler.get_dummy_value()

    return types.void(address, vector), generate


@njit(inline="always")
def work(crew, member, like):
    """Takes pieces; the caller also copies what lies before and after the whole lines."""
    x, y, n = place_at(word(crew, 0), like), place_at(word(crew, 1), like), word(crew, 2)
    start, end = word(crew, 3), word(crew, 4)
    if member == 0:
        for i in range(start):
            y[i] = x[i]
        for i in range(end, n):
            y[i] = x[i]
    pieces = -(-(end - start) // PIECE)
    piece = take(crew, 0)
    while piece < pieces:
        first = start + piece * PIECE
        last = min(end, first + PIECE)
        for i in range(first, last, LANES):
            if STREAM:
                store_past_the_cache(forward(y, i), load(forward(x, i), LANES))
            else:
                store(forward(y, i), load(forward(x, i), LANES))
        finish(crew, 0)
        piece = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, pieces)


def copy(x, y, n):
    """Writes y."""
    # Elements are only moved: whole numbers are moved as floats of the same size.
    real = np.float32 if x.itemsize == 4 else np.float64
    vector_bytes = LANES * y.itemsize
    start = min(n, -address_of(y) % vector_bytes // y.itemsize)
    end = start + (n - start) // LANES * LANES
    run_together(THREADS, np.dtype(real), (address_of(x), address_of(y), n, start, end))
