"""y = A x at the speed of memory: A read once, from front to back, by as many threads as memory can serve.

Idea: each element of A is used once, so only reading A takes time. AT_ONCE rows of A as stored are read side
by side, UNROLL vectors of each at a time; their factors and their sums stay in registers or the nearest cache.

    A by rows:     AT_ONCE dot products share each piece of x; the lanes are added last
    A by columns:  AT_ONCE columns, each scaled by its x, are added to a band of y at once

Threads take bands of BLOCK elements of y. If A is stored by columns, a band is a narrow strip of every column,
which memory delivers slowly. With PARTS above 1 bands may be wide, because threads also take parts of the
columns, each with sums of its own, which a second round of jobs adds up.

Constants in front of this text: WIDTH (lanes of a vector), AT_ONCE, UNROLL, BLOCK, PARTS, PREFETCH (how many
elements ahead lines are prefetched; 0: not at all), THREADS; A_TRANSPOSED (as stored).
Letters: i, j run over M, N.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import functools

STEP = UNROLL * WIDTH
MULTIPLY, ADD_UP = 0, 1
#: Rows are never cut: each is a sum of its own.
SHARES = PARTS if A_TRANSPOSED else 1


@intrinsic(prefer_literal=True)
def no_sums(context, address, vectors, lanes):
    """A number of vectors of zeros."""
    vector = Vector(address.dtype, lanes_of(lanes))
    sums = types.UniTuple(vector, lanes_of(vectors))

    def generate(target, builder, signature, args):
        return cgutils.pack_array(builder, [emit_constant(target.get_value_type(vector), 0.0)] * len(sums))

    return sums(address, vectors, lanes), generate


@intrinsic(prefer_literal=True)
def add_dots(context, sums, rows, a, a_row, x):
    """Row by row: sums[i, u] += a[i, u] * x[u], for the vectors that fill the sums."""
    width = len(sums) // lanes_of(rows)

    def generate(target, builder, signature, args):
        totals, _, address, row, factors = args
        vector, kept = target.get_value_type(sums.dtype), cgutils.unpack_tuple(builder, totals, len(sums))
        places = [INDEX(u * vector.count) for u in range(width)]
        right = [emit_load(builder, builder.gep(factors, [place]), vector) for place in places]
        for at in range(len(sums)):
            start = builder.gep(address, [builder.mul(row, row.type(at // width))])
            left = emit_load(builder, builder.gep(start, [places[at % width]]), vector)
            kept[at] = emit_multiply_add(builder, left, right[at % width], kept[at])
        return cgutils.pack_array(builder, kept)

    return sums(sums, rows, a, types.intp, x), generate


@intrinsic(prefer_literal=True)
def add_scaled(context, y, a, a_row, x, rows, vectors, lanes):
    """y[u] += a[j, u] * x[j] for a number of vectors of y, over a number of rows of A as stored."""
    kind = Vector(y.dtype, lanes_of(lanes))

    def generate(target, builder, signature, args):
        to, address, row, factors = args[:4]
        vector = target.get_value_type(kind)
        scalars = [builder.load(builder.gep(factors, [INDEX(j)])) for j in range(lanes_of(rows))]
        scales = [emit_broadcast(builder, scalar, vector) for scalar in scalars]
        starts = [builder.gep(address, [builder.mul(row, row.type(j))]) for j in range(len(scales))]
        for u in range(lanes_of(vectors)):
            place = INDEX(u * vector.count)
            total = emit_load(builder, builder.gep(to, [place]), vector)
            for start, scale in zip(starts, scales, strict=True):
                piece = emit_load(builder, builder.gep(start, [place]), vector)
                total = emit_multiply_add(builder, piece, scale, total)
            emit_store(builder, total, builder.gep(to, [place]))
        return target.get_dummy_value()

    return types.void(y, a, types.intp, x, rows, vectors, lanes), generate


@intrinsic(prefer_literal=True)
def store_totals(context, sums, rows, y):
    """Writes the sum of each row of sums: y[i] = sum of the lanes of sums[i, :]."""
    height = lanes_of(rows)

    def generate(target, builder, signature, args):
        vectors, width = cgutils.unpack_tuple(builder, args[0], len(sums)), len(sums) // height
        for i in range(height):
            row = functools.reduce(builder.fadd, vectors[i * width : (i + 1) * width])
            builder.store(emit_total(builder, row), builder.gep(args[2], [INDEX(i)]))
        return target.get_dummy_value()

    return types.void(sums, rows, y), generate


def dots(rows):
    """Makes the function that multiplies a number of rows of A by x."""
    vectors = rows * UNROLL

    @njit(**INNER)
    def multiply(a, n, x, y):
        sums, whole = no_sums(y, vectors, WIDTH), n - n % STEP
        for j in range(0, whole, STEP):
            if PREFETCH:
                for i in range(rows):
                    prefetch(forward(a, i * n + j + PREFETCH), STEP)
            sums = add_dots(sums, rows, forward(a, j), n, forward(x, j))
        store_totals(sums, rows, y)
        for i in range(rows):
            for j in range(whole, n):
                y[i] += a[i * n + j] * x[j]

    return multiply


def scaled(rows):
    """Makes the function that adds some rows of A, as stored, times their elements of x to a band of y."""

    @njit(**INNER)
    def multiply(a, a_row, x, y, width):
        whole = width - width % STEP
        for i in range(0, whole, STEP):
            if PREFETCH:
                for j in range(rows):
                    prefetch(forward(a, j * a_row + i + PREFETCH), STEP)
            add_scaled(forward(y, i), forward(a, i), a_row, x, rows, UNROLL, WIDTH)
        for i in range(whole, width):
            for j in range(rows):
                y[i] += a[j * a_row + i] * x[j]

    return multiply


several, single = (scaled(AT_ONCE), scaled(1)) if A_TRANSPOSED else (dots(AT_ONCE), dots(1))


@njit(inline="always")
def _band_by_rows(a, x, y, n, height):
    """y = A x for consecutive rows of A."""
    for i in range(0, height - AT_ONCE + 1, AT_ONCE):
        several(forward(a, i * n), n, x, forward(y, i))
    for i in range(height - height % AT_ONCE, height):
        single(forward(a, i * n), n, x, forward(y, i))


@njit(inline="always")
def _band_by_columns(a, x, y, m, height, columns):
    """y = A x for a band of the rows of A, of which some columns are used."""
    for i in range(height):
        y[i] = 0
    for j in range(0, columns - AT_ONCE + 1, AT_ONCE):
        several(forward(a, j * m), m, forward(x, j), y, height)
    for j in range(columns - columns % AT_ONCE, columns):
        single(forward(a, j * m), m, forward(x, j), y, height)


@njit(inline="always")
def work(crew, member, like):
    """Takes bands, or parts of them."""
    a, x, y = place_at(word(crew, 0), like), place_at(word(crew, 1), like), place_at(word(crew, 2), like)
    m, n, sums = word(crew, 3), word(crew, 4), place_at(word(crew, 5), like)
    bands, columns = -(-m // BLOCK), -(-n // SHARES)
    job = take(crew, MULTIPLY)
    while job < bands * SHARES:
        i, part = job % bands * BLOCK, job // bands
        height = min(BLOCK, m - i)
        if A_TRANSPOSED:
            j = min(part * columns, n)
            to = forward(sums, part * m + i) if SHARES > 1 else forward(y, i)
            _band_by_columns(forward(a, j * m + i), forward(x, j), to, m, height, min(columns, n - j))
        else:
            _band_by_rows(forward(a, i * n), x, forward(y, i), n, height)
        finish(crew, MULTIPLY)
        job = take(crew, MULTIPLY)
    if SHARES > 1:
        wait_until(crew, MULTIPLY, bands * SHARES)
        band = take(crew, ADD_UP)
        while band < bands:
            for i in range(band * BLOCK, min(m, band * BLOCK + BLOCK)):
                total_of_parts = sums[i]
                for part in range(1, SHARES):
                    total_of_parts += sums[part * m + i]
                y[i] = total_of_parts
            finish(crew, ADD_UP)
            band = take(crew, ADD_UP)
    if member == 0:
        wait_until(crew, ADD_UP if SHARES > 1 else MULTIPLY, bands)


def gemv(a, x, y, m, n):
    """Writes y."""
    words = (address_of(a), address_of(x), address_of(y), m, n)
    run_together(THREADS, y.dtype, words, SHARES * m if SHARES > 1 else 0)
