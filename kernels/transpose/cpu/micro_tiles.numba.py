"""B[j, i] = A[i, j] in micro-tiles of WIDTH x WIDTH elements that are turned in vector registers.

Idea: WIDTH rows of a micro-tile are loaded as vectors, turned by shuffles alone (log2(WIDTH) rounds, in each
of which neighbouring vectors exchange halves), and stored as vectors. A block of micro-tiles stays in the
cache, so that whole lines are read and written; with STREAM the stores go round the cache, which then need not
read the lines of B before they are overwritten. Such stores must be aligned, so the first rows of A
are done apart, up to where rows of B are aligned. Blocks are shared out to threads in bands.

Constants in front of this text: WIDTH (elements of a vector), ROWS and COLUMNS (elements of a block of A),
STREAM, THREADS.
Letters: i, j run over M, N; i0, j0 are where a block begins.
"""

# ruff: noqa: ANN001, ANN201, ANN202, F821
import numpy as np
from numba import njit


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
            # Vectors that lie `half` apart exchange every other group of `half` lanes.
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


@njit(cache=True, nogil=True)
def _one_by_one(a, b, top, bottom, left, right):
    for j in range(left, right):
        for i in range(top, bottom):
            b[j, i] = a[i, j]


@njit(nogil=True)
def _block(a, b, top, bottom, left, right):
    n, m = a.shape[1], a.shape[0]
    whole_bottom = top + (bottom - top) // WIDTH * WIDTH
    whole_right = left + (right - left) // WIDTH * WIDTH
    for j in range(left, whole_right, WIDTH):
        for i in range(top, whole_bottom, WIDTH):
            turn(pointer(a, i * n + j), n, pointer(b, j * m + i), m, WIDTH)
    _one_by_one(a, b, whole_bottom, bottom, left, right)
    _one_by_one(a, b, top, whole_bottom, whole_right, right)


@njit(cache=True, nogil=True)
def _blocks(a, b, start, first, last):
    """Blocks of the rows from start on, numbered along the rows of B: one thread writes what lies together."""
    m, n = a.shape
    down = (m - start + ROWS - 1) // ROWS
    for block in range(first, last):
        top, left = start + block % down * ROWS, block // down * COLUMNS
        _block(a, b, top, min(top + ROWS, m), left, min(left + COLUMNS, n))


def transpose(a, b, m, n):
    """Writes b."""
    # Elements are only moved: whole numbers travel as floats of the same size.
    real = np.float32 if a.itemsize == 4 else np.float64
    a, b = a.view(real), b.view(real)
    start = min(m, -b.ctypes.data % (WIDTH * b.itemsize) // b.itemsize) if STREAM else 0
    if start:
        _one_by_one(a, b, 0, start, 0, n)
    blocks = -(-(m - start) // ROWS) * -(-n // COLUMNS)
    parts = max(1, min(THREADS, blocks))
    bounds = [blocks * part // parts for part in range(parts + 1)]
    run_together(_blocks, [(a, b, start, bounds[part], bounds[part + 1]) for part in range(parts)])
