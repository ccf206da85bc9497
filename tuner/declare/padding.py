"""CUDA source that copies rows between arrays of different row lengths; a run of a padded kernel includes it.

The driver's own two-dimensional copy is slow, far below memory bandwidth, if rows are not aligned to 16 bytes
(on an H200, rows of 3001 floats took half as long as their product).
"""

from __future__ import annotations

#: Threads of a block, along a row; and rows that each thread copies, all in flight at once.
COPY_THREADS, COPY_ROWS = 256, 8
#: Largest number of blocks down the rows: the limit of a grid's second dimension. Blocks loop over further
#: rows.
COPY_BLOCKS_DOWN = 65_535

_BODY = f"""
{{
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (long long first = blockIdx.y * {COPY_ROWS}LL; first < rows; first += gridDim.y * {COPY_ROWS}LL)
#pragma unroll
        for (long long row = first; row < first + {COPY_ROWS}; ++row)
            if (row < rows) to[row * to_row + column] = from[row * from_row + column];
}}
"""
#: For any element type, as part of a C++ source.
COPY_ROWS_TEMPLATE = f"""\
// Copies `columns` elements of each row; `to_row` and `from_row` elements lie between the starts of two rows.
template <typename T>
__global__ void copy_rows(T* to, long long to_row, const T* from, long long from_row, long long rows,
                          long long columns){_BODY}"""
#: Type that is copied for an element of this many bytes.
UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def copy_rows_source(element_bytes: int) -> str:
    """Returns a source with one kernel, ``copy_rows``, for elements of this size in bytes."""
    kind = UNSIGNED[element_bytes]
    return (
        f'extern "C" __global__ void copy_rows({kind}* __restrict__ to, long long to_row, '
        f"const {kind}* __restrict__ from, long long from_row, long long rows, long long columns){_BODY}"
    )


def copy_rows_grid(rows: int, columns: int) -> tuple[int, int]:
    """Returns the blocks along a row and down the rows."""
    return -(-columns // COPY_THREADS), min(-(-rows // COPY_ROWS), COPY_BLOCKS_DOWN)
