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

// One operand on its way from global memory through registers to a [BK][SPAN] tile in shared memory.
// ALONG_K: neighbours in global memory are neighbours in k, so that storing to shared memory transposes.
template <int SPAN, bool ALONG_K>
struct PrefetchedOperand {
    static constexpr int PER_LINE = (ALONG_K ? BK : SPAN) / VECTOR;
    static constexpr int PACKS = SPAN * BK / VECTOR;
    static constexpr int PASSES = (PACKS + THREADS - 1) / THREADS;
    // Lanes of a transposing store differ in k first: shifting each pack's rows by SKEW gives every lane its own bank.
    static constexpr int SKEW = !ALONG_K ? 0 : 32 / PER_LINE > GROUPED ? 32 / PER_LINE : GROUPED;
    static constexpr int SIZE = SPAN * BK + SKEW * (BK / VECTOR);

    const SCALAR* from[PASSES];
    Pack<VECTOR> held[PASSES];
    size_t row_stride;

    static __device__ int offset(int k) { return k * SPAN + k / VECTOR * SKEW; }
    static __device__ int pack(int pass) { return (int)threadIdx.x + pass * THREADS; }
    static __device__ bool has(int pass) { return (pass + 1) * THREADS <= PACKS || pack(pass) < PACKS; }
    static __device__ int k_of(int pass) {
        return ALONG_K ? pack(pass) % PER_LINE * VECTOR : pack(pass) / PER_LINE;
    }
    static __device__ int span_of(int pass) {
        return ALONG_K ? pack(pass) / PER_LINE : pack(pass) % PER_LINE * VECTOR;
    }

    // `first` is the tile's first row of op(A) or column of op(B), out of `count`.
    __device__ void set_tile(const SCALAR* operand, unsigned first, unsigned count, unsigned depth) {
        row_stride = ALONG_K ? depth : count;
        const unsigned last = ALONG_K ? count - 1 : count - VECTOR;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const size_t at = min(first + span_of(pass), last), k = k_of(pass);
            from[pass] = operand + (ALONG_K ? at * row_stride + k : k * row_stride + at);
        }
    }

    __device__ void advance(int depth) {
        const size_t step = ALONG_K ? depth : depth * row_stride;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) from[pass] += step;
    }

    // The first tile is only `depth` deep; the rest of it is zero.
    __device__ void fetch_first(int depth) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            held[pass] = Pack<VECTOR>{};
            if (has(pass) && k_of(pass) < depth) held[pass] = *(const Pack<VECTOR>*)from[pass];
        }
        advance(depth);
    }

    __device__ void fetch() {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            if (has(pass)) held[pass] = *(const Pack<VECTOR>*)from[pass];
        advance(BK);
    }

    __device__ void store(SCALAR* tile) const {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (!has(pass)) continue;
            SCALAR* to = tile + offset(k_of(pass)) + span_of(pass);
            if constexpr (ALONG_K) {
#pragma unroll
                for (int e = 0; e < VECTOR; ++e) to[e * SPAN] = held[pass].element[e];
            } else {
                *(Pack<VECTOR>*)to = held[pass];
            }
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

using OperandA = PrefetchedOperand<BM, !A_TRANSPOSED>;
using OperandB = PrefetchedOperand<BN, B_TRANSPOSED>;
constexpr int STAGE = OperandA::SIZE + OperandB::SIZE;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, EPILOGUE_OPERANDS SCALAR* __restrict__ c, int m,
     int n, int k EPILOGUE_FACTORS)
{
    extern __shared__ __align__(16) SCALAR shared[];

    unsigned first_row, first_column;
    place_tile(blockIdx.x, m, n, first_row, first_column);

    const int warp = threadIdx.x / 32;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);
    const int thread_row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    const int thread_column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;

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
