// grouped, warp_mma: tensor cores by warps, tiles copied ahead through shared memory, in 16 bits.
//
// Idea     As tiled finds its group; mma_tile.cuh has the products.
// Layout   a: rows x k, b: groups of k x n or n x k, c: rows x n, dense, offsets: where groups end. Rows of a and b are divisible by
//          VECTOR.
// Source   own work.
// Letters  as in mma_tile.cuh; GROUP ORDER: how blocks walk the tiles (tile_order.cuh)

extern "C" __global__ void __launch_bounds__(THREADS)
grouped(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const int* __restrict__ offsets, SCALAR* __restrict__ c, int rows,
        int n, int k, int groups)
{
    extern __shared__ __align__(128) SCALAR shared[];
    const Cell cell = cell_at(blockIdx.x, rows / BM + groups, (n - 1) / BN + 1);
    const Rows own = rows_of_tile<BM>(offsets, groups, rows, cell.row);
    const int height = own.end - own.first, column = cell.column * BN;
    if (height <= 0) return;
    b += (size_t)own.group * k * n + (B_TRANSPOSED ? (size_t)column * k : column);

    float sum[WM / 16][WN / 8][4] = {};
    sum_tile(sum, shared, a + (size_t)own.first * k, k, b, B_TRANSPOSED ? k : n, height, n - column, k);
    store_tile(sum, c + (size_t)own.first * n, height, column, n);
}
