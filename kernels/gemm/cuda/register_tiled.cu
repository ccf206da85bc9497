// gemm, register_tiled: a block computes a BM x BN tile of C, a thread TM x TN elements of it in registers.
//
// Idea     Tiles of op(A) and op(B), BK deep, pass through shared memory, so that global memory is read
//          m*n*k*(1/BM + 1/BN) times instead of 2*m*n*k; each value read from shared memory then serves TM or TN products.
//          There are two shared buffers. The next tile is loaded from global memory into registers while this one is multiplied,
//          and stored into the other buffer before the last step. So one barrier per tile is enough, and the fragments
//          of the next tile's first step are in flight while the last step multiplies.
// Edges    Rows and columns past the edge read the last row or column again (their results are not stored), so
//          no load in the loop is conditional. The remainder of k over BK is done first, padded with zeros.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; rows of A and B divisible by VECTOR, arrays aligned to VECTOR elements.
//          In shared memory both tiles have k outermost: [BK][BM] and [BK][BN].
// Source   own work after the public ladders of SGEMM kernels (thread tiles, warp tiles, double buffering).
// Letters  BM BN BK       tile of a block
//          TM TN          tile of a thread, in groups of GROUPED elements that lie LANES * GROUPED apart
//          LANES_M        lanes of a warp down C; 32 / LANES_M lanes lie along its rows
//          VECTOR         elements of one global access
//          SWATH          block rows that are walked together, column by column, so that blocks share L2
//          BLOCKS_PER_SM  blocks that must fit into a multiprocessor: bounds the registers

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, EPILOGUE_OPERANDS SCALAR* __restrict__ c, int m,
     int n, int k EPILOGUE_FACTORS)
{
    extern __shared__ __align__(16) SCALAR shared[];

    unsigned first_row, first_column;
    place_tile(blockIdx.x, m, n, first_row, first_column);

    int thread_row, thread_column;
    place_thread(thread_row, thread_column);

    OperandA from_a;
    OperandB from_b;
    from_a.set_tile(a, first_row, m, k);
    from_b.set_tile(b, first_column, n, k);

    int tiles_left = (k - 1) / BK;
    const int remainder = k - tiles_left * BK;
    from_a.fetch_first(remainder);
    from_b.fetch_first(remainder);
    from_a.store(shared);
    from_b.store(shared + OperandA::SIZE);
    __syncthreads();

    SCALAR sum[TM][TN] = {};
    SCALAR part_a[2][TM], part_b[2][TN];
    int stage = 0;
    const SCALAR* tile_a = shared + thread_row;
    const SCALAR* tile_b = shared + OperandA::SIZE + thread_column;
    OperandA::read<LANES_M>(part_a[0], tile_a, 0);
    OperandB::read<LANES_N>(part_b[0], tile_b, 0);

    for (;; --tiles_left) {
        if (tiles_left > 0) {
            from_a.fetch();
            from_b.fetch();
        }
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            const int now = p % 2, next = 1 - now;
            if (p + 1 < BK) {
                OperandA::read<LANES_M>(part_a[next], tile_a, p + 1);
                OperandB::read<LANES_N>(part_b[next], tile_b, p + 1);
            } else if (tiles_left > 0) {
                stage = STAGE - stage;
                from_a.store(shared + stage);
                from_b.store(shared + stage + OperandA::SIZE);
                __syncthreads();
                tile_a = shared + stage + thread_row;
                tile_b = shared + stage + OperandA::SIZE + thread_column;
                OperandA::read<LANES_M>(part_a[next], tile_a, 0);
                OperandB::read<LANES_N>(part_b[next], tile_b, 0);
            }
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += part_a[now][i] * part_b[now][j];
        }
        if (tiles_left == 0) break;
    }

    write_tile(sum, c, first_row, first_column, thread_row, thread_column, m, n EPILOGUE_OF_KERNEL);
}
