// gemm, warp_tiled: as register_tiled, but tiles are copied to shared memory asynchronously, several ahead.
//
// Idea     Copies go from global to shared memory without passing through registers (cp.async, sm_80 and later) and
//          STAGES - 1 tiles are on their way while one is multiplied: latency is hidden with few warps, and the
//          registers that held the tile in flight can hold a larger thread tile instead.
//          Where C has too few tiles to keep the device busy, SPLIT_K blocks share the k of each: they leave their sums in
//          the workspace, and the last to arrive adds them up in the order of k, so that results never differ.
// Turning  An operand whose neighbours in memory are neighbours in k must be turned on its way to [BK][SPAN]. TURN says how:
//          `copy` copies it element by element, to where it belongs; `relay` copies VECTOR elements at a time to a place
//          of the thread's own, from where the thread stores them to where they belong while it multiplies the tile
//          before: a quarter of the copies, for twice the shared memory.
// Edges    Rows and columns past the edge read the last row or column again (their results are not stored), so
//          that no copy in the loop is conditional. What k leaves over BK is done first, padded with zeros.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED; k and the rows of A and B are padded with zeros to multiples of PITCH. Rows of A and B divisible
//          by VECTOR, arrays aligned to VECTOR elements, C to 16 bytes.
// Source   own work after the public ladders of SGEMM kernels (thread tiles, warp tiles, multistage copies).
// Letters  BM BN BK       tile of a block
//          TM TN          tile of a thread, in groups of GROUPED elements that lie LANES * GROUPED apart
//          LANES_M        lanes of a warp down C; 32 / LANES_M lanes lie along its rows
//          STAGES         tiles that shared memory holds
//          VECTOR         elements of one global access (of an operand that is not turned by copying)
//          ORDER          order of the products of a step: along rows, along columns, or rows to and fro (snake)
//          SWATH          block rows that are walked together, column by column, for the sake of L2
//          BLOCKS_PER_SM  blocks that must fit into a multiprocessor: bounds the registers

// One operand on its way from global memory to [BK][SPAN] tiles in shared memory, and on to registers.
// ALONG_K: neighbours in global memory are neighbours in k.
template <int SPAN, bool ALONG_K>
struct Operand {
    static constexpr bool RELAYED = ALONG_K && TURN == TURN_relay;
    static constexpr int WIDTH = ALONG_K && !RELAYED ? 1 : VECTOR;  // elements of a copy
    static constexpr int PER_LINE = (ALONG_K ? BK : SPAN) / WIDTH;
    static constexpr int COPIES = SPAN * BK / WIDTH;
    static constexpr int PASSES = COPIES / THREADS;
    static_assert(COPIES % THREADS == 0, "every thread makes the same number of copies");
    // Lanes of a turning store differ in k first: so many elements after each copy's rows spread them over the banks.
    static constexpr int SKEW = !ALONG_K ? 0 : 32 / PER_LINE > GROUPED ? 32 / PER_LINE : GROUPED;
    static constexpr int TILE = SPAN * BK + SKEW * (BK / WIDTH);
    static constexpr int RELAY = RELAYED ? SPAN * BK : 0;
    // STAGES tiles; or STAGES relays, then two tiles.
    static constexpr int SIZE = RELAYED ? STAGES * RELAY + 2 * TILE : STAGES * TILE;

    const SCALAR* from[PASSES];
    size_t row_stride;

    static __device__ int offset(int k) { return k * SPAN + k / WIDTH * SKEW; }
    static __device__ int copy(int pass) { return (int)threadIdx.x + pass * THREADS; }
    static __device__ int k_of(int pass) {
        return ALONG_K ? copy(pass) % PER_LINE * WIDTH : copy(pass) / PER_LINE;
    }
    static __device__ int span_of(int pass) {
        return ALONG_K ? copy(pass) / PER_LINE : copy(pass) % PER_LINE * WIDTH;
    }
    static __device__ SCALAR* place(SCALAR* tile, int pass) { return tile + offset(k_of(pass)) + span_of(pass); }

    // Where the tile is read that came through this stage as number `tile`.
    static __device__ SCALAR* tile_of(SCALAR* memory, int stage, int tile) {
        return RELAYED ? memory + STAGES * RELAY + tile % 2 * TILE : memory + stage * TILE;
    }

    // `first` is the tile's first row of op(A) or column of op(B), out of `count`; `start` the first step of k.
    __device__ void aim(const SCALAR* operand, unsigned first, unsigned count, unsigned depth, unsigned start) {
        row_stride = ALONG_K ? depth : count;
        const unsigned last = ALONG_K ? count - 1 : count - WIDTH;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const size_t at = min(first + span_of(pass), last), k = start + k_of(pass);
            from[pass] = operand + (ALONG_K ? at * row_stride + k : k * row_stride + at);
        }
    }

    // Starts copying the next tile, which is `depth` deep; a shallow one is filled up with zeros.
    template <bool WHOLE>
    __device__ void start(SCALAR* memory, int stage, int depth) {
        const size_t step = ALONG_K ? depth : depth * row_stride;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const bool valid = WHOLE || k_of(pass) < depth;
            SCALAR* to = RELAYED ? memory + stage * RELAY + copy(pass) * WIDTH : place(memory + stage * TILE, pass);
            copy_async<WIDTH * sizeof(SCALAR)>(to, valid ? from[pass] : from[0], valid);
            from[pass] += step;
        }
    }

    // Stores a relayed tile, whose copies have arrived, to where it belongs.
    __device__ void turn(SCALAR* memory, int stage, int tile) const {
        if constexpr (RELAYED) {
            SCALAR* to = tile_of(memory, stage, tile);
#pragma unroll
            for (int pass = 0; pass < PASSES; ++pass) {
                const Pack<WIDTH> pack = *(const Pack<WIDTH>*)(memory + stage * RELAY + copy(pass) * WIDTH);
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) place(to, pass)[e * SPAN] = pack.element[e];
            }
        }
    }

    template <int LANES, int COUNT>
    static __device__ void read(SCALAR (&fragment)[COUNT], const SCALAR* tile, int k) {
#pragma unroll
        for (int g = 0; g < COUNT; g += GROUPED) {
            const Pack<GROUPED> pack = *(const Pack<GROUPED>*)(tile + offset(k) + g * LANES);
#pragma unroll
            for (int e = 0; e < GROUPED; ++e) fragment[g + e] = pack.element[e];
        }
    }
};

using OperandA = Operand<BM, !A_TRANSPOSED>;
using OperandB = Operand<BN, B_TRANSPOSED>;

// Leaves this block's sums in the workspace and says whether all others of the tile have done so; if so, adds them up.
__device__ bool gather(SCALAR (&sum)[TM][TN], unsigned char* workspace)
{
    constexpr int PACKS = TM * TN / GROUPED;
    const unsigned tiles = gridDim.x, tile = blockIdx.x, mine = blockIdx.y;
    unsigned* arrived = (unsigned*)workspace + tile;
    Pack<GROUPED>* sums = (Pack<GROUPED>*)(workspace + (tiles * 4 + 255) / 256 * 256);
    sums += (size_t)tile * SPLIT_K * PACKS * THREADS + threadIdx.x;
    SCALAR* own = &sum[0][0];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        Pack<GROUPED> pack;
#pragma unroll
        for (int e = 0; e < GROUPED; ++e) pack.element[e] = own[p * GROUPED + e];
        sums[(mine * PACKS + p) * THREADS] = pack;
    }
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (threadIdx.x == 0) last = atomicInc(arrived, SPLIT_K - 1) == SPLIT_K - 1;  // and it is zero again
    __syncthreads();
    if (!last) return false;
    __threadfence();
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        Pack<GROUPED> total{};
#pragma unroll
        for (int split = 0; split < SPLIT_K; ++split) {
            const Pack<GROUPED> pack = sums[(split * PACKS + p) * THREADS];
#pragma unroll
            for (int e = 0; e < GROUPED; ++e) total.element[e] += pack.element[e];
        }
#pragma unroll
        for (int e = 0; e < GROUPED; ++e) own[p * GROUPED + e] = total.element[e];
    }
    return true;
}

// One step of k. In which order the products are written decides which registers the compiler gives to the sums, and so
// how often two operands of a product wait for the same bank: nothing tells beforehand, hence ORDER is tuned.
__device__ __forceinline__ void multiply(SCALAR (&sum)[TM][TN], const SCALAR (&a)[TM], const SCALAR (&b)[TN])
{
    constexpr bool BY_ROWS = ORDER != ORDER_columns;
#pragma unroll
    for (int x = 0; x < (BY_ROWS ? TM : TN); ++x)
#pragma unroll
        for (int y = 0; y < (BY_ROWS ? TN : TM); ++y) {
            const int turned = ORDER == ORDER_snake && x % 2 == 1 ? TN - 1 - y : y;
            const int i = BY_ROWS ? x : turned, j = BY_ROWS ? turned : x;
            sum[i][j] += a[i] * b[j];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k
#if SPLIT_K > 1
     , unsigned char* workspace
#endif
)
{
    extern __shared__ __align__(16) SCALAR shared[];

    unsigned first_row, first_column;
    place_tile(blockIdx.x, m, n, first_row, first_column);
    const int warp = threadIdx.x / 32;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);

    // The tiles of k that this block multiplies. The first of all is what k leaves over BK.
    const int depth = (k + PITCH - 1) / PITCH * PITCH;
    const int all_tiles = (depth - 1) / BK + 1, left_over = depth - (all_tiles - 1) * BK;
    const int first_tile = (int)blockIdx.y * all_tiles / SPLIT_K;
    const int tiles = ((int)blockIdx.y + 1) * all_tiles / SPLIT_K - first_tile;
    const int first_k = first_tile == 0 ? 0 : left_over + (first_tile - 1) * BK;

    OperandA from_a;
    OperandB from_b;
    from_a.aim(a, first_row, A_TRANSPOSED ? (m + PITCH - 1) / PITCH * PITCH : m, depth, first_k);
    from_b.aim(b, first_column, B_TRANSPOSED ? n : (n + PITCH - 1) / PITCH * PITCH, depth, first_k);

    SCALAR* const shared_a = shared;
    SCALAR* const shared_b = shared + OperandA::SIZE;
    const int first_depth = first_tile == 0 ? left_over : BK;
    from_a.template start<false>(shared_a, 0, first_depth);
    from_b.template start<false>(shared_b, 0, first_depth);
    close_group();
    auto start = [&](int stage, int tile) {
        if (tile < tiles) {
            from_a.template start<true>(shared_a, stage, BK);
            from_b.template start<true>(shared_b, stage, BK);
        }
        close_group();  // empty where no tile is left, so that waiting stays the same
    };
    // Waits for the thread's own copies of a tile.
    auto arrive = [&](int stage, int tile) {
        await_group<STAGES - 2>();
        from_a.turn(shared_a, stage, tile);
        from_b.turn(shared_b, stage, tile);
    };
#pragma unroll
    for (int stage = 1; stage < STAGES - 1; ++stage) start(stage, stage);
    arrive(0, 0);
    __syncthreads();

    SCALAR sum[TM][TN] = {};
    SCALAR part_a[2][TM], part_b[2][TN];
    const int thread_row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    const int thread_column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;
    const SCALAR* tile_a = OperandA::tile_of(shared_a, 0, 0) + thread_row;
    const SCALAR* tile_b = OperandB::tile_of(shared_b, 0, 0) + thread_column;
    OperandA::read<LANES_M>(part_a[0], tile_a, 0);
    OperandB::read<LANES_N>(part_b[0], tile_b, 0);

    int stage = 0, stage_to_fill = STAGES - 1;
    for (int tile = 0; tile < tiles; ++tile) {
        start(stage_to_fill, tile + STAGES - 1);
        stage_to_fill = stage_to_fill + 1 == STAGES ? 0 : stage_to_fill + 1;
        if (tile + 1 < tiles) stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            const int now = p % 2, next = 1 - now;
            if (p == BK / 2) arrive(stage, tile + 1);
            if (p + 1 == BK) {
                __syncthreads();
                // Where nothing follows this reads what is there, so that the loop needs no second body.
                tile_a = OperandA::tile_of(shared_a, stage, tile + 1) + thread_row;
                tile_b = OperandB::tile_of(shared_b, stage, tile + 1) + thread_column;
            }
            OperandA::read<LANES_M>(part_a[next], tile_a, (p + 1) % BK);
            OperandB::read<LANES_N>(part_b[next], tile_b, (p + 1) % BK);
            multiply(sum, part_a[now], part_b[now]);
        }
    }

#if SPLIT_K > 1
    if (!gather(sum, workspace)) return;
#endif
    write_tile(sum, c, first_row, first_column, thread_row, thread_column, m, n);
}
