"""Copies an array, to see how fast memory can be read and written.

Idea: threads copy parts. With STREAM, stores of whole lines go round the cache, which then need not read what
is about to be overwritten; elements before the first and after the last aligned vector go one by one.

Constants in front of this text: STREAM, THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numpy as np
from numba import njit

#: Elements of a vector: one line of the cache, or two.
LANES = 16


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


@njit(cache=True, nogil=True)
def _part(x, y, first, last):
    for i in range(first, last):
        y[i] = x[i]


@njit(cache=True, nogil=True)
def _lines(x, y, first, last):
    for i in range(first, last, LANES):
        store_past_the_cache(pointer(y, i), load(pointer(x, i), LANES))


def copy(x, y, n):
    """Writes y."""
    # Elements are only moved: whole numbers travel as floats of the same size.
    real = np.float32 if x.itemsize == 4 else np.float64
    x, y = x.view(real), y.view(real)
    first, last = 0, n
    if STREAM:
        vector_bytes = LANES * y.itemsize
        first = min(n, -y.ctypes.data % vector_bytes // y.itemsize)
        last = first + (n - first) // LANES * LANES
        _part(x, y, 0, first)
        _part(x, y, last, n)
    vectors = -(-(last - first) // LANES)
    count = max(1, min(THREADS, vectors))
    bounds = [min(last, first + vectors * part // count * LANES) for part in range(count + 1)]
    move = _lines if STREAM else _part
    run_together(move, [(x, y, bounds[part], bounds[part + 1]) for part in range(count)])
