// Copies `columns` elements of each row; `to_row` and `from_row` elements lie between the starts of two rows.
// Blocks are of 256 threads along a row. Each thread copies 8 rows, all in flight at once; a grid of fewer blocks
// loops over further rows.
template <typename T>
__device__ void copy_piece(T* __restrict__ to, long long to_row, const T* __restrict__ from, long long from_row,
                           long long rows, long long columns) {
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (column >= columns) return;
    for (long long first = blockIdx.y * 8LL; first < rows; first += gridDim.y * 8LL)
#pragma unroll
        for (long long row = first; row < first + 8; ++row)
            if (row < rows) to[row * to_row + column] = from[row * from_row + column];
}
template <typename T>
__global__ void copy_rows(T* to, long long to_row, const T* from, long long from_row, long long rows,
                          long long columns) {
    copy_piece(to, to_row, from, from_row, rows, columns);
}
