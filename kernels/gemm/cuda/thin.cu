// gemm, thin: C is thin (m or n small), so the large operand is read once, at the speed of memory.
//
// Floor    The wide operand is W x K, the thin one T x K. Bytes: 4 W K (the rest is small beside it). Operations: 2 T W K.
//          With 67 TFLOPS against 4.15 TB/s a float may be used in 32 products before arithmetic takes longer than
//          reading: T up to 16 is bound by memory, 32 by both, 64 and 128 by arithmetic.
// Idea     The full speed of memory needs 40 kilobytes in flight per multiprocessor: every group of warps keeps STAGES - 1
//          tiles of asynchronous copies in flight. C has too few tiles to keep all multiprocessors busy, so K is split
//          among WARPS_K groups of warps, each with tiles of its own, and among SPLIT_K blocks. Sums of groups are added
//          in shared memory; sums of blocks in a workspace, by the block that arrives last. Both orders are fixed, so
//          every run gives the same sums. A group of one warp waits for no other until the end.
//          A thread's sums are TT x TW of C: a value read from shared memory serves TT or TW products.
// Error    If registers allow, products of a tile are summed before they join the sum, so that chains are short.
// Turning  An operand whose neighbours are neighbours in k may stay so in shared memory and be read several k at a time,
//          which costs registers; or be turned by copying it element by element, which costs copies. TURN selects one.
// Edges    Rows past an edge of C read its last row again, and are not stored. Elements past K are zero.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; the wide operand's stored rows are divisible by VECTOR_W, the thin one's by VECTOR_T.
// Source   own work.
// Letters  THIN            the thin side of C: m (B is wide) or n (A is wide). Below, t counts along it and w across it
//          TT TW           elements of C of a thread
//          LANES_T         lanes of a warp along t; 32 / LANES_T lie along w
//          WARPS_T WARPS_W warps of a group, along t and w
//          WARPS_K         groups of a block, which share K
//          SPLIT_K         blocks that share K
//          BK STAGES       depth of a tile, tiles of a group in shared memory
//          TURN            read or copy: how an operand along k is turned
//          ORDER           of a step's products: rows, or snake (every second row of a thread's sums backward)
//          VECTOR_W VECTOR_T  elements of a copy of the wide and the thin operand
//          BLOCKS_PER_SM   blocks that must fit into a multiprocessor: bounds the registers

constexpr bool THIN_IS_M = THIN == THIN_m;
constexpr bool WIDE_ALONG_K = THIN_IS_M ? B_TRANSPOSED : !A_TRANSPOSED;
constexpr bool THIN_ALONG_K = THIN_IS_M ? !A_TRANSPOSED : B_TRANSPOSED;
constexpr int LANES_W = 32 / LANES_T;
constexpr int BT = WARPS_T * LANES_T * TT, BW = WARPS_W * LANES_W * TW;
constexpr int GROUP = 32 * WARPS_T * WARPS_W;
constexpr int THREADS = GROUP * WARPS_K;
constexpr bool TURNED = TURN == TURN_copy;
constexpr int KS = !TURNED && (WIDE_ALONG_K || THIN_ALONG_K) ? GROUPED : 1;  // k that are read together

using Wide = AsyncOperand<BW, TW, LANES_W, WIDE_ALONG_K, TURNED, VECTOR_W, GROUP, KS>;
using Thin = AsyncOperand<BT, TT, LANES_T, THIN_ALONG_K, TURNED, VECTOR_T, GROUP, KS>;
constexpr int STAGE = Wide::SIZE + Thin::SIZE;
constexpr bool SHORT_CHAINS = TT * TW <= 8;  // beyond, registers are short and groups many

// Sums of a group in shared memory, in C's order. A longer row spreads threads over the banks.
constexpr int INNER = THIN_IS_M ? BW : BT;
constexpr int PADDED = INNER + (THIN_IS_M ? GROUPED : 1);
constexpr int SUMS = BT * BW / INNER * PADDED;

__device__ void sync_group()
{
    if constexpr (GROUP == 32) __syncwarp();
    else __syncthreads();
}

#if SPLIT_K > 1
// True in the block that arrives last of those that share a tile of C; `counter` is then zero again.
__device__ bool arrives_last(unsigned* counter)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicInc(counter, SPLIT_K - 1) == SPLIT_K - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k
#if SPLIT_K > 1
     , unsigned char* workspace  // a counter for each tile of C, then from a multiple of 256 bytes on sums of its blocks
#endif
)
{
    extern __shared__ __align__(16) SCALAR shared[];

    const unsigned count_t = THIN_IS_M ? m : n, count_w = THIN_IS_M ? n : m;
    const unsigned tiles_w = (count_w - 1) / BW + 1;
    const unsigned tile_t = blockIdx.x / tiles_w * BT, tile_w = blockIdx.x % tiles_w * BW;

    const int group = threadIdx.x / GROUP, warp = threadIdx.x % GROUP / 32;
    int lane_t, lane_w;
    split_lane<LANES_T>(threadIdx.x % 32, lane_t, lane_w);
    const int read_t = Thin::reads_from(warp / WARPS_W, lane_t), read_w = Wide::reads_from(warp % WARPS_W, lane_w);

    // Groups and blocks take tiles in turn, so that what is read at the same time lies close together.
    constexpr int K_STEP = SPLIT_K * WARPS_K * BK;
    const int k_first = ((int)blockIdx.y * WARPS_K + group) * BK;
    const int steps = (k - 1) / K_STEP + 1;
    Wide from_wide;
    Thin from_thin;
    from_wide.set_tile(THIN_IS_M ? b : a, tile_w, count_w, k_first, K_STEP, k);
    from_thin.set_tile(THIN_IS_M ? a : b, tile_t, count_t, k_first, K_STEP, k);

    SCALAR* const ring = shared + group * (STAGES * STAGE);
    int started = 0, depth = k - k_first;  // depth: what is left of K
    auto start_next = [&](SCALAR* tile) {
        if (started < steps) {
            if (depth >= BK) {
                from_wide.start<true>(tile, BK);
                from_thin.start<true>(tile + Wide::SIZE, BK);
            } else {
                from_wide.start<false>(tile, depth);
                from_thin.start<false>(tile + Wide::SIZE, depth);
            }
            depth -= K_STEP;
            ++started;
        }
        close_group();  // empty at the end, so that waiting stays the same
    };

    SCALAR sum[TT][TW] = {};
    int now = 0, fill = 0;
    for (int step = 1 - STAGES; step < steps; ++step) {
        if (step >= 0) {
            await_group<STAGES - 2>();
            sync_group();
        }
        start_next(ring + fill * STAGE);
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        if (step < 0) continue;
        const SCALAR* tile = ring + now * STAGE;
        const SCALAR *const thin = tile + Wide::SIZE + read_t, *const wide = tile + read_w;
        if constexpr (SHORT_CHAINS) {
            SCALAR of_tile[TT][TW] = {};
            multiply<Thin, Wide, KS, ORDER == ORDER_snake>(of_tile, thin, wide);
#pragma unroll
            for (int i = 0; i < TT; ++i)
#pragma unroll
                for (int j = 0; j < TW; ++j) sum[i][j] += of_tile[i][j];
        } else {
            multiply<Thin, Wide, KS, ORDER == ORDER_snake>(sum, thin, wide);
        }
        now = now + 1 == STAGES ? 0 : now + 1;
    }

    __syncthreads();
    const int t = Thin::first_of(warp / WARPS_W, lane_t), w = Wide::first_of(warp % WARPS_W, lane_w);
    spill_partials<Thin, Wide, PADDED, !THIN_IS_M>(shared + group * SUMS, sum, t, w);
    __syncthreads();
    const size_t line = THIN_IS_M ? count_w : count_t;
    SCALAR* const corner = c + (THIN_IS_M ? tile_t * line + tile_w : tile_w * line + tile_t);
    const unsigned rows = THIN_IS_M ? count_t - tile_t : count_w - tile_w;
    const unsigned columns = THIN_IS_M ? count_w - tile_w : count_t - tile_t;
#if SPLIT_K > 1
    SCALAR* const parts = (SCALAR*)(workspace + (gridDim.x * sizeof(unsigned) + 255) / 256 * 256)
                          + (size_t)blockIdx.x * SPLIT_K * (BT * BW);
    for (unsigned x = threadIdx.x; x < BT * BW; x += THREADS)
        parts[blockIdx.y * (BT * BW) + x]
            = total<1>(WARPS_K, shared + x / INNER * PADDED + x % INNER, SUMS).element[0];
    if (!arrives_last((unsigned*)workspace + blockIdx.x)) return;
    constexpr int WIDTH = GROUPED, MOST = SPLIT_K < 16 ? 16 / SPLIT_K : 1;
    const SCALAR* const from = parts;
#else
    constexpr int WIDTH = 1, MOST = 8;
    const SCALAR* const from = shared;
#endif
    // Elements whose parts are asked for together, before any is stored: latency is all that this costs.
    constexpr int STEP = THREADS * WIDTH, ROUNDS = (BT * BW + STEP - 1) / STEP, AT_ONCE = ROUNDS < MOST ? ROUNDS : MOST;
    for (unsigned start = threadIdx.x * WIDTH; start < BT * BW; start += AT_ONCE * STEP) {
        Pack<WIDTH> sums[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const unsigned x = start + i * STEP;
            if constexpr (SPLIT_K > 1) sums[i] = total<WIDTH>(SPLIT_K, from + x, BT * BW);
            else sums[i] = total<WIDTH>(WARPS_K, from + x / INNER * PADDED + x % INNER, SUMS);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                const unsigned x = start + i * STEP + e, row = x / INNER, column = x % INNER;
                if (row < rows && column < columns) corner[row * line + column] = sums[i].element[e];
            }
    }
}
