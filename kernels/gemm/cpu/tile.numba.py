"""A tile of C in registers, and its one operation: add a column of A times a row of B.

A tile is a tuple of ROWS x COLUMNS vectors, row by row. As one value it stays in registers if there are
enough of them; the loops over its rows and columns are unrolled here.

    a column of A: ROWS scalars, each broadcast to a vector
    a row of B:    COLUMNS vectors
    tile[i, j] += a[i] * b[j]           ROWS * COLUMNS multiply-adds for ROWS + COLUMNS loads
"""


# ruff: noqa: ANN001, ANN201, ANN202, F821
def _tile_shape(tile, rows):
    return lanes_of(rows), len(tile) // lanes_of(rows)


@intrinsic(prefer_literal=True)
def empty_sums(context, address, vectors, lanes):
    """A tile of zeros with the dtype of an address; the caller knows its shape."""
    vector = Vector(address.dtype, lanes_of(lanes))
    tile = types.UniTuple(vector, lanes_of(vectors))

    def generate(target, builder, signature, args):
        zero = emit_constant(target.get_value_type(vector), 0.0)
        return cgutils.pack_array(builder, [zero] * len(tile))

    return tile(address, vectors, lanes), generate


@intrinsic(prefer_literal=True)
def add_products(context, tile, rows, steps, a, a_row, a_step, b, b_step):
    """For each of `steps` p: tile[i, j] += a[i * a_row + p * a_step] * b[p * b_step + j * lanes ...]."""
    height, width = _tile_shape(tile, rows)

    def generate(target, builder, signature, args):
        sums, _, _, left, left_row, left_step, right, right_step = args
        vector, index = target.get_value_type(tile.dtype), left_step.type
        vectors = cgutils.unpack_tuple(builder, sums, len(tile))
        for p in range(lanes_of(steps)):
            column = builder.gep(left, [builder.mul(left_step, index(p))])
            row = builder.gep(right, [builder.mul(right_step, index(p))])
            tops = [
                emit_load(builder, builder.gep(row, [index(j * vector.count)]), vector) for j in range(width)
            ]
            for i in range(height):
                scalar = builder.load(builder.gep(column, [builder.mul(left_row, index(i))]))
                factor = emit_broadcast(builder, scalar, vector)
                for j in range(width):
                    at = i * width + j
                    vectors[at] = emit_multiply_add(builder, factor, tops[j], vectors[at])
        return cgutils.pack_array(builder, vectors)

    return tile(tile, rows, steps, a, types.intp, types.intp, b, types.intp), generate


@intrinsic(prefer_literal=True)
def add_product_part(context, tile, a, a_row, b, used_rows, used_columns):
    """One such step for a tile of one vector per row, at the edge: reads nothing outside A and B.

    Rows from used_rows on take the last used row's factor, columns from used_columns on take 0; neither is
    to be stored.
    """

    def generate(target, builder, signature, args):
        sums, left, left_row, right, height, width = args
        index, vector = left_row.type, target.get_value_type(tile.dtype)
        top, last = emit_load_first(builder, right, width, vector), builder.sub(height, index(1))
        vectors = cgutils.unpack_tuple(builder, sums, len(tile))
        for i in range(len(tile)):
            inside = builder.icmp_signed("<", index(i), height)
            place = builder.mul(left_row, builder.select(inside, index(i), last))
            factor = emit_broadcast(builder, builder.load(builder.gep(left, [place])), vector)
            vectors[i] = emit_multiply_add(builder, factor, top, vectors[i])
        return cgutils.pack_array(builder, vectors)

    return tile(tile, a, types.intp, b, types.intp, types.intp), generate


def _each_vector(builder, sums, tile, c, row_elements, height):
    """Yields (row, column, vector, address in C) of a tile."""
    width, vectors = len(tile) // height, cgutils.unpack_tuple(builder, sums, len(tile))
    for i in range(height):
        row = builder.gep(c, [builder.mul(row_elements, row_elements.type(i))])
        for j in range(width):
            yield i, j, vectors[i * width + j], builder.gep(row, [INDEX(j * tile.dtype.lanes)])


@intrinsic(prefer_literal=True)
def add_tile(context, tile, rows, c, c_row):
    """The tile with C's elements added to it."""
    height, _ = _tile_shape(tile, rows)

    def generate(target, builder, signature, args):
        sums, _, address, step = args
        each = _each_vector(builder, sums, tile, address, step, height)
        return cgutils.pack_array(
            builder, [builder.fadd(emit_load(builder, at, value.type), value) for _, _, value, at in each]
        )

    return tile(tile, rows, c, types.intp), generate


@intrinsic(prefer_literal=True)
def store_tile(context, tile, rows, c, c_row):
    """Writes a whole tile to C."""
    height, _ = _tile_shape(tile, rows)

    def generate(target, builder, signature, args):
        sums, _, address, step = args
        for _, _, value, at in _each_vector(builder, sums, tile, address, step, height):
            emit_store(builder, value, at)
        return target.get_dummy_value()

    return types.void(tile, rows, c, types.intp), generate


@intrinsic(prefer_literal=True)
def stream_tile(context, tile, rows, c, c_row):
    """Writes a whole tile past the caches: C is not read first, unlike lines that are written in part.

    In pieces of 16 bytes, gathered into lines by the CPU. Each must be aligned; a tile that is not is stored
    as usual.
    """
    height, _ = _tile_shape(tile, rows)

    def generate(target, builder, signature, args):
        sums, _, address, step = args
        piece = 16 // _element_bytes(address.type.pointee)
        hint, number = builder.module.add_metadata([INDEX(1)]), step.type
        at = builder.ptrtoint(address, number)
        misfit = builder.and_(builder.or_(at, builder.mul(step, number(16 // piece))), number(15))
        values = list(_each_vector(builder, sums, tile, address, step, height))
        with builder.if_else(builder.icmp_unsigned("==", misfit, number(0))) as (fits, otherwise):
            with fits:
                for _, _, value, to in values:
                    for first in range(0, tile.dtype.lanes, piece):
                        part = emit_shuffle(builder, value, value, range(first, first + piece))
                        place = builder.bitcast(builder.gep(to, [INDEX(first)]), part.type.as_pointer())
                        builder.store(part, place, align=16).set_metadata("nontemporal", hint)
            with otherwise:
                for _, _, value, to in values:
                    emit_store(builder, value, to)
        return target.get_dummy_value()

    return types.void(tile, rows, c, types.intp), generate


@njit(**INNER)
def store_part(aside, aside_row, c, c_row, add_to_c, rows, columns):
    """Copies rows and columns of a tile that was stored aside to C; the rest of C is not touched."""
    for i in range(rows):
        for j in range(0, columns, WIDTH):
            value, used = load(forward(aside, i * aside_row + j), WIDTH), min(WIDTH, columns - j)
            to = forward(c, i * c_row + j)
            if add_to_c:
                value = add(value, load_first(to, used, WIDTH))
            store_first(to, value, used)


@intrinsic(prefer_literal=True)
def prefetch_rows(context, c, c_row, rows, elements):
    """Prefetches the lines that hold a tile of C."""

    def generate(target, builder, signature, args):
        for i in range(lanes_of(rows)):
            row = builder.gep(args[0], [builder.mul(args[1], args[1].type(i))])
            emit_prefetch(builder, row, lanes_of(elements))
        return target.get_dummy_value()

    return types.void(c, types.intp, rows, elements), generate
