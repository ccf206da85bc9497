// gemm, warp_tiled: as register_tiled, but tiles are copied to shared memory asynchronously, several ahead.
//
// Idea     Copies go from global to shared memory without passing through registers (cp.async, sm_80 and later) and
//          STAGES - 1 tiles are in flight while one is multiplied. This hides latency with few warps, and the
//          registers that held the tile in flight can hold a larger thread tile instead.
// Sharing  If C has too few tiles to keep the device busy, SPLIT_K blocks share the k of each. If the last wave
//          of tiles would leave multiprocessors idle, BLOCKS blocks (as many as run at once) stay for the whole product.
//          Each takes an equal share of all k of the tiles in the partial wave and in one wave more, then whole tiles.
//          sharing.cuh says how, and how their sums are added up.
// Turning  An operand whose neighbours in memory are neighbours in k must be turned on its way to [BK][SPAN]. TURN says
//          how. `copy`: element by element, each to its place. `relay`: VECTOR elements at a time to a buffer of the
//          thread's own, from which it stores them to their places while it multiplies the tile before: a quarter
//          of the copies, for twice the shared memory.
// Edges    Rows and columns past the edge read the last row or column again (their results are not stored), so
//          no copy in the loop is conditional. The remainder of k over BK is done first, padded with zeros.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED; k and the rows of A and B are padded with zeros to multiples of PITCH. Rows of A and B are
//          divisible by VECTOR, arrays aligned to VECTOR elements, C to 16 bytes.
// Source   own work after the public ladders of SGEMM kernels (thread tiles, warp tiles, multistage copies).
// Letters  BM BN BK       tile of a block
//          TM TN          tile of a thread, in groups of GROUPED elements that lie LANES * GROUPED apart
//          LANES_M        lanes of a warp down C; 32 / LANES_M lanes lie along its rows
//          STAGES         tiles that shared memory holds
//          VECTOR         elements of one global access (of an operand that is not turned by copying)
//          ORDER          order of the products of a step: every row of C forward, or every second one backward (snake)
//          ARRIVE         where in the multiplication of a tile the copies of the next one are waited for, and relayed
//          UNTIE          whether sums may be in any registers until they are stored (tiles.cuh says why)
//          SWATH          block rows that are walked together, column by column, so that blocks share L2
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
    // Lanes of a turning store differ in k first: that number of elements after each copy's rows spreads them over the banks.
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
    __device__ void set_tile(const SCALAR* operand, unsigned first, unsigned count, unsigned depth, unsigned start) {
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

#if BLOCKS > 0
#define WORK_IN __shared__
#else
#define WORK_IN
#endif

constexpr int ARRIVES_AT = ARRIVE == ARRIVE_middle ? BK / 2 : BK - 1;  // step of a tile's k

// One step of k. In which order the products are written decides which registers the compiler gives to the sums, and so
// how often two operands of a product wait for the same bank: it cannot be known beforehand, so ORDER is tuned.
__device__ __forceinline__ void multiply(SCALAR (&sum)[TM][TN], const SCALAR (&a)[TM], const SCALAR (&b)[TN])
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int y = 0; y < TN; ++y) {
            const int j = ORDER == ORDER_snake && i % 2 == 1 ? TN - 1 - y : y;
            sum[i][j] += a[i] * b[j];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, EPILOGUE_OPERANDS SCALAR* __restrict__ c, int m,
     int n, int k EPILOGUE_FACTORS
#if SPLIT_K > 1 || BLOCKS > 0
     , unsigned char* workspace
#endif
)
{
    extern __shared__ __align__(16) SCALAR shared[];
    SCALAR* const shared_a = shared;
    SCALAR* const shared_b = shared + OperandA::SIZE;

    const int warp = threadIdx.x / 32;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);
    const int thread_row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    const int thread_column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;

    const int depth = (k + PITCH - 1) / PITCH * PITCH;
    WORK_IN Work work;  // of blocks that stay, in shared memory: the loop over k needs every register
    bool leads = true;
    if constexpr (BLOCKS > 0) leads = threadIdx.x == 0;
    if (leads) work.start(m, n, depth);
#if SPLIT_K > 1 || BLOCKS > 0
    if (threadIdx.x == 0) Work::announce(m, n, depth, workspace);
#endif
    for (;;) {
        if constexpr (BLOCKS > 0) __syncthreads();  // all are done with the piece before
        if (leads) work.next();
        if constexpr (BLOCKS > 0) __syncthreads();
        if (!work.left) break;
        unsigned first_row, first_column;
        place_tile(work.tile, m, n, first_row, first_column);
        const int tiles = work.count;
        // The first tile of all is what k leaves over BK.
        const int left_over = depth - ((int)work.per_tile - 1) * BK;
        const int first_k = work.first == 0 ? 0 : left_over + ((int)work.first - 1) * BK;
        const int first_depth = work.first == 0 ? left_over : BK;

        OperandA from_a;
        OperandB from_b;
        from_a.set_tile(a, first_row, A_TRANSPOSED ? (m + PITCH - 1) / PITCH * PITCH : m, depth, first_k);
        from_b.set_tile(b, first_column, B_TRANSPOSED ? n : (n + PITCH - 1) / PITCH * PITCH, depth, first_k);
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
                if (p == ARRIVES_AT) arrive(stage, tile + 1);
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

        if constexpr (UNTIE) untie(sum, k >> 31);
        if constexpr (BLOCKS > 0) place_tile(work.tile, m, n, first_row, first_column);
#if SPLIT_K > 1 || BLOCKS > 0
        __shared__ unsigned mine[2];
        if (work.peers > 1) {
            spill_partials(sum, work, workspace);
            share_out(work, workspace, mine, c, first_row + thread_row, first_column + thread_column, m, n EPILOGUE_OF_KERNEL);
            continue;
        }
#endif
        write_tile(sum, c, first_row, first_column, thread_row, thread_column, m, n EPILOGUE_OF_KERNEL);
    }
}
