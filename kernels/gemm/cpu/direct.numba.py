"""C = op(A) op(B) with A, and if possible B, read in place.

Packing copies every element of A and B once. If each is used only a few times, because C is small or long
and thin, packing costs more than it gains. Here a tile of C in registers takes its factors from A itself, a
scalar from each of MR rows, and its vectors from B itself, NR elements of a row. If B is stored transposed,
or with PACK_B, a strip of B is packed first; with PACK_A, A is.

    for a part of K            KC
        for a strip of B       NR    packed, or in place
            for rows of A      MR    a tile of C: MR * NR multiply-adds for MR + NR loads

At the edges of C, tiles of one vector per row read and write only the used part. Threads take parts of C, of
whole tiles, and each packs its own operands.

Constants in front of this text: WIDTH (lanes of a vector), MR, NR, KC, PACK_A, PACK_B, STREAM (stores of
aligned parts of C bypass the caches), UNROLL (products per turn of the innermost loop), PREFETCH (how many
strips ahead B's lines are prefetched; 0: not at all), THREADS, SPLIT (threads divide rows, columns or
both); A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
TILE, VECTORS = MR * NR, MR * NR // WIDTH  # elements of a tile, and vectors
B_IS_PACKED = B_TRANSPOSED or PACK_B
COLUMN = MR * WIDTH  # elements of a tile of one vector a row
pack_a = njit(**INNER)(packer(MR, A_TRANSPOSED, WIDTH))
pack_b = njit(**INNER)(packer(NR, not B_TRANSPOSED, WIDTH))


@njit(inline="always")
def _whole_tile(a, across, along, b, b_step, depth, c, c_row, add_to_c):
    """MR x NR of C; `across` and `along` are A's steps along M and K, `b_step` is B's along K."""
    tile = empty_sums(c, VECTORS, WIDTH)
    for _ in range(depth // UNROLL):
        if PREFETCH and not B_IS_PACKED:
            # The same row, whose page is known: the next strip is in many pages, a step of K in each.
            for p in range(UNROLL):
                prefetch(forward(b, p * b_step + PREFETCH * NR), NR)
        tile = add_products(tile, MR, UNROLL, a, across, along, b, b_step)
        a, b = forward(a, UNROLL * along), forward(b, UNROLL * b_step)
    for _ in range(depth % UNROLL):
        tile = add_products(tile, MR, 1, a, across, along, b, b_step)
        a, b = forward(a, along), forward(b, b_step)
    if add_to_c:
        store_tile(add_tile(tile, MR, c, c_row), MR, c, c_row)
    elif STREAM:
        stream_tile(tile, MR, c, c_row)
    else:
        store_tile(tile, MR, c, c_row)


@njit(inline="always")
def _part_of_tile(a, across, along, b, b_step, depth, c, c_row, add_to_c, rows, columns):
    """The same for fewer rows or columns, one vector of columns after the other."""
    aside = room(c, COLUMN)
    for j in range(0, columns, WIDTH):
        left, right, used = a, forward(b, j), min(WIDTH, columns - j)
        tile = empty_sums(c, MR, WIDTH)
        for _ in range(depth):
            tile = add_product_part(tile, left, across, right, rows, used)
            left, right = forward(left, along), forward(right, b_step)
        store_tile(tile, MR, aside, WIDTH)
        store_part(aside, WIDTH, forward(c, j), c_row, add_to_c, rows, used)


def _part_of_c(a, b, c, m, n, k, deep, top, bottom, left, right, panels, strip):
    """Rows top to bottom and columns left to right of C, K in parts; room for panels of A and a strip of B."""
    height, a_row, b_row = bottom - top, m if A_TRANSPOSED else k, k if B_TRANSPOSED else n
    a_across, a_along = (1, a_row) if A_TRANSPOSED else (a_row, 1)
    for p in range(0, k, deep):
        depth = min(deep, k - p)
        factors, across, along, a_tile = (
            forward(a, top * a_across + p * a_along),
            a_across,
            a_along,
            MR * a_across,
        )
        if PACK_A:
            pack_a(panels, factors, a_row, height, depth)
            factors, across, along, a_tile = panels, 1, MR, MR * depth
        for j in range(left, right, NR):
            columns = min(NR, right - j)
            vectors, b_step = forward(b, j * b_row + p if B_TRANSPOSED else p * b_row + j), b_row
            if B_IS_PACKED:
                pack_b(strip, vectors, b_row, columns, depth)
                vectors, b_step = strip, NR
            for i in range(0, height, MR):
                here, down = forward(factors, i // MR * a_tile), forward(c, (top + i) * n + j)
                if columns == NR and height - i >= MR:
                    _whole_tile(here, across, along, vectors, b_step, depth, down, n, p > 0)
                else:
                    rows = min(MR, height - i)
                    _part_of_tile(here, across, along, vectors, b_step, depth, down, n, p > 0, rows, columns)


multiply_here = njit(inline="always")(_part_of_c)
multiply_apart = njit(**APART)(_part_of_c)


# Called without Python in between: for the smallest problems a call costs as much as the work.
@njit(cache=True, nogil=True)
def _alone(a, b, c, m, n, k):
    """Writes c, in one thread."""
    depth = min(k, KC)
    panels = np.empty((m + MR) * depth if PACK_A else 0, c.dtype)
    strip = np.empty(NR * depth if B_IS_PACKED else 0, c.dtype)
    first_a, first_b, first_c = pointer(a, 0), pointer(b, 0), pointer(c, 0)
    multiply_here(first_a, first_b, first_c, m, n, k, KC, 0, m, 0, n, pointer(panels, 0), pointer(strip, 0))
    hold(panels)
    hold(strip)


@njit(inline="always")
def work(crew, member, like):
    """Takes parts of C."""
    a, b, c = place_at(word(crew, 0), like), place_at(word(crew, 1), like), place_at(word(crew, 2), like)
    m, n, k, rows, columns, deep = (
        word(crew, 3), word(crew, 4), word(crew, 5), word(crew, 6), word(crew, 7), word(crew, 8),
    )  # fmt: skip
    across = -(-n // columns)
    parts = across * -(-m // rows)
    panels = forward(place_at(word(crew, 11), like), member * word(crew, 9))
    strip = forward(panels, rows * min(k, deep))
    part = take(crew, 0)
    while part < parts:
        top, left = part // across * rows, part % across * columns
        bottom, right = min(m, top + rows), min(n, left + columns)
        call_at(word(crew, 10), (a, b, c, m, n, k, deep, top, bottom, left, right, panels, strip))
        finish(crew, 0)
        part = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, parts)


def _side(total, parts, unit):
    return -(-total // (parts * unit)) * unit


def _together(a, b, c, m, n, k):
    """Writes c, in several threads."""
    strips = [count for count in range(1, THREADS + 1) if THREADS % count == 0]
    bands = {
        "rows": THREADS,
        "columns": 1,
        "both": min(reversed(strips), key=lambda count: m / count + n * count / THREADS),
    }[SPLIT]  # fmt: skip
    rows, columns = _side(m, bands, MR), _side(n, THREADS // bands, NR)
    own, place = (rows + NR) * min(k, KC), place_of(c.dtype)
    multiply = entry_of(multiply_apart, (place,) * 3 + (types.intp,) * 8 + (place,) * 2)
    places = (address_of(a), address_of(b), address_of(c))
    run_together(THREADS, c.dtype, (*places, m, n, k, rows, columns, KC, own, multiply), THREADS * own)


gemm = _alone if THREADS == 1 else _together
