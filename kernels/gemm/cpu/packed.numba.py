"""C = op(A) op(B): five loops round a tile of C that stays in registers.

A core can add products far faster than its caches can deliver their operands. So each level of the memory
holds the data that the loops inside it use most often:

    loop                   step   data that stays in place while the inner loops run
    5  columns of C        NC
    4  part of K           KC     the packed block of B (KC x NC): last-level cache
    3  rows of C           MC     the packed block of A (MC x KC): second-level cache
    2  columns, a panel    NR     the panel of B (KC x NR): first-level cache
    1  rows, a panel       MR     the tile of C (MR x NR): registers
       part of K           1      a column of A times a row of B: MR * NR multiply-adds for MR + NR loads

Packing makes panels that are read from front to back, whatever the layout of A and B; see panels.numba.py.
Tiles at the edges are computed whole, from panels filled up with any values, and stored in part.

Threads share all work. Loops 5 and 4 are a sequence of steps. A step has two kinds of jobs, which any free
thread takes: first pack a strip of the block of B, and then multiply MC rows of A by one of SLABS parts of the
block of B. Each thread packs its own rows of A, or, with SHARE both, A is packed in strips like B, which pays
if several threads need the same rows. Two blocks of B are used in turn: the next is packed while other threads
still multiply by this one, so no thread waits more than once a step. Jobs are many and small, because cores are
not equally fast: other programs run on them, or two of them are one physical core.

Packing and loops 2 and 1 depend on the tile; they are compiled apart and called by their address. The other
code is the same for every config and compiled once for all of them.

Source of the scheme: K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM
TOMS 34 (2008); F. Van Zee and R. van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality", ACM TOMS 41 (2015). The sharing of jobs is our own.

Constants in front of this text: WIDTH (lanes of a vector), MR, NR, MC, KC, NC, UNROLL (products per turn of
the innermost loop), PREFETCH (how many products ahead a panel's lines are prefetched; 0: not at all), THREADS,
SHARE (operands packed once for all threads: B, or both), SLABS; A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from collections import namedtuple

TILE, VECTORS = MR * NR, MR * NR // WIDTH  # elements of a tile, and vectors
A_ELEMENTS, B_ELEMENTS = UNROLL * MR, UNROLL * NR  # used up by one turn of the innermost loop
PACK, MULTIPLY = 0, 1
#: Addresses of A, B and C, and their dims; steps of loops 5, 4 and 3; size of one job: columns of C, columns of
#: B, rows of A (slab, b_strip, a_strip); whether A is packed once for all, and blocks in turn (share, halves);
#: addresses of the functions that pack A and B and that multiply; space for the packed blocks.
Call = namedtuple(
    "Call", "a b c m n k wide deep high slab b_strip a_strip share halves pack_a pack_b multiply space"
)
pack_a = njit(**APART)(packer(MR, A_TRANSPOSED, WIDTH))
pack_b = njit(**APART)(packer(NR, not B_TRANSPOSED, WIDTH))


@njit(inline="always")
def _tile_of_c(a, b, depth, c, c_row, add_to_c, rows, columns):
    """The innermost loop: a panel of A times a panel of B, into a tile of C of which a part is used."""
    tile = empty_sums(c, VECTORS, WIDTH)
    if PREFETCH:
        prefetch_rows(c, c_row, MR, NR)
    for _ in range(depth // UNROLL):
        if PREFETCH:
            prefetch(forward(a, PREFETCH * MR), A_ELEMENTS)
            prefetch(forward(b, PREFETCH * NR), B_ELEMENTS)
        tile = add_products(tile, MR, UNROLL, a, 1, MR, b, NR)
        a, b = forward(a, A_ELEMENTS), forward(b, B_ELEMENTS)
    for _ in range(depth % UNROLL):
        tile = add_products(tile, MR, 1, a, 1, MR, b, NR)
        a, b = forward(a, MR), forward(b, NR)
    if rows == MR and columns == NR:
        if add_to_c:
            tile = add_tile(tile, MR, c, c_row)
        store_tile(tile, MR, c, c_row)
    else:
        aside = room(c, TILE)
        store_tile(tile, MR, aside, NR)
        store_part(aside, NR, c, c_row, add_to_c, rows, columns)


@njit(**APART)
def multiply_block(block_a, block_b, depth, c, c_row, add_to_c, height, width):
    """Loops 2 and 1: a packed block of A times packed panels of B."""
    for j in range(0, width, NR):
        for i in range(0, height, MR):
            a, b, to = forward(block_a, i * depth), forward(block_b, j * depth), forward(c, i * c_row + j)
            _tile_of_c(a, b, depth, to, c_row, add_to_c, min(MR, height - i), min(NR, width - j))


@njit(inline="always")
def _call_of(crew, like):
    """The arguments that `gemm` passed to the crew."""
    a, b, c = place_at(word(crew, 0), like), place_at(word(crew, 1), like), place_at(word(crew, 2), like)
    m, n, k = word(crew, 3), word(crew, 4), word(crew, 5)
    wide, deep, high, slab = word(crew, 6), word(crew, 7), word(crew, 8), word(crew, 9)
    b_strip, a_strip, share, halves = word(crew, 10), word(crew, 11), word(crew, 12), word(crew, 13)
    packing, multiplying, space = (
        (word(crew, 14), word(crew, 15)),
        word(crew, 16),
        place_at(word(crew, 17), like),
    )
    return Call(
        a, b, c, m, n, k, wide, deep, high, slab, b_strip, a_strip, share, halves, *packing, multiplying, space
    )


@njit(inline="always")
def _pack_columns_of_b(call, block, j, width, p, depth):
    """Columns from j on and part of K from p on, into panels."""
    row, corner = (call.k, j * call.k + p) if B_TRANSPOSED else (call.n, p * call.n + j)
    call_at(call.pack_b, (block, forward(call.b, corner), row, width, depth))


@njit(inline="always")
def _pack_rows_of_a(call, block, i, height, p, depth):
    """Rows from i on and part of K from p on, into panels."""
    row, corner = (call.m, p * call.m + i) if A_TRANSPOSED else (call.k, i * call.k + p)
    call_at(call.pack_a, (block, forward(call.a, corner), row, height, depth))


@njit(inline="always")
def work(crew, member, like):
    """Loops 5, 4 and 3, which every thread runs.

    Jobs are numbered through all steps, so a thread that is out of jobs of this step holds the number of one of
    the next, and begins with it there.
    """
    call = _call_of(crew, like)
    b_strips, a_strips = -(-call.wide // call.b_strip), -(-call.m // call.a_strip) if call.share else 0
    slabs = -(-call.wide // call.slab)
    packs, products = b_strips + a_strips, slabs * -(-call.m // call.high)
    # Addresses of the packed blocks: of B, then of A for all or for each.
    b_room, a_room = call.wide * call.deep, (a_strips * call.a_strip if call.share else call.high) * call.deep
    blocks_b, blocks_a = call.space, forward(call.space, call.halves * b_room)
    pack, product, step, packed_rows = -1, -1, 0, -1
    for j in range(0, call.n, call.wide):
        width = min(call.wide, call.n - j)
        for p in range(0, call.k, call.deep):
            depth, half = min(call.deep, call.k - p), step % call.halves
            block_b = forward(blocks_b, half * b_room)
            block_a = forward(blocks_a, (half if call.share else member) * a_room)
            if pack < step * packs:
                pack = take(crew, PACK)
            while pack < (step + 1) * packs:
                strip = pack - step * packs
                if strip < b_strips:
                    first = strip * call.b_strip
                    size = min(call.b_strip, width - first)
                    _pack_columns_of_b(call, forward(block_b, first * depth), j + first, size, p, depth)
                elif call.share:
                    first = (strip - b_strips) * call.a_strip
                    size = min(call.a_strip, call.m - first)
                    _pack_rows_of_a(call, forward(block_a, first * depth), first, size, p, depth)
                finish(crew, PACK)
                pack = take(crew, PACK)
            wait_until(crew, PACK, (step + 1) * packs)
            # Tiles of C are added to in the order of the steps, and the other halves may be packed again.
            wait_until(crew, MULTIPLY, step * products)
            if product < step * products:
                product = take(crew, MULTIPLY)
            while product < (step + 1) * products:
                rows, part = (product - step * products) // slabs, (product - step * products) % slabs
                i, left = rows * call.high, part * call.slab
                height = min(call.high, call.m - i)
                if not call.share and packed_rows != product // slabs:
                    packed_rows = product // slabs
                    _pack_rows_of_a(call, block_a, i, height, p, depth)
                panels_a = forward(block_a, i * depth if call.share else 0)
                panels_b, to = forward(block_b, left * depth), forward(call.c, i * call.n + j + left)
                size = min(call.slab, width - left)
                add_to_c = 1 if p > 0 else 0
                call_at(call.multiply, (panels_a, panels_b, depth, to, call.n, add_to_c, height, size))
                finish(crew, MULTIPLY)
                product = take(crew, MULTIPLY)
            step += 1
    if member == 0:
        wait_until(crew, MULTIPLY, step * products)


def _evenly(total, limit, unit):
    """A step of at most limit (or one unit) that cuts total into parts of nearly the same size."""
    parts = -(-total // max(limit, unit))
    return -(-total // (parts * unit)) * unit


def gemm(a, b, c, m, n, k):
    """Writes c."""
    wide, deep, high = _evenly(n, NC, NR), _evenly(k, KC, 1), _evenly(m, MC, MR)
    slab = _evenly(wide, -(-wide // SLABS), NR)
    b_strip, a_strip = (
        _evenly(total, -(-total // (2 * THREADS)), unit) for total, unit in ((wide, NR), (m, MR))
    )
    share, halves = int(SHARE == "both"), 1 if THREADS == 1 else 2
    elements = halves * wide * deep + (halves * (m + MR * 2 * THREADS) if share else THREADS * high) * deep
    places = (address_of(a), address_of(b), address_of(c))
    steps = (wide, deep, high, slab, b_strip, a_strip, share, halves)
    panel, number = place_of(c.dtype), types.intp
    packing = (panel, panel, number, number, number)
    multiplying = (panel, panel, number, panel, number, number, number, number)
    parts = (entry_of(pack_a, packing), entry_of(pack_b, packing), entry_of(multiply_block, multiplying))
    run_together(THREADS, c.dtype, (*places, m, n, k, *steps, *parts), elements)
