"""Applies y <- y / 2 + 1 `steps` times to every element, to LANES of them at once in vector registers.

Idea: a vector of LANES elements is LANES independent chains of multiply-adds.

Constants in front of this text: LANES, THREADS.
"""

# ruff: noqa: ANN001, ANN201, F821
# This module's own function takes the name.
multiply_add_vectors = multiply_add


@njit(inline="always")
def work(crew, member, like):
    """Takes vectors."""
    x, y, n, steps = place_at(word(crew, 0), like), place_at(word(crew, 1), like), word(crew, 2), word(crew, 3)
    half, one = broadcast(like.dtype.type(0.5), LANES), broadcast(like.dtype.type(1), LANES)
    vectors = -(-n // LANES)
    vector = take(crew, 0)
    while vector < vectors:
        first, count = vector * LANES, min(LANES, n - vector * LANES)
        value = load_first(forward(x, first), count, LANES)
        for _ in range(steps):
            value = multiply_add_vectors(value, half, one)
        store_first(forward(y, first), value, count)
        finish(crew, 0)
        vector = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, vectors)


def multiply_add(x, y, n, steps):
    """Writes y."""
    run_together(THREADS, y.dtype, (address_of(x), address_of(y), n, steps))
