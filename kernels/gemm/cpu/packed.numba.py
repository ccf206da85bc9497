"""C = op(A) op(B): five loops round a tile of C that stays in registers.

A core can add far more products in a second than its caches can deliver operands for. So every level of the
memory is made to hold what is used most often:

    loop                   step   what stays where while the loops inside it run
    5  columns of C        NC
    4  part of K           KC     the packed block of B (KC x NC): last-level cache
    3  rows of C           MC     the packed block of A (MC x KC): second-level cache
    2  columns, a panel    NR     the panel of B (KC x NR): first-level cache
    1  rows, a panel       MR     the tile of C (MR x NR): registers
       part of K           1      a column of A times a row of B: MR * NR multiply-adds for MR + NR loads

Packing makes panels that are read from front to back, whatever the layout of A and B; see there. Tiles at the
edges are computed whole, from panels filled up with zeros, and stored in part.

Source of the scheme: K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM
TOMS 34 (2008); F. Van Zee and R. van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS
Functionality", ACM TOMS 41 (2015).

Constants in front of this text: WIDTH (lanes of a vector), MR, NR, MC, KC, NC, UNROLL (products per turn of
the innermost loop), PREFETCH (how many products ahead a panel's lines are asked for; 0: not at all), THREADS,
SPLIT (what threads share: rows, columns or both); A_TRANSPOSED and B_TRANSPOSED (as stored).
Letters: i, j, p run over M, N, K.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
from numba import njit

VECTORS = MR * NR // WIDTH
A_ELEMENTS, B_ELEMENTS = UNROLL * MR, UNROLL * NR  # used up by one turn of the innermost loop
# Functions are inlined by Numba, before LLVM sees them, so that all is compiled once and not once per function.
pack_a = packer(MR, A_TRANSPOSED, WIDTH)
pack_b = packer(NR, not B_TRANSPOSED, WIDTH)


@njit(inline="always")
def _evenly(total, limit, unit):
    """A step of at most limit (or one unit) that cuts total into parts of nearly the same size."""
    parts = (total + limit - 1) // limit
    return ((total + parts - 1) // parts + unit - 1) // unit * unit


@njit(inline="always")
def _tile_of_c(panels, place, rows, columns):
    """The innermost loop: a panel of A times a panel of B, into a tile of C of which so much is used."""
    (a, b, depth), (to, c_row, add_to_c) = panels, place
    tile = empty_sums(to, VECTORS, WIDTH)
    if PREFETCH:
        prefetch_rows(to, c_row, MR, NR)
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
        store_tile(tile, MR, to, c_row, add_to_c)
    else:
        store_part(tile, MR, to, c_row, add_to_c, rows, columns)


@njit(inline="always")
def _block_of_c(blocks, place, height, width):
    """Loops 2 and 1: a packed block of A times a packed block of B."""
    (block_a, block_b, depth), (to, c_row, add_to_c) = blocks, place
    for j in range(0, width, NR):
        b, columns = forward(block_b, j * depth), min(NR, width - j)
        for i in range(0, height, MR):
            panels = (forward(block_a, i * depth), b, depth)
            tile_at = forward(to, i * c_row + j)
            _tile_of_c(panels, (tile_at, c_row, add_to_c), min(MR, height - i), columns)


@njit(cache=True, nogil=True)
def _part_of_c(a, b, c, m, n, k, top, bottom, left, right):
    """Loops 5, 4 and 3 over rows top to bottom and columns left to right of C."""
    a_row, b_row = a.shape[1], b.shape[1]
    a, b, c = a.reshape(a.size), b.reshape(b.size), c.reshape(c.size)
    wide = _evenly(right - left, NC, NR)
    deep = _evenly(k, KC, 1)
    high = _evenly(bottom - top, MC, MR)
    packed_b, packed_a = aligned(b, wide * deep), aligned(a, high * deep)
    for j in range(left, right, wide):
        width = min(wide, right - j)
        for p in range(0, k, deep):
            depth = min(deep, k - p)
            pack_b(packed_b, b, j * b_row + p if B_TRANSPOSED else p * b_row + j, b_row, width, depth)
            for i in range(top, bottom, high):
                height = min(high, bottom - i)
                pack_a(packed_a, a, p * a_row + i if A_TRANSPOSED else i * a_row + p, a_row, height, depth)
                blocks = (pointer(packed_a, 0), pointer(packed_b, 0), depth)
                _block_of_c(blocks, (pointer(c, i * n + j), n, p > 0), height, width)


def gemm(a, b, c, m, n, k):
    """Writes c: each thread computes a part of its own, with packed blocks of its own."""
    share(_part_of_c, a, b, c, m, n, k)
