"""Packing: a block of A or B copied into panels, so that the innermost loop reads memory from front to back.

A block is `depth` (a part of K) long and some rows of A, or columns of B, wide. It is cut into panels PANEL
wide; a panel holds PANEL elements for p = 0, then PANEL for p = 1, and so on. The last panel is filled up with
any values, so that the innermost loop handles only whole panels; products of these values are not stored.

If the source runs along the panel, packing copies it. If it runs along K, packing transposes small squares
in registers: riffling the two halves of a deck of 2^r vectors r times transposes it. A panel of 14 rows
is turned as a deck of 16; each store of 16 elements is followed by the next, which writes over the last two.
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
    """The elements of a deck of vectors, alternately from the first half and the second."""
    lanes, half = deck[0].type.count, len(deck) // 2
    low = [at // 2 + lanes * (at % 2) for at in range(lanes)]
    high = [at + lanes // 2 for at in low]
    pairs = zip(deck[:half], deck[half:], strict=True)
    return [emit_shuffle(builder, *pair, order) for pair in pairs for order in (low, high)]


def _decks(builder, height, row_at, vector):
    """Yields (first row, elements): for each p, the elements of all rows of a deck at p, in one vector.

    A deck holds a power of two of rows, up to as many as there are lanes; the last is filled up with zeros.
    """
    for start in range(0, height, vector.count):
        rows = min(vector.count, height - start)
        deck = [emit_load(builder, row_at(start + row), vector) for row in range(rows)]
        size = 1 << (rows - 1).bit_length()
        deck += [emit_constant(vector, 0.0)] * (size - rows)
        for _ in range(size.bit_length() - 1):
            deck = _riffled(builder, deck)
        # The deck now holds the elements p by p, `size` of each.
        pieces = [(deck[p * size // vector.count], p * size % vector.count) for p in range(vector.count)]
        yield start, [emit_shuffle(builder, held, held, range(at, at + size)) for held, at in pieces]


@intrinsic(prefer_literal=True)
def copy_turned(context, to, source, row_step, last, rows, lanes):
    """Does to[p * rows + i] = source[min(i, last) * row_step + p] for every i < rows and p < lanes."""

    def generate(target, builder, signature, args):
        height, width, index = lanes_of(rows), lanes_of(lanes), args[2].type
        vector = ir.VectorType(target.get_value_type(to.dtype), width)

        def row_at(row):
            inside = builder.icmp_signed("<", index(row), args[3])
            return builder.gep(args[1], [builder.mul(args[2], builder.select(inside, index(row), args[3]))])

        decks = list(_decks(builder, height, row_at, vector))
        for p in range(width):
            for start, elements in decks:
                # The next p overwrites the excess of the last deck; after the last p nothing follows.
                held = elements[p]
                whole = p < width - 1 or start + held.type.count <= height
                count, limit = (held.type.count, held.type.count) if whole else (height - start, width)
                for first, size in _powers_of_two(count, limit):
                    part = emit_shuffle(builder, held, held, range(first, first + size))
                    emit_store(builder, part, builder.gep(args[0], [INDEX(p * height + start + first)]))
        return target.get_dummy_value()

    return types.void(to, source, types.intp, types.intp, rows, lanes), generate


def packer(panel, runs_along_panel, lanes):
    """Makes the function that packs blocks into panels of a given width in elements; it is not compiled yet.

    The function takes the place to pack to; the block's first element, and the source's elements from
    one row to the next; the block's width across the panels and its depth.
    """

    def pack_along(packed, source, row, width, depth):
        # Rows outside: reads are in sequence, writes in a few long strips.
        whole = width - width % panel
        for p in range(depth):
            for start in range(0, whole, panel):
                to, place = forward(packed, start * depth + p * panel), forward(source, start + p * row)
                copy_elements(to, place, panel, lanes)
            for start in range(whole, width, lanes):
                to = forward(packed, whole * depth + p * panel + start - whole)
                used = min(lanes, width - start)
                store_first(to, load_first(forward(source, start + p * row), used, lanes), used)

    def pack_turned(packed, source, row, width, depth):
        done = depth - depth % lanes
        for start in range(0, width, panel):
            rows, last = forward(source, start * row), min(panel, width - start) - 1
            to = forward(packed, start * depth)
            for p in range(0, done, lanes):
                copy_turned(forward(to, p * panel), forward(rows, p), row, last, panel, lanes)
            for p in range(done, depth):
                for i in range(panel):
                    to[p * panel + i] = rows[min(i, last) * row + p]

    return pack_along if runs_along_panel else pack_turned
