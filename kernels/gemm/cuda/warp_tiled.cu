// gemm, warp_tiled: as register_tiled, but tiles are copied to shared memory asynchronously, several ahead.
//
// Idea     Copies go from global to shared memory without passing through registers (cp.async, sm_80 and later) and
//          STAGES - 1 tiles are on their way while one is multiplied: latency is hidden with few warps, and the
//          registers that held the tile in flight can hold a larger thread tile instead.
//          Where C has too few tiles to keep the device busy, SPLIT_K blocks share the k of each: they leave their sums in
//          the workspace, and the last to arrive adds them up in the order of k, so that results never differ.
// Turning  An operand whose neighbours in memory are neighbours in k must be turned on its way. TURN_A and TURN_B say
//          how. `copy`: element by element into [BK][SPAN], four times the copies. `read`: copied as it lies into
//          [SPAN][BK], and a thread reads GROUPED steps of k at once: no more reads, but as many registers.
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
//          SWATH          block rows that are walked together, column by column, for the sake of L2
//          BLOCKS_PER_SM  blocks that must fit into a multiprocessor: bounds the registers

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

// Part of a tile in a thread's registers, for the step of k at hand and the next: read step by step from [BK][SPAN].
template <int COUNT, int LANES, int ROW>
struct Steps {
    SCALAR part[2][COUNT];

    __device__ void read(const SCALAR* tile, int k) {
#pragma unroll
        for (int g = 0; g < COUNT; g += GROUPED) {
            const Pack<GROUPED> pack = *(const Pack<GROUPED>*)(tile + k * ROW + g * LANES);
#pragma unroll
            for (int e = 0; e < GROUPED; ++e) part[k % 2][g + e] = pack.element[e];
        }
    }
    __device__ SCALAR at(int i, int k) const { return part[k % 2][i]; }
};

// The same for [SPAN][BK]: GROUPED steps of each row at once.
template <int COUNT, int LANES, int ROW>
struct Bundles {
    Pack<GROUPED> part[2][COUNT];

    __device__ void read(const SCALAR* tile, int k) {
        if (k % GROUPED != 0) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) part[k / GROUPED % 2][i] = *(const Pack<GROUPED>*)(tile + k + i * LANES * ROW);
    }
    __device__ SCALAR at(int i, int k) const { return part[k / GROUPED % 2][i].element[k % GROUPED]; }
};

template <bool FIRST, class A, class B> struct Either { using type = A; };
template <class A, class B> struct Either<false, A, B> { using type = B; };

// One operand on its way from global memory to tiles in shared memory and on to registers.
// ALONG_K: neighbours in global memory are neighbours in k. LANES: lanes of a warp that have different parts of it.
template <int SPAN, int COUNT, int LANES, bool ALONG_K, bool TURNED_BY_READING>
struct Operand {
    static constexpr bool ROWS_OF_K = ALONG_K && TURNED_BY_READING;  // how the tile lies in shared memory
    static constexpr int WIDTH = ALONG_K && !ROWS_OF_K ? 1 : VECTOR;  // elements of a copy
    static constexpr int PER_LINE = (ALONG_K ? BK : SPAN) / WIDTH;
    static constexpr int COPIES = SPAN * BK / WIDTH;
    static constexpr int PASSES = COPIES / THREADS;
    static_assert(COPIES % THREADS == 0, "every thread makes the same number of copies");
    // Rows 16 bytes longer spread over the banks what lanes copy (by element) or read (GROUPED steps of rows next to
    // each other) at the same time.
    static constexpr int ROW = (ROWS_OF_K ? BK : SPAN) + (ALONG_K ? GROUPED : 0);
    static constexpr int SIZE = ROW * (ROWS_OF_K ? SPAN : BK);
    using Fragment = typename Either<ROWS_OF_K, Bundles<COUNT, LANES, ROW>, Steps<COUNT, LANES, ROW>>::type;

    const SCALAR* from[PASSES];
    size_t row_stride;

    static __device__ int copy(int pass) { return (int)threadIdx.x + pass * THREADS; }
    static __device__ int k_of(int pass) {
        return ALONG_K ? copy(pass) % PER_LINE * WIDTH : copy(pass) / PER_LINE;
    }
    static __device__ int span_of(int pass) {
        return ALONG_K ? copy(pass) / PER_LINE : copy(pass) % PER_LINE * WIDTH;
    }

    // Where an element lies in the tile. Rows of k are ordered so that lanes which read together read neighbours:
    // a thread's row i, of lane l, is i * LANES + l there and (i / GROUPED * LANES + l) * GROUPED + i % GROUPED in C.
    static __device__ int place(int span, int k) {
        if (!ROWS_OF_K) return k * ROW + span;
        const int group = span / (LANES * COUNT) * (LANES * COUNT), inside = span % (LANES * COUNT);
        const int i = inside / (LANES * GROUPED) * GROUPED + inside % GROUPED;
        return (group + i * LANES + inside / GROUPED % LANES) * ROW + k;
    }

    // Where the part of lane `lane` of the warps that are number `warp` along this operand begins.
    static __device__ int part_of(int warp, int lane) {
        return ROWS_OF_K ? (warp * LANES * COUNT + lane) * ROW : warp * LANES * COUNT + lane * GROUPED;
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
    __device__ void start(SCALAR* tile, int depth) {
        const size_t step = ALONG_K ? depth : depth * row_stride;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const bool valid = WHOLE || k_of(pass) < depth;
            SCALAR* to = tile + place(span_of(pass), k_of(pass));
            copy_async<WIDTH * sizeof(SCALAR)>(to, valid ? from[pass] : from[0], valid);
            from[pass] += step;
        }
    }
};

using OperandA = Operand<BM, TM, LANES_M, !A_TRANSPOSED, TURN_A == TURN_A_read>;
using OperandB = Operand<BN, TN, LANES_N, B_TRANSPOSED, TURN_B == TURN_B_read>;
constexpr int STAGE = OperandA::SIZE + OperandB::SIZE;

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
    place_lane(threadIdx.x % 32, lane_m, lane_n);

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

    int started = 0;
    auto start_next = [&](int stage) {
        if (started < tiles) {
            SCALAR* tile = shared + stage * STAGE;
            from_a.template start<true>(tile, BK);
            from_b.template start<true>(tile + OperandA::SIZE, BK);
            ++started;
        }
        close_group();  // empty at the end, so that waiting stays the same
    };
    from_a.template start<false>(shared, first_tile == 0 ? left_over : BK);
    from_b.template start<false>(shared + OperandA::SIZE, first_tile == 0 ? left_over : BK);
    ++started;
    close_group();
#pragma unroll
    for (int stage = 1; stage < STAGES - 1; ++stage) start_next(stage);
    await_group<STAGES - 2>();
    __syncthreads();

    SCALAR sum[TM][TN] = {};
    OperandA::Fragment part_a;
    OperandB::Fragment part_b;
    int stage = 0, stage_to_fill = STAGES - 1;
    const int offset_a = OperandA::part_of(warp / WARPS_N, lane_m);
    const int offset_b = OperandA::SIZE + OperandB::part_of(warp % WARPS_N, lane_n);
    const SCALAR* tile_a = shared + offset_a;
    const SCALAR* tile_b = shared + offset_b;
    part_a.read(tile_a, 0);
    part_b.read(tile_b, 0);

    for (int tile = 0; tile < tiles; ++tile) {
        start_next(stage_to_fill);
        stage_to_fill = stage_to_fill + 1 == STAGES ? 0 : stage_to_fill + 1;
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            if (p + 1 == BK) {
                await_group<STAGES - 2>();
                __syncthreads();
                if (tile + 1 == tiles) {
                    // Nothing follows: read what is there, so that the loop needs no second body.
                } else {
                    stage = stage + 1 == STAGES ? 0 : stage + 1;
                    tile_a = shared + stage * STAGE + offset_a;
                    tile_b = shared + stage * STAGE + offset_b;
                }
            }
            part_a.read(tile_a, (p + 1) % BK);
            part_b.read(tile_b, (p + 1) % BK);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += part_a.at(i, p) * part_b.at(j, p);
        }
    }

#if SPLIT_K > 1
    if (!gather(sum, workspace)) return;
#endif
    const int thread_row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    const int thread_column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;
    write_tile(sum, c, first_row, first_column, thread_row, thread_column, m, n);
}
