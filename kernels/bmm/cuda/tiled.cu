// bmm, tiled: a block computes a BM x BN tile of MATRICES products, a thread TM x TN elements of one in registers.
//
// Idea     What gemm's register_tiled does for one product: tiles pass through two shared buffers, and the next tile is in flight
//          while one is multiplied. The batch is one more dimension of the grid. For small matrices a block takes several, each by
//          warps of its own.
// Edges    Rows and columns past the edge read the last row or column again, matrices past the batch the last one; none is stored.
//          The remainder of k over BK is done first, padded with zeros.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense; of A (ONE_A) or B (ONE_B) maybe one
//          matrix for all. Rows of A and B are divisible by VECTOR.
// Source   own work.
// Letters  as in register_tiled; MATRICES products of a block

extern "C" __global__ void __launch_bounds__(THREADS * MATRICES, BLOCKS_PER_SM)
bmm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int batch, int m, int n, int k)
{
    extern __shared__ __align__(16) SCALAR all_shared[];
    SCALAR* const shared = all_shared + threadIdx.y * (2 * STAGE);

    const unsigned tiles = ((m - 1) / BM + 1) * ((n - 1) / BN + 1), number = blockIdx.x / tiles * MATRICES + threadIdx.y;
    const size_t matrix = min(number, batch - 1u);
    unsigned first_row, first_column;
    place_tile(blockIdx.x % tiles, m, n, first_row, first_column);

    int thread_row, thread_column;
    place_thread(thread_row, thread_column);

    OperandA from_a;
    OperandB from_b;
    from_a.set_tile(a + (ONE_A ? 0 : matrix * m * k), first_row, m, k);
    from_b.set_tile(b + (ONE_B ? 0 : matrix * k * n), first_column, n, k);

    int tiles_left = (k - 1) / BK;
    from_a.fetch_first(k - tiles_left * BK);
    from_b.fetch_first(k - tiles_left * BK);

    SCALAR sum[TM][TN] = {};
    for (int stage = 0;; stage = STAGE - stage, --tiles_left) {
        from_a.store(shared + stage);
        from_b.store(shared + stage + OperandA::SIZE);
        __syncthreads();
        if (tiles_left > 0) {
            from_a.fetch();
            from_b.fetch();
        }
        const SCALAR* const tile_a = shared + stage + thread_row;
        const SCALAR* const tile_b = shared + stage + OperandA::SIZE + thread_column;
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            SCALAR part_a[TM], part_b[TN];
            OperandA::read<LANES_M>(part_a, tile_a, p);
            OperandB::read<LANES_N>(part_b, tile_b, p);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += part_a[i] * part_b[j];
        }
        if (tiles_left == 0) break;
    }

    if (number < batch)
        write_tile(sum, c + matrix * m * n, first_row, first_column, thread_row, thread_column, m, n);
}
