// grouped, tiled: a block computes a BM x BN tile of one group's rows of C on ordinary cores, in any dtype.
//
// Idea     The grid has as many blocks as the most tiles that groups of so many rows in all can have; each finds its group from the
//          offsets (groups.cuh), and ends at once where none is left for it. Tiles pass through shared memory.
// Edges    As products.cuh has them: a group's last row is as C's.
// Layout   a: rows x k, b: groups of k x n or n x k, c: rows x n, dense, offsets: where groups end. Rows of A and B are divisible by
//          VECTOR.
// Source   own work, after half_tiled of gemm.
// Letters  BM BN BK   tile of C, and terms of a step
//          TM TN      elements of a thread
//          VECTOR     elements of one global access

extern "C" __global__ void __launch_bounds__(GROUP)
grouped(const STORED* __restrict__ a, const STORED* __restrict__ b, const int* __restrict__ offsets, STORED* __restrict__ c, int rows,
        int n, int k, int groups)
{
    __shared__ SCALAR left[BK][BM + 1], right[BK][BN + 1];
    const int tiles_n = (n - 1) / BN + 1, column = blockIdx.x % tiles_n * BN;
    const Rows own = rows_of_tile<BM>(offsets, groups, rows, blockIdx.x / tiles_n);
    const int height = own.end - own.first;
    if (height <= 0) return;

    SCALAR sum[TM][TN] = {};
    sum_products(sum, left, right, a + (size_t)own.first * k, b + (size_t)own.group * k * n, 0, column, height, n, k);
    store_sums(sum, c + (size_t)own.first * n, 0, column, height, n);
}
