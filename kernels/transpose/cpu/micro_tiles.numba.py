"""B[j, i] = A[i, j] in micro-tiles of WIDTH x WIDTH elements that are turned in vector registers.

Idea: WIDTH rows of a micro-tile are loaded as vectors, turned by shuffles alone (log2(WIDTH) rounds, in each
of which neighbouring vectors exchange halves), and stored as vectors. A block of micro-tiles stays in the
cache, so that whole lines are read and written; with STREAM the stores bypass the cache, which then need not
read the lines of B before they are overwritten. Such stores must be aligned, so the first rows of A
are done apart, until rows of B are aligned. Threads take bands of blocks.

A micro-tile as wide as a cache line uses up each line that it reads and fills each that it writes. Then a block
may be as low as a micro-tile and as wide as A, which is read along its rows.

Constants in front of this text: WIDTH (elements of a vector), ROWS and COLUMNS (elements of a block of A),
STREAM, PREFETCH (how many elements ahead lines of A are prefetched; 0: not at all), THREADS.
Letters: i, j run over M, N; i0, j0 are where a block begins.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821


@intrinsic(prefer_literal=True)
def turn(context, source, source_stride, target, target_stride, lanes):
    """Writes the lanes x lanes elements at source, transposed, to target; strides are in elements."""
    count = lanes_of(lanes)

    def generate(compiler, builder, signature, args):
        element = compiler.get_value_type(signature.args[0].dtype)
        kind = ir.VectorType(element, count)
        from_, from_stride, to, to_stride, _ = args
        stride_type = from_stride.type
        rows = []
        for row in range(count):
            offset = builder.mul(from_stride, ir.Constant(stride_type, row))
            rows.append(emit_load(builder, builder.gep(from_, [offset]), kind))
        half = 1
        while half < count:
            # Vectors `half` apart exchange every other group of `half` lanes.
            low = [lane if lane // half % 2 == 0 else count + lane - half for lane in range(count)]
            high = [lane + half if lane // half % 2 == 0 else count + lane for lane in range(count)]
            for row in range(count):
                if row // half % 2 == 0:
                    upper, lower = rows[row], rows[row + half]
                    rows[row] = emit_shuffle(builder, upper, lower, low)
                    rows[row + half] = emit_shuffle(builder, upper, lower, high)
            half *= 2
        for row in range(count):
            offset = builder.mul(to_stride, ir.Constant(stride_type, row))
            address = builder.bitcast(builder.gep(to, [offset]), kind.as_pointer())
            written = builder.store(rows[row], address, align=count * _element_bytes(element))
            if not STREAM:
                written.align = _element_bytes(element)
            else:
                written.set_metadata("nontemporal", builder.module.add_metadata([INDEX(1)]))
        return compiler.get_dummy_value()

    return types.void(source, source_stride, target, target_stride, lanes), generate


@njit(**INNER)
def _one_by_one(a, b, m, n, top, bottom, left, right):
    for j in range(left, right):
        for i in range(top, bottom):
            b[j * m + i] = a[i * n + j]


@njit(inline="always")
def work(crew, member, like):
    """Takes blocks, numbered along the rows of B, so that threads write adjacent blocks in turn."""
    a, b = place_at(word(crew, 0), like), place_at(word(crew, 1), like)
    m, n, start = word(crew, 2), word(crew, 3), word(crew, 4)
    down, across = (m - start + ROWS - 1) // ROWS, (n + COLUMNS - 1) // COLUMNS
    jobs = down * across
    if member == 0:
        _one_by_one(a, b, m, n, 0, start, 0, n)
    block = take(crew, 0)
    while block < jobs:
        top, left = start + block % down * ROWS, block // down * COLUMNS
        bottom, right = min(top + ROWS, m), min(left + COLUMNS, n)
        whole_bottom, whole_right = (
            top + (bottom - top) // WIDTH * WIDTH,
            left + (right - left) // WIDTH * WIDTH,
        )
        for j in range(left, whole_right, WIDTH):
            for i in range(top, whole_bottom, WIDTH):
                if PREFETCH:
                    for row in range(i, i + WIDTH):
                        prefetch(forward(a, row * n + j + PREFETCH), WIDTH)
                turn(forward(a, i * n + j), n, forward(b, j * m + i), m, WIDTH)
        _one_by_one(a, b, m, n, whole_bottom, bottom, left, right)
        _one_by_one(a, b, m, n, top, whole_bottom, whole_right, right)
        finish(crew, 0)
        block = take(crew, 0)
    if member == 0:
        wait_until(crew, 0, jobs)


def transpose(a, b, m, n):
    """Writes b."""
    # Elements are only moved: whole numbers are moved as floats of the same size.
    real = np.float32 if a.itemsize == 4 else np.float64
    start = min(m, -address_of(b) % (WIDTH * b.itemsize) // b.itemsize) if STREAM else 0
    run_together(THREADS, np.dtype(real), (address_of(a), address_of(b), m, n, start))
