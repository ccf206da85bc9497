"""C = op(A) op(B) with A, and where it can be B, read where they are.

Packing copies every element of A and B once. Where each is used only a few times, because C is small or long
and thin, that costs more than it gives. Here a tile of C in registers takes its factors from A itself, a
scalar from each of MR rows, and its vectors from B itself, NR elements of a row. Where B is stored
transposed, or PACK_B says so, a strip of B is packed first; where PACK_A says so, A is.

    for a part of K            KC
        for a strip of B       NR    packed, or as it lies
            for rows of A      MR    a tile of C: MR * NR multiply-adds for MR + NR loads

At the edges of C tiles of one vector per row take over, which read and write the used part only.

Constants in front of this text: WIDTH (lanes of a vector), MR, NR, KC, PACK_A, PACK_B, STREAM (C is
written past the caches, where it is aligned), UNROLL (products per turn of
the innermost loop), PREFETCH (how many strips ahead B's lines are asked for; 0: not at all), THREADS, SPLIT;
A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import njit

VECTORS = MR * NR // WIDTH
B_IS_PACKED = B_TRANSPOSED or PACK_B
pack_a = packer(MR, A_TRANSPOSED, WIDTH)
pack_b = packer(NR, not B_TRANSPOSED, WIDTH)


@njit(inline="always")
def _whole_tile(factors, vectors, depth, to, c_row, add_to_c):
    """MR x NR of C; factors: address in A and its steps along M and K, vectors: in B and its step along K."""
    (a, across, along), (b, b_step) = factors, vectors
    tile = empty_sums(to, VECTORS, WIDTH)
    for _ in range(depth // UNROLL):
        if PREFETCH and not B_IS_PACKED:
            # The same row, so that the page is known: the next strip lies in many pages, a step of K in each.
            for p in range(UNROLL):
                prefetch(forward(b, p * b_step + PREFETCH * NR), NR)
        tile = add_products(tile, MR, UNROLL, a, across, along, b, b_step)
        a, b = forward(a, UNROLL * along), forward(b, UNROLL * b_step)
    for _ in range(depth % UNROLL):
        tile = add_products(tile, MR, 1, a, across, along, b, b_step)
        a, b = forward(a, along), forward(b, b_step)
    if STREAM and not add_to_c:
        stream_tile(tile, MR, to, c_row)
    else:
        store_tile(tile, MR, to, c_row, add_to_c)


@njit(inline="always")
def _part_of_tile(factors, vectors, depth, place, rows, columns):
    """The same for fewer rows or columns, one vector of columns after the other."""
    to, c_row, add_to_c = place
    for j in range(0, columns, WIDTH):
        (a, across, along), (b, b_step) = factors, vectors
        b, used = forward(b, j), min(WIDTH, columns - j)
        tile = empty_sums(to, MR, WIDTH)
        for _ in range(depth):
            tile = add_product_part(tile, a, across, b, rows, used)
            a, b = forward(a, along), forward(b, b_step)
        store_part(tile, MR, forward(to, j), c_row, add_to_c, rows, used)


@njit(inline="always")
def _strip_of_c(factors, vectors, depth, place, height, columns):
    """Rows of A, from the factors on, times a strip of B."""
    (a, a_tile, across, along), (to, c_row, add_to_c) = factors, place
    for i in range(0, height, MR):
        here, down = (forward(a, i // MR * a_tile), across, along), forward(to, i * c_row)
        if columns == NR and height - i >= MR:
            _whole_tile(here, vectors, depth, down, c_row, add_to_c)
        else:
            _part_of_tile(here, vectors, depth, (down, c_row, add_to_c), min(MR, height - i), columns)


def _part_of_c(a, b, c, m, n, k, top, bottom, left, right):
    """Rows top to bottom and columns left to right of C."""
    height, a_row, b_row = bottom - top, a.shape[1], b.shape[1]
    across, along = (1, a_row) if A_TRANSPOSED else (a_row, 1)
    a, b, c = a.reshape(a.size), b.reshape(b.size), c.reshape(c.size)
    panels = aligned(a, (height + MR - 1) // MR * MR * min(k, KC)) if PACK_A else a
    strip = aligned(b, NR * min(k, KC)) if B_IS_PACKED else b
    for p in range(0, k, KC):
        depth, corner = min(KC, k - p), top * across + p * along
        if PACK_A:
            pack_a(panels, a, corner, a_row, height, depth)
            factors = (pointer(panels, 0), MR * depth, 1, MR)
        else:
            factors = (pointer(a, corner), MR * across, across, along)
        for j in range(left, right, NR):
            columns, first = min(NR, right - j), j * b_row + p if B_TRANSPOSED else p * b_row + j
            if B_IS_PACKED:
                pack_b(strip, b, first, b_row, columns, depth)
                vectors = (pointer(strip, 0), NR)
            else:
                vectors = (pointer(b, first), b_row)
            _strip_of_c(factors, vectors, depth, (pointer(c, top * n + j), n, p > 0), height, columns)


if THREADS == 1:
    _all_of_c = njit(inline="always")(_part_of_c)

    # Called without a line of Python between: for the smallest problems a call costs as much as the work.
    @njit(cache=True, nogil=True)
    def gemm(a, b, c, m, n, k):
        """Writes c."""
        _all_of_c(a, b, c, m, n, k, 0, m, 0, n)

else:
    _compiled_part_of_c = njit(cache=True, nogil=True)(_part_of_c)

    def gemm(a, b, c, m, n, k):
        """Writes c: each thread computes a part of its own."""
        share(_compiled_part_of_c, a, b, c, m, n, k)
