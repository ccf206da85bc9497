// bmm, small_matrices: a block takes MATRICES products at once, each with threads of its own.
//
// Idea     A matrix of 32 x 32 is too small for a block, and a launch for each is too much. Tiles of all MATRICES products pass
//          through shared memory together, so that many reads are in flight; a thread keeps TM x TN sums in registers.
// Edges    As products.cuh has them. Past the batch the last product is computed again, and not stored.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense; of A (ONE_A) or B (ONE_B) maybe one
//          matrix for all. Rows of A and B are divisible by VECTOR.
// Source   own work, after half_tiled of gemm.
// Letters  BM BN BK   tile of a product, and terms of a step
//          TM TN      elements of a thread
//          MATRICES   products of a block
//          VECTOR     elements of one global access

extern "C" __global__ void __launch_bounds__(GROUP * MATRICES)
bmm(const STORED* __restrict__ a, const STORED* __restrict__ b, STORED* __restrict__ c, int batch, int m, int n, int k)
{
    __shared__ SCALAR left[MATRICES][BK][BM + 1], right[MATRICES][BK][BN + 1];
    const int tiles_n = (n - 1) / BN + 1, tiles = ((m - 1) / BM + 1) * tiles_n, tile = blockIdx.x % tiles;
    const int row = tile / tiles_n * BM, column = tile % tiles_n * BN;
    const int own = threadIdx.x / GROUP, number = blockIdx.x / tiles * MATRICES + own;
    const size_t matrix = min(number, batch - 1);

    SCALAR sum[TM][TN] = {};
    sum_products(sum, left[own], right[own], a + (ONE_A ? 0 : matrix * m * k), b + (ONE_B ? 0 : matrix * k * n),
                 row, column, m, n, k);
    if (number < batch) store_sums(sum, c + matrix * m * n, row, column, m, n);
}
