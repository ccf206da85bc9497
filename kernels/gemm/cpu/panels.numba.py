"""Packing: a block of A or B copied into panels, so that the innermost loop reads memory from front to back.

A block is `depth` (a part of K) long and some rows of A, or columns of B, wide. It is cut into panels PANEL
wide; a panel holds PANEL elements for p = 0, then PANEL for p = 1, and so on. The last panel is filled up
with zeros, so that the innermost loop knows whole panels only.

Where the source already runs along the panel, packing copies. Where it runs along K, it turns small squares
round in registers: riffling two halves of a deck log2(rows) times transposes it.
"""


# ruff: noqa: ANN001, ANN201, ANN202, F821
def _powers_of_two(total, limit):
    """Yields (start, size): total cut into powers of two, the largest first, none above limit."""
    start = 0
    while start < total:
        size = min(limit, 1 << ((total - start).bit_length() - 1))
        yield start, size
        start += size


@intrinsic(prefer_literal=True)
def copy_elements(context, to, source, elements, lanes):
    """Copies a number of elements that is known when compiling, in vectors of up to `lanes`."""

    def generate(target, builder, signature, args):
        element = target.get_value_type(to.dtype)
        for start, size in _powers_of_two(lanes_of(elements), lanes_of(lanes)):
            at = INDEX(start)
            value = emit_load(builder, builder.gep(args[1], [at]), ir.VectorType(element, size))
            emit_store(builder, value, builder.gep(args[0], [at]))
        return target.get_dummy_value()

    return types.void(to, source, elements, lanes), generate


def _riffled(builder, deck):
    """The elements of a deck of vectors, one from the first half and one from the second by turns."""
    lanes, half = deck[0].type.count, len(deck) // 2
    low = [at // 2 + lanes * (at % 2) for at in range(lanes)]
    high = [at + lanes // 2 for at in low]
    pairs = zip(deck[:half], deck[half:], strict=True)
    return [emit_shuffle(builder, *pair, order) for pair in pairs for order in (low, high)]


@intrinsic(prefer_literal=True)
def copy_turned(context, to, source, row_step, rows, lanes):
    """Does to[p * rows + i] = source[i * row_step + p] for every i < rows and p < lanes."""

    def generate(target, builder, signature, args):
        height, width, index = lanes_of(rows), lanes_of(lanes), args[2].type
        vector = ir.VectorType(target.get_value_type(to.dtype), width)
        for start, size in _powers_of_two(height, width):
            places = [builder.gep(args[1], [builder.mul(args[2], index(start + i))]) for i in range(size)]
            deck = [emit_load(builder, place, vector) for place in places]
            for _ in range(size.bit_length() - 1):
                deck = _riffled(builder, deck)
            for p in range(width):
                held, first = deck[p * size // width], p * size % width
                piece = emit_shuffle(builder, held, held, range(first, first + size))
                emit_store(builder, piece, builder.gep(args[0], [INDEX(p * height + start)]))
        return target.get_dummy_value()

    return types.void(to, source, types.intp, rows, lanes), generate


def packer(panel, runs_along_panel, lanes):
    """Makes the function that packs blocks into panels so many elements wide.

    The function it makes takes the place to pack to; the block's first element, and the source's elements from
    one row to the next; the block's width across the panels and its depth.
    """

    @njit(**INNER)
    def pack(packed, source, row, width, depth):
        whole = width - width % panel
        done = depth if runs_along_panel else depth - depth % lanes
        if runs_along_panel:
            # Rows outside: what is read lies in sequence, what is written in a few long strips.
            for p in range(depth):
                for start in range(0, whole, panel):
                    copy_elements(
                        forward(packed, start * depth + p * panel),
                        forward(source, start + p * row),
                        panel,
                        lanes,
                    )
        else:
            for start in range(0, whole, panel):
                for p in range(0, done, lanes):
                    copy_turned(
                        forward(packed, start * depth + p * panel),
                        forward(source, start * row + p),
                        row,
                        panel,
                        lanes,
                    )
        # One by one: what is left of K, and the columns of a panel that is used in part.
        across, along = (1, row) if runs_along_panel else (row, 1)
        for start in range(0, width, panel):
            to, used = start * depth, min(panel, width - start)
            for p in range(done if used == panel else 0, depth):
                for i in range(used):
                    packed[to + p * panel + i] = source[(start + i) * across + p * along]
                for i in range(used, panel):
                    packed[to + p * panel + i] = 0

    return pack
