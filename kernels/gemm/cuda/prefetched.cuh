// Moves an operand from global memory through registers to shared memory; the next tile is in flight while one is multiplied.
//
// Comes after copies.cuh and tiles.cuh. register_tiled and the tiles of a batch share it.

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

// Where in a tile a thread's first element lies.
__device__ __forceinline__ void place_thread(int& row, int& column)
{
    const int warp = threadIdx.x / 32;
    int lane_m, lane_n;
    split_lane<LANES_M>(threadIdx.x % 32, lane_m, lane_n);
    row = warp / WARPS_N * (LANES_M * TM) + lane_m * GROUPED;
    column = warp % WARPS_N * (LANES_N * TN) + lane_n * GROUPED;
}
