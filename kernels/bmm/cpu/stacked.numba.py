"""C[i] = op(A[i]) op(B[i]): threads share the matrices of a batch, and multiply each as gemm's `direct` does.

A library that computes one product after the other pays a call for each, and its threads have nothing to do in
matrices that are small. Here a thread takes CHUNK matrices at a time, and multiplies them without Python
in between: a tile of C in vector registers, A and B read in place or packed.

Comes behind gemm's direct.numba.py, and takes the place of its `work`. Constants in front of this text: as
there, but for SPLIT; CHUNK; ONE_A, ONE_B: one matrix for all.
"""


# ruff: noqa: ANN001, ANN201, ANN202, F821
@njit(inline="always")
def _one_by_one(a, b, c, first, last, m, n, k, panels, strip):
    """Multiplies matrices first to last, which begin m * k, k * n and m * n elements after each other."""
    for i in range(first, last):
        left, right = forward(a, 0 if ONE_A else i * m * k), forward(b, 0 if ONE_B else i * k * n)
        to = forward(c, i * m * n)
        multiply_here(left, right, to, m, n, k, KC, 0, m, 0, n, panels, strip)


# Called without Python in between: for few matrices a call costs as much as the work.
@njit(cache=True, nogil=True)
def _in_one_thread(a, b, c, batch, m, n, k):
    """Writes c, in one thread."""
    depth = min(k, KC)
    panels = np.empty((m + MR) * depth if PACK_A else 0, c.dtype)
    strip = np.empty(NR * depth if B_IS_PACKED else 0, c.dtype)
    first_a, first_b, first_c = pointer(a, 0), pointer(b, 0), pointer(c, 0)
    _one_by_one(first_a, first_b, first_c, 0, batch, m, n, k, pointer(panels, 0), pointer(strip, 0))
    hold(panels)
    hold(strip)


@njit(inline="always")
def work(crew, member, like):
    """Takes matrices."""
    a, b, c = place_at(word(crew, 0), like), place_at(word(crew, 1), like), place_at(word(crew, 2), like)
    batch, m, n, k = word(crew, 3), word(crew, 4), word(crew, 5), word(crew, 6)
    panels = forward(place_at(word(crew, 8), like), member * word(crew, 7))
    strip = forward(panels, (m + MR) * min(k, KC))
    chunks = -(-batch // CHUNK)
    chunk = take(crew, 0)
    while chunk < chunks:
        first = chunk * CHUNK
        _one_by_one(a, b, c, first, min(batch, first + CHUNK), m, n, k, panels, strip)
        finish(crew, 0)
        chunk = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, chunks)


def _shared(a, b, c, batch, m, n, k):
    """Writes c, in several threads."""
    own = (m + MR + NR) * min(k, KC)
    places = (address_of(a), address_of(b), address_of(c))
    run_together(THREADS, c.dtype, (*places, batch, m, n, k, own), THREADS * own)


bmm = _in_one_thread if THREADS == 1 else _shared
