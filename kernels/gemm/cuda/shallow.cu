// gemm, shallow: k is small, so writing C takes the time, and all other work overlaps with it.
//
// Floor    Bytes: 4 m n written, and 4 k (m + n) read, which is few. Operations: 2 m n k. With 67 TFLOPS against 4.1 TB/s
//          a float is written in the time of 32 products: k up to 16 is bound by writing, 32 by both, 64 and more by
//          arithmetic.
// Idea     The loop over k is too short to hide latency, so the loop runs over tiles of C instead: a block computes every
//          gridDim.x-th tile, and the copies of the next tile's operands are in flight while this one is multiplied and
//          stored. Stores are 128 bits wide and marked as used once. No thread waits for a store, so one further block on
//          the multiprocessor is enough to multiply while this one's stores queue up. Blocks that run at the same time
//          write adjacent tiles: whole rows of C.
// Edges    Rows and columns past the edge read the last row or column again, and are not stored. Elements past k are zero.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; rows of A are divisible by VECTOR_A, rows of B by VECTOR_B.
// Source   own work.
// Letters  TM TN            elements of C of a thread
//          LANES_M          lanes of a warp down C; 32 / LANES_M lie along its rows
//          WARPS_M WARPS_N  warps of a block, down C and along its rows
//          BK STAGES        depth of a tile of the operands, and how many of them shared memory holds
//          BLOCKS           that go through all tiles; 0: a block for each tile
//          TURN             read or copy: how an operand whose neighbours are neighbours in k is turned, by reading several
//                           k at a time from shared memory (registers) or by copying it element by element (copies)
//          ORDER            of a step's products: rows, or snake (every second row of a thread's sums backward)
//          VECTOR_A VECTOR_B  elements of a copy of A and of B
//          STREAM           stores are marked as used once
//          BLOCKS_PER_SM    blocks that must fit into a multiprocessor: bounds the registers

constexpr int LANES_N = 32 / LANES_M;
constexpr int BM = WARPS_M * LANES_M * TM, BN = WARPS_N * LANES_N * TN;
constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr bool TURNED = TURN == TURN_copy;
constexpr int KS = TURNED || (A_TRANSPOSED && !B_TRANSPOSED) ? 1 : GROUPED;  // k that are read together

using Rows = AsyncOperand<BM, TM, LANES_M, !A_TRANSPOSED, TURNED, VECTOR_A, THREADS, KS>;
using Columns = AsyncOperand<BN, TN, LANES_N, B_TRANSPOSED, TURNED, VECTOR_B, THREADS, KS>;
constexpr int STAGE = Rows::SIZE + Columns::SIZE;

template <int WIDTH>
__device__ __forceinline__ void put(SCALAR* to, const Pack<WIDTH>& pack)
{
    using Type = Access<WIDTH * sizeof(SCALAR)>;
    if constexpr (STREAM) __stcs((Type*)to, *(const Type*)&pack);
    else *(Type*)to = *(const Type*)&pack;
}

// Stores a thread's sums, of which the first goes `to` there; `rows` and `columns` are left of C from there on.
template <int WIDTH, bool INSIDE>
__device__ void write(const SCALAR (&sum)[TM][TN], SCALAR* to, size_t line, int rows, int columns)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        if (!INSIDE && Rows::place(i) >= rows) continue;
#pragma unroll
        for (int j = 0; j < TN; j += WIDTH) {
            if (!INSIDE && Columns::place(j) >= columns) continue;
            Pack<WIDTH> pack;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) pack.element[e] = sum[i][j + e];
            put(to + Rows::place(i) * line + Columns::place(j), pack);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k)
{
    extern __shared__ __align__(16) SCALAR shared[];

    const int warp = threadIdx.x / 32, warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);
    const int read_a = Rows::reads_from(warp_m, lane_m), read_b = Columns::reads_from(warp_n, lane_n);

    const unsigned tiles_n = ((unsigned)n - 1) / BN + 1, tiles = (((unsigned)m - 1) / BM + 1) * tiles_n;
    const int pieces = (k - 1) / BK + 1;  // of a tile's operands, along k
    const int steps = (int)((tiles - blockIdx.x - 1) / gridDim.x + 1) * pieces;

    Rows from_a;
    Columns from_b;
    unsigned tile_to_start = blockIdx.x, tile = blockIdx.x;
    int to_start = steps, piece_to_start = 0, piece = 0;
    auto start_next = [&](SCALAR* stage) {
        if (to_start > 0) {
            if (piece_to_start == 0) {
                from_a.set_tile(a, tile_to_start / tiles_n * BM, m, 0, BK, k);
                from_b.set_tile(b, tile_to_start % tiles_n * BN, n, 0, BK, k);
                tile_to_start += gridDim.x;
            }
            from_a.template start<false>(stage, k - piece_to_start * BK);
            from_b.template start<false>(stage + Rows::SIZE, k - piece_to_start * BK);
            piece_to_start = piece_to_start + 1 == pieces ? 0 : piece_to_start + 1;
            --to_start;
        }
        close_group();  // empty at the end, so that waiting stays the same
    };

    SCALAR sum[TM][TN] = {};
    int now = 0, fill = 0;
    for (int step = 1 - STAGES; step < steps; ++step) {
        if (step >= 0) {
            await_group<STAGES - 2>();
            __syncthreads();
        }
        start_next(shared + fill * STAGE);
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        if (step < 0) continue;
        const SCALAR* stage = shared + now * STAGE;
        multiply<Rows, Columns, KS, ORDER == ORDER_snake>(sum, stage + read_a, stage + Rows::SIZE + read_b);
        now = now + 1 == STAGES ? 0 : now + 1;
        if (++piece < pieces) continue;

        const unsigned first_row = tile / tiles_n * BM, first_column = tile % tiles_n * BN;
        const unsigned row = first_row + Rows::first_of(warp_m, lane_m);
        const unsigned column = first_column + Columns::first_of(warp_n, lane_n);
        SCALAR* const to = c + (size_t)row * n + column;
        if (n % GROUPED == 0 && first_row + BM <= (unsigned)m && first_column + BN <= (unsigned)n)
            write<GROUPED, true>(sum, to, n, 0, 0);
        else
            write<1, false>(sum, to, n, (int)(m - row), (int)(n - column));
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sum[i][j] = 0;
        piece = 0;
        tile += gridDim.x;
    }
}
