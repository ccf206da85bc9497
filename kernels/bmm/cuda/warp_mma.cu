// bmm, warp_mma: tensor cores by warps, tiles copied ahead through shared memory, in 16 bits.
//
// Idea     The batch is one more dimension of the grid; mma_tile.cuh has the products.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense; of A (ONE_A) or B (ONE_B) maybe one
//          matrix for all. Rows of A and B are divisible by VECTOR.
// Source   own work.
// Letters  as in mma_tile.cuh

extern "C" __global__ void __launch_bounds__(THREADS)
bmm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int batch, int m, int n, int k)
{
    extern __shared__ __align__(128) SCALAR shared[];
    const int tiles_n = (n - 1) / BN + 1, tiles = ((m - 1) / BM + 1) * tiles_n, tile = blockIdx.x % tiles;
    const int row = tile / tiles_n * BM, column = tile % tiles_n * BN;
    const size_t matrix = blockIdx.x / tiles;
    a += (ONE_A ? 0 : matrix * m * k) + (A_TRANSPOSED ? row : (size_t)row * k);
    b += (ONE_B ? 0 : matrix * k * n) + (B_TRANSPOSED ? (size_t)column * k : column);

    float sum[WM / 16][WN / 8][4] = {};
    sum_tile(sum, shared, a, A_TRANSPOSED ? m : k, b, B_TRANSPOSED ? k : n, m - row, n - column, k);
    store_tile(sum, c + (matrix * m + row) * n, m - row, column, n);
}
