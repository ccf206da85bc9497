// gemm, warp_tiled: as register_tiled, but tiles are copied to shared memory asynchronously, several ahead.
//
// Idea     Copies go from global to shared memory without passing through registers (cp.async, sm_80 and later) and
//          STAGES - 1 tiles are on their way while one is multiplied: latency is hidden with few warps, and the
//          registers that held the tile in flight can hold a larger thread tile instead. An operand whose neighbours
//          in memory are neighbours in k is transposed by copying element by element.
// Edges    Rows and columns past the edge read the last row or column again (their results are not stored), so
//          that no copy in the loop is conditional. What k leaves over BK is done first, padded with zeros.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; leading dimensions divisible by VECTOR, arrays aligned to VECTOR elements.
//          In shared memory both tiles have k outermost: [BK][BM] and [BK][BN].
// Source   own work after the public ladders of SGEMM kernels (thread tiles, warp tiles, multistage copies).
// Letters  BM BN BK       tile of a block
//          TM TN          tile of a thread, in groups of GROUPED elements that lie LANES * GROUPED apart
//          LANES_M        lanes of a warp down C; 32 / LANES_M lanes lie along its rows
//          STAGES         tiles that shared memory holds
//          VECTOR         elements of one global access (of an operand that is not transposed)
//          SWATH          block rows that are walked together, column by column, for the sake of L2
//          BLOCKS_PER_SM  blocks that must fit into a multiprocessor: bounds the registers

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARPS_N = BN / (LANES_N * TN);
constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int GROUPED = 16 / sizeof(SCALAR);  // elements of a 128-bit access

template <int WIDTH>
struct alignas(WIDTH * sizeof(SCALAR)) Pack {
    SCALAR element[WIDTH];
};

// Starts a copy of BYTES bytes to shared memory; zeros are written instead where not `valid`.
template <int BYTES>
__device__ void copy_async(SCALAR* to, const SCALAR* from, bool valid)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    const int count = valid ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(address), "l"(from), "n"(BYTES), "r"(count) : "memory");
}

__device__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most LEFT groups of this thread's copies are on their way.
template <int LEFT>
__device__ void await_group() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// One operand on its way from global memory to [BK][SPAN] tiles in shared memory.
// ALONG_K: neighbours in global memory are neighbours in k, so that copying transposes.
template <int SPAN, bool ALONG_K>
struct Operand {
    static constexpr int WIDTH = ALONG_K ? 1 : VECTOR;  // elements of a copy
    static constexpr int PER_LINE = (ALONG_K ? BK : SPAN) / WIDTH;
    static constexpr int COPIES = SPAN * BK / WIDTH;
    static constexpr int PASSES = COPIES / THREADS;
    static_assert(COPIES % THREADS == 0, "every thread makes the same number of copies");
    // Lanes of a transposing copy differ in k: shifting each row by 16 bytes spreads them over the banks.
    static constexpr int SKEW = ALONG_K ? GROUPED : 0;
    static constexpr int SIZE = (SPAN + SKEW) * BK;

    const SCALAR* from[PASSES];
    size_t row_stride;

    static __device__ int offset(int k) { return k * (SPAN + SKEW); }
    static __device__ int copy(int pass) { return (int)threadIdx.x + pass * THREADS; }
    static __device__ int k_of(int pass) { return ALONG_K ? copy(pass) % PER_LINE : copy(pass) / PER_LINE; }
    static __device__ int span_of(int pass) {
        return ALONG_K ? copy(pass) / PER_LINE : copy(pass) % PER_LINE * WIDTH;
    }

    // `first` is the tile's first row of op(A) or column of op(B), out of `count`.
    __device__ void aim(const SCALAR* operand, unsigned first, unsigned count, unsigned depth) {
        row_stride = ALONG_K ? depth : count;
        const unsigned last = count - WIDTH;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const size_t at = min(first + span_of(pass), last), k = k_of(pass);
            from[pass] = operand + (ALONG_K ? at * row_stride + k : k * row_stride + at);
        }
    }

    // Starts copying the next tile, which is `depth` deep; a shallow one is filled up with zeros.
    template <bool WHOLE>
    __device__ void start(SCALAR* tile, int depth) {
        const size_t step = ALONG_K ? depth : depth * row_stride;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const bool valid = WHOLE || k_of(pass) < depth;
            SCALAR* to = tile + offset(k_of(pass)) + span_of(pass);
            copy_async<WIDTH * sizeof(SCALAR)>(to, valid ? from[pass] : from[0], valid);
            from[pass] += step;
        }
    }

    template <int LANES, int COUNT>
    static __device__ void read(SCALAR (&fragment)[COUNT], const SCALAR* tile, int k) {
#pragma unroll
        for (int g = 0; g < COUNT; g += GROUPED) {
            const Pack<GROUPED> part = *(const Pack<GROUPED>*)(tile + offset(k) + g * LANES);
#pragma unroll
            for (int e = 0; e < GROUPED; ++e) fragment[g + e] = part.element[e];
        }
    }
};

using OperandA = Operand<BM, !A_TRANSPOSED>;
using OperandB = Operand<BN, B_TRANSPOSED>;
constexpr int STAGE = OperandA::SIZE + OperandB::SIZE;

// A lane's place in its warp. Bits of the lane number go to n and m in turn: lanes that differ in bit 0 share rows and
// lanes that differ in bit 1 share columns, which lets the hardware serve half a warp's 128-bit reads at once.
__device__ void place_lane(int lane, int& lane_m, int& lane_n)
{
    lane_m = lane_n = 0;
    int weight_m = 1, weight_n = 1;
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
        const int value = lane >> bit & 1;
        if (weight_n == LANES_N || (bit % 2 == 1 && weight_m < LANES_M)) {
            lane_m += value * weight_m;
            weight_m *= 2;
        } else {
            lane_n += value * weight_n;
            weight_n *= 2;
        }
    }
}

template <bool INSIDE>
__device__ void write_tile(const SCALAR (&sum)[TM][TN], SCALAR* c, unsigned row, unsigned column, unsigned m, unsigned n)
{
    constexpr int WIDTH = VECTOR < GROUPED ? VECTOR : GROUPED;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const unsigned at_row = row + i / GROUPED * GROUPED * LANES_M + i % GROUPED;
        if (!INSIDE && at_row >= m) continue;
        SCALAR* line = c + (size_t)at_row * n;
#pragma unroll
        for (int j = 0; j < TN; j += WIDTH) {
            const unsigned at_column = column + j / GROUPED * GROUPED * LANES_N + j % GROUPED;
            if (!INSIDE && at_column >= n) continue;
            Pack<WIDTH> part;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) part.element[e] = sum[i][j + e];
            *(Pack<WIDTH>*)(line + at_column) = part;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k)
{
    extern __shared__ __align__(16) SCALAR shared[];

    const unsigned tiles_m = ((unsigned)m + BM - 1) / BM, tiles_n = ((unsigned)n + BN - 1) / BN;
    const unsigned swath = blockIdx.x / (SWATH * tiles_n), inside_swath = blockIdx.x % (SWATH * tiles_n);
    const unsigned height = min((unsigned)SWATH, tiles_m - swath * SWATH);
    const unsigned first_row = (swath * SWATH + inside_swath % height) * BM;
    const unsigned first_column = inside_swath / height * BN;

    const int warp = threadIdx.x / 32;
    int lane_m, lane_n;
    place_lane(threadIdx.x % 32, lane_m, lane_n);
    const int thread_row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    const int thread_column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;

    OperandA from_a;
    OperandB from_b;
    from_a.aim(a, first_row, m, k);
    from_b.aim(b, first_column, n, k);

    const int tiles = (k - 1) / BK + 1;
    int started = 0;
    auto start_next = [&](int stage) {
        if (started < tiles) {
            SCALAR* tile = shared + stage * STAGE;
            from_a.start<true>(tile, BK);
            from_b.start<true>(tile + OperandA::SIZE, BK);
            ++started;
        }
        close_group();  // empty at the end, so that waiting stays the same
    };
    from_a.start<false>(shared, k - (tiles - 1) * BK);
    from_b.start<false>(shared + OperandA::SIZE, k - (tiles - 1) * BK);
    ++started;
    close_group();
#pragma unroll
    for (int stage = 1; stage < STAGES - 1; ++stage) start_next(stage);
    await_group<STAGES - 2>();
    __syncthreads();

    SCALAR sum[TM][TN] = {};
    SCALAR part_a[2][TM], part_b[2][TN];
    int stage = 0, stage_to_fill = STAGES - 1;
    const SCALAR* tile_a = shared + thread_row;
    const SCALAR* tile_b = shared + OperandA::SIZE + thread_column;
    OperandA::read<LANES_M>(part_a[0], tile_a, 0);
    OperandB::read<LANES_N>(part_b[0], tile_b, 0);

    for (int tile = 0; tile < tiles; ++tile) {
        start_next(stage_to_fill);
        stage_to_fill = stage_to_fill + 1 == STAGES ? 0 : stage_to_fill + 1;
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            const int now = p % 2, next = 1 - now;
            if (p + 1 == BK) {
                await_group<STAGES - 2>();
                __syncthreads();
                if (tile + 1 == tiles) {
                    // Nothing follows: read what is there, so that the loop needs no second body.
                } else {
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                    tile_a = shared + stage * STAGE + thread_row;
                    tile_b = shared + stage * STAGE + OperandA::SIZE + thread_column;
                }
            }
            OperandA::read<LANES_M>(part_a[next], tile_a, (p + 1) % BK);
            OperandB::read<LANES_N>(part_b[next], tile_b, (p + 1) % BK);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += part_a[now][i] * part_b[now][j];
        }
    }

    const unsigned row = first_row + thread_row, column = first_column + thread_column;
    if (first_row + BM <= (unsigned)m && first_column + BN <= (unsigned)n)
        write_tile<true>(sum, c, row, column, m, n);
    else
        write_tile<false>(sum, c, row, column, m, n);
}
