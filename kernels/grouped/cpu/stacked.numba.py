"""C's rows of a group = A's rows of it times the group's B: threads share pieces of ROWS rows of a group.

A library that computes one product after the other has nothing for its threads to do in a group of a few rows.
Here a thread takes pieces as they come, and multiplies each as gemm's `direct` does: a tile of C in vector
registers, A and B read in place, or B packed.

Pieces have numbers: those of group g begin at offsets[g - 1] // ROWS + g. A group never has more pieces than
there are numbers up to the next group's, so that no pass over the offsets is needed to find a piece: a binary
search does. At most one number of each group has no piece.

Comes behind gemm's direct.numba.py, and takes the place of its `work`. Constants in front of this text: WIDTH,
MR, NR, KC, PACK_B, UNROLL, THREADS, B_TRANSPOSED as there; ROWS.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
PACK_A, STREAM, PREFETCH = False, False, 0


@njit(**INNER)
def _group_of(offsets, groups, number):
    """The last group whose pieces begin at that number or before."""
    low, high = 0, groups
    while high - low > 1:
        middle = (low + high) // 2
        if offsets[middle - 1] // ROWS + middle <= number:
            low = middle
        else:
            high = middle
    return low


@njit(inline="always")
def _piece(a, b, offsets, c, n, k, groups, number, panels, strip):
    """Multiplies the rows of a piece."""
    group = _group_of(offsets, groups, number)
    begin = int(offsets[group - 1]) if group else 0
    first = begin + (number - begin // ROWS - group) * ROWS
    rows = min(ROWS, int(offsets[group]) - first)
    if rows > 0:
        left, right, to = forward(a, first * k), forward(b, group * k * n), forward(c, first * n)
        multiply_here(left, right, to, rows, n, k, KC, 0, rows, 0, n, panels, strip)


@njit(cache=True, nogil=True)
def _in_one_thread(a, b, offsets, c, rows, n, k, groups):
    """Writes c, in one thread."""
    depth = min(k, KC)
    panels = np.empty(0, c.dtype)
    strip = np.empty(NR * depth if B_IS_PACKED else 0, c.dtype)
    first_a, first_b, first_c = pointer(a, 0), pointer(b, 0), pointer(c, 0)
    for number in range(rows // ROWS + groups):
        at = pointer(panels, 0), pointer(strip, 0)
        _piece(first_a, first_b, offsets, first_c, n, k, groups, number, at[0], at[1])
    hold(panels)
    hold(strip)


@njit(inline="always")
def work(crew, member, like):
    """Takes pieces."""
    a, b, c = place_at(word(crew, 0), like), place_at(word(crew, 1), like), place_at(word(crew, 3), like)
    n, k, groups, pieces = word(crew, 4), word(crew, 5), word(crew, 6), word(crew, 7)
    offsets = carray(place_at(word(crew, 2), np.empty(0, np.int32)), (groups,))
    strip = forward(place_at(word(crew, 9), like), member * word(crew, 8))
    number = take(crew, 0)
    while number < pieces:
        _piece(a, b, offsets, c, n, k, groups, number, strip, strip)
        finish(crew, 0)
        number = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, pieces)


def _shared(a, b, offsets, c, rows, n, k, groups):
    """Writes c, in several threads."""
    own = NR * min(k, KC)
    places = address_of(a), address_of(b), address_of(offsets), address_of(c)
    run_together(THREADS, c.dtype, (*places, n, k, groups, rows // ROWS + groups, own), THREADS * own)


grouped = _in_one_thread if THREADS == 1 else _shared
