// gemm, small: the time is a few microseconds of latency, so a warp requests all its data at once.
//
// Floor    512^3 is 0.27 GFLOP: 4 us of the whole device's arithmetic; 256^3 is 0.5 us, 64^3 nothing. Bytes: 3 MB at 512^3 are
//          0.7 us. A launch and one way to memory and back are 2 to 3 us, and every further wait adds to that.
// Idea     Tiles are small, so that all multiprocessors have one, and a tile belongs to WARPS_K warps that share its k: each
//          warp computes all of the tile for its own steps of k. At its start a warp requests all that it needs
//          (PIECES tiles of BK steps), and multiplies each tile that has arrived while the others are in flight. No warp
//          waits for another until the end; then the warps' sums are added in shared memory, in the order of k.
//          If k is longer than that, warps repeat it.
// Edges    Rows and columns past the edge read the last row or column again, and are not stored. Elements past k are zero.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; rows of A are divisible by VECTOR_A, rows of B by VECTOR_B.
// Source   own work.
// Letters  TM TN      elements of C of a thread
//          LANES_M    lanes of a warp down C; 32 / LANES_M lie along its rows
//          WARPS_K    warps of a block, which share k
//          BK PIECES  steps of k of a tile, tiles that a warp requests at once
//          TURN       read or copy: how an operand whose neighbours are neighbours in k is turned, by reading several k at
//                     a time from shared memory (registers) or by copying it element by element (copies)
//          VECTOR_A VECTOR_B  elements of a copy of A and of B

constexpr int LANES_N = 32 / LANES_M;
constexpr int BM = LANES_M * TM, BN = LANES_N * TN;
constexpr int THREADS = 32 * WARPS_K;
constexpr bool TURNED = TURN == TURN_copy;
constexpr int KS = TURNED || (A_TRANSPOSED && !B_TRANSPOSED) ? 1 : GROUPED;  // k that are read together
constexpr int K_STEP = WARPS_K * BK;  // from a tile of a warp to its next

using Rows = AsyncOperand<BM, TM, LANES_M, !A_TRANSPOSED, TURNED, VECTOR_A, 32, KS>;
using Columns = AsyncOperand<BN, TN, LANES_N, B_TRANSPOSED, TURNED, VECTOR_B, 32, KS>;
constexpr int STAGE = Rows::SIZE + Columns::SIZE;
constexpr int PADDED = BN + GROUPED;  // a longer row spreads threads over the banks

// Waits until at most `left` groups of this thread's copies are on their way.
__device__ __forceinline__ void await_all_but(int left)
{
    switch (left) {
        case 0: await_group<0>(); break;
        case 1: await_group<1>(); break;
        case 2: await_group<2>(); break;
        case 3: await_group<3>(); break;
        case 4: await_group<4>(); break;
        case 5: await_group<5>(); break;
        case 6: await_group<6>(); break;
        default: await_group<7>();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k)
{
    extern __shared__ __align__(16) SCALAR shared[];

    const unsigned first_row = blockIdx.y * BM, first_column = blockIdx.x * BN;
    const int number = threadIdx.x / 32;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);

    SCALAR* const tiles = shared + number * (PIECES * STAGE);
    const int read_a = Rows::reads_from(0, lane_m), read_b = Columns::reads_from(0, lane_n) + Rows::SIZE;

    Rows from_a;
    Columns from_b;
    from_a.set_tile(a, first_row, m, number * BK, K_STEP, k);
    from_b.set_tile(b, first_column, n, number * BK, K_STEP, k);

    // Loops are not unrolled: code that runs once or twice takes longer to fetch than to run.
    SCALAR sum[TM][TN] = {};
    for (int to_start = k - number * BK, depth = to_start; depth > 0;) {
        __syncwarp();  // all lanes have read what will be written over
#pragma unroll 1
        for (int piece = 0; piece < PIECES; ++piece, to_start -= K_STEP) {
            if (to_start > 0) {
                from_a.template start<false>(tiles + piece * STAGE, to_start);
                from_b.template start<false>(tiles + piece * STAGE + Rows::SIZE, to_start);
            }
            close_group();
        }
#pragma unroll 1
        for (int piece = 0; piece < PIECES && depth > 0; ++piece, depth -= K_STEP) {
            await_all_but(PIECES - 1 - piece);
            __syncwarp();
            const SCALAR* const tile = tiles + piece * STAGE;
            multiply<Rows, Columns, KS, false>(sum, tile + read_a, tile + read_b);
        }
    }

    __syncthreads();
    const int row = Rows::first_of(0, lane_m), column = Columns::first_of(0, lane_n);
    spill_partials<Rows, Columns, PADDED, false>(shared + number * (BM * PADDED), sum, row, column);
    __syncthreads();
    SCALAR* const corner = c + (size_t)first_row * n + first_column;
    const unsigned rows = m - first_row, columns = n - first_column;
#pragma unroll 1
    for (unsigned x = threadIdx.x * GROUPED; x < BM * BN; x += THREADS * GROUPED) {
        const unsigned at_row = x / BN, at_column = x % BN;
        if (at_row >= rows || at_column >= columns) continue;
        const Pack<GROUPED> sums = total<GROUPED>(WARPS_K, shared + at_row * PADDED + at_column, BM * PADDED);
        SCALAR* const to = corner + (size_t)at_row * n + at_column;
        if (n % GROUPED == 0) {
            *(Pack<GROUPED>*)to = sums;
        } else {
#pragma unroll
            for (int e = 0; e < GROUPED; ++e)
                if (at_column + e < columns) to[e] = sums.element[e];
        }
    }
}
