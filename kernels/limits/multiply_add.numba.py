"""Puts every element through y <- y / 2 + 1 `steps` times, LANES of them at once in vector registers.

Idea: a vector of LANES elements is as many chains of multiply-adds that do not wait for each other.

Constants in front of this text: LANES, THREADS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import njit

# This module's own function takes the name.
multiply_add_vectors = multiply_add


@njit(cache=True, nogil=True)
def _vectors(x, y, steps, first, last):
    half, one = broadcast(x.dtype.type(0.5), LANES), broadcast(x.dtype.type(1), LANES)
    for vector in range(first, last):
        count = min(LANES, x.size - vector * LANES)
        value = load_first(pointer(x, vector * LANES), count, LANES)
        for _ in range(steps):
            value = multiply_add_vectors(value, half, one)
        store_first(pointer(y, vector * LANES), value, count)


def multiply_add(x, y, n, steps):
    """Writes y."""
    vectors = -(-n // LANES)
    count = min(THREADS, vectors)
    bounds = [vectors * part // count for part in range(count + 1)]
    run_together(_vectors, [(x, y, steps, bounds[part], bounds[part + 1]) for part in range(count)])
