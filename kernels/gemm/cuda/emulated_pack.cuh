// What packing has in common, of one matrix and of stacks: a tile of an operand, and the verdict (emulated_pack.cu tells the
// idea, the letters and the source).

constexpr int PACK_THREADS = 256, TILE = 64;  // rows of a tile; it is CHUNK terms deep
constexpr int LANES = CHUNK / 8, PASS = 32 / LANES, PASSES = 8 / PASS;  // a warp has 8 rows, PASS at a time
constexpr int PITCH = TILE + 1;

// Where a tile that is to be turned has its element. Half-chunks are skewed, so that 8 lanes a row meet 32 banks.
__device__ __forceinline__ int staged_at(int term, int row) { return term * PITCH + row + term / 32 * 4; }
constexpr int STAGED = CHUNK * PITCH + CHUNK / 32 * 4;

// Two neighbours at a time: one instruction rounds both.
__device__ __forceinline__ void split(float first, float second, float low_scale, unsigned& high, unsigned& low)
{
    float first_high, second_high;
    asm volatile("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(high) : "f"(first), "f"(second));
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(first_high) : "h"((unsigned short)high));
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(second_high) : "h"((unsigned short)(high >> 16)));
    const float first_low = (first - first_high) * low_scale, second_low = (second - second_high) * low_scale;
    asm volatile("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(low) : "f"(first_low), "f"(second_low));
}

// What one thread has seen of one operand; counts are the largest of a chunk.
struct Seen {
    int key = -1;  // operand * 2 + (the last chunk, which has fewer terms)
    unsigned field[SPREAD_FIELDS] = {};
};

// A block's sights meet here, then in the workspace. The last block has those of both operands.
__shared__ unsigned seen_by_block[4][SPREAD_FIELDS];
__shared__ Header headers[2];

__device__ __forceinline__ void leave(Seen& seen, int key)
{
    if (seen.key >= 0) {
#pragma unroll
        for (int f = 0; f < SPREAD_FIELDS; ++f) {
            unsigned value = seen.field[f];
#pragma unroll
            for (int lanes = 16; lanes; lanes /= 2) value = max(value, __shfl_xor_sync(~0u, value, lanes));
            if (threadIdx.x % 32 == 0 && value) atomicMax(&seen_by_block[seen.key][f], value);
            seen.field[f] = 0;
        }
    }
    seen.key = key;
}

// Eight neighbouring terms of a row. `whole`: 16-byte reads are aligned.
__device__ __forceinline__ void read_terms(float (&x)[8], const float* from, int left, bool whole)
{
    if (whole && left >= 8) {
        const float4 first = __ldcs((const float4*)from), second = __ldcs((const float4*)from + 1);
        x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
        x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = i < left ? from[i] : 0.0f;
    }
}

// The same where rows start between multiples of 16 bytes: aligned reads of twelve, of which eight are chosen.
__device__ __forceinline__ void read_terms_between(float (&x)[8], const float* from, int left, const float* end)
{
    const unsigned over = (unsigned)((size_t)from / 4 % 4);
    const float* const aligned = from - over;
    if (left < 8 || end - aligned < 12) {
        read_terms(x, from, left, false);
        return;
    }
    float y[12];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float4 four = __ldg((const float4*)aligned + i);
        y[4 * i] = four.x, y[4 * i + 1] = four.y, y[4 * i + 2] = four.z, y[4 * i + 3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 11; ++i) y[i] = over & 1 ? y[i + 1] : y[i];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = over & 2 ? y[i + 2] : y[i];
}

// Reads a tile whose rows are contiguous in memory into `staged`.
__device__ __forceinline__ void stage(float* staged, const float* x, int rows, int k, int row, int term, bool whole)
{
    if (whole && row + TILE <= rows) {
#pragma unroll
        for (int i = 0; i < CHUNK * TILE / 4 / PACK_THREADS; ++i) {
            const int at = i * PACK_THREADS + threadIdx.x, t = at / (TILE / 4), r = at % (TILE / 4) * 4;
            float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
            if (term + t < k) four = __ldcs((const float4*)(x + (size_t)(term + t) * rows + row + r));
            staged[staged_at(t, r)] = four.x;
            staged[staged_at(t, r + 1)] = four.y;
            staged[staged_at(t, r + 2)] = four.z;
            staged[staged_at(t, r + 3)] = four.w;
        }
    } else if (term + CHUNK <= k && row + TILE <= rows) {
        const int t = threadIdx.x / TILE, r = threadIdx.x % TILE;
        const float* from = x + (size_t)(term + t) * rows + row + r;
        const size_t step = (size_t)(PACK_THREADS / TILE) * rows;
#pragma unroll
        for (int i = 0; i < CHUNK * TILE / PACK_THREADS; ++i, from += step)
            staged[staged_at(t + i * (PACK_THREADS / TILE), r)] = __ldcs(from);
    } else {
#pragma unroll 4
        for (int i = 0; i < CHUNK * TILE / PACK_THREADS; ++i) {
            const int at = i * PACK_THREADS + threadIdx.x, t = at / TILE, r = at % TILE;
            const bool inside = term + t < k && row + r < rows;
            staged[staged_at(t, r)] = inside ? __ldcs(x + (size_t)(term + t) * rows + row + r) : 0.0f;
        }
    }
}

// The largest element of each row's chunk, or of all eight of the warp's, as bits.
template <int SHARED>
__device__ __forceinline__ void find_tops(const float (&x)[PASSES][8], unsigned (&tops)[PASSES])
{
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        tops[pass] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) tops[pass] = max(tops[pass], __float_as_uint(x[pass][i]) & 0x7fffffffu);
        if (SHARED > 1 && pass) tops[0] = max(tops[0], tops[pass]);
    }
#pragma unroll
    for (int pass = 0; pass < (SHARED > 1 ? 1 : PASSES); ++pass)
#pragma unroll
        for (int lanes = SHARED > 1 ? 16 : LANES / 2; lanes; lanes /= 2)
            tops[pass] = max(tops[pass], __shfl_xor_sync(~0u, tops[pass], lanes));
#pragma unroll
    for (int pass = 1; pass < PASSES; ++pass)
        if (SHARED > 1) tops[pass] = tops[0];
}

// Biased exponent of a group's largest, one more if FP16 would round it up to infinity; or of what stands for it if that is
// subnormal or nearly so.
__device__ __forceinline__ unsigned field_of(unsigned top)
{
    if (SHOWN) return 127 + TOP;  // no scale
    constexpr unsigned FROM_INFINITY = 0x1000;  // half of the last bit of eleven
    return max((top >> 23) < 255 ? (top + FROM_INFINITY) >> 23 : 255, (unsigned)TOP + 1);
}

// Scales eight terms, which LANES neighbouring lanes have of a row's chunk, and notes what they look like; true if any of
// them asks for low parts that are scaled up.
__device__ __forceinline__ bool scale_terms(float (&x)[8], unsigned top, int missing, Seen& seen)
{
    // Scales are powers of two up to 2^126: for subnormals that suffices, since their low bits fit all the same.
    const unsigned field = field_of(top);
    const float scale = __uint_as_float((254 + TOP - (field == 255 ? 254 : field)) << 23);

    unsigned counts = 0;  // a byte each: small_8, small_18, harmful, filled
    bool tiny = false;
    float least = 0x1p127f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        x[i] *= scale;
        const float size = fabsf(x[i]);
        least = fminf(least, size);
        counts += size < 256.0f ? 1u : 0u;
    }
    if (__any_sync(~0u, least < 0.25f)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float size = fabsf(x[i]);
            counts += (size < 0.25f ? 1u << 8 : 0u)
                      + (size > 0.0f ? size < 0x1p-15f ? 1u << 16 | 1u << 24 : 1u << 24 : 0u);
            tiny |= size > 0.0f && size < 0x1p-5f;
        }
    } else {
        counts += 8u << 24;  // the usual case: none is zero or small
    }
    counts -= (unsigned)missing * 0x101u;  // past k
#pragma unroll
    for (int lanes = LANES / 2; lanes; lanes /= 2) counts += __shfl_xor_sync(~0u, counts, lanes);
    if (top) {
        if (counts >> 24) {
            seen.field[0] = max(seen.field[0], counts & 255);
            seen.field[1] = max(seen.field[1], counts >> 8 & 255);
            seen.field[2] = max(seen.field[2], counts >> 16 & 255);
            seen.field[3] = max(seen.field[3], counts >> 24);
        }
        seen.field[4] = max(seen.field[4], field);
        seen.field[5] = max(seen.field[5], 255 - field);
    }
    return tiny && !SHOWN;
}

// Splits and stores eight scaled terms.
template <int SHARED>
__device__ __forceinline__ void store_terms(const float (&x)[8], unsigned top, bool shifted, const Packed& to, unsigned row,
                                            unsigned chunk)
{
    if (row >= to.rows) return;
    const unsigned lane = threadIdx.x % LANES, field = field_of(top);
    unsigned high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        split(x[2 * i], x[2 * i + 1], shifted ? (float)(1 << LOW_SHIFT) : 1.0f, high[i], low[i]);
    if (lane == 0 && row % SHARED == 0) {
        const float factor = __uint_as_float(((field == 255 ? 254 : field) - TOP) << 23);
        to.factors[(size_t)chunk * to.groups + row / SHARED] = !top ? 0.0f : shifted ? -factor : factor;
    }
    unsigned char* const at = to.data + (((size_t)chunk * BLOCKS_OF_CHUNK + lane / 4) * to.rows + row) * ROW_BYTES;
    const unsigned place = (lane % 4 ^ row % 8) * 16;
    *(uint4*)(at + place) = make_uint4(high[0], high[1], high[2], high[3]);
    *(uint4*)(at + (place ^ 64)) = make_uint4(low[0], low[1], low[2], low[3]);
}

template <bool ALONG_K, int SHARED>
__device__ __forceinline__ void pack_tile(const float* x, int rows, int k, unsigned tile, const Packed& to, int operand,
                                          float* staged, Seen& seen)
{
    const unsigned row_tiles = (to.rows - 1) / TILE + 1;
    const unsigned chunk = ALONG_K ? tile % to.chunks : tile / row_tiles;
    const int row = (ALONG_K ? tile / to.chunks : tile % row_tiles) * TILE, term = chunk * CHUNK;
    const int key = operand * 2 + (term + CHUNK > k);
    if (key != seen.key) leave(seen, key);
    const bool whole = (ALONG_K ? k : rows) % 4 == 0 && (size_t)x % 16 == 0;
    const int lane = threadIdx.x % LANES, first = row + threadIdx.x / 32 * 8 + threadIdx.x % 32 / LANES;
    const int left = k - term - lane * 8, missing = left >= 8 ? 0 : left > 0 ? 8 - left : 8;
    float terms[PASSES][8];
    if (ALONG_K) {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int r = first + pass * PASS;
            const float* const from = x + (size_t)r * k + term + lane * 8;
            if (whole || (size_t)x % 16) read_terms(terms[pass], from, r < rows ? left : 0, whole);
            else read_terms_between(terms[pass], from, r < rows ? left : 0, x + (size_t)rows * k);
        }
    } else {
        __syncthreads();  // the tile before has been read
        stage(staged, x, rows, k, row, term, whole);
        __syncthreads();
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < 8; ++i) terms[pass][i] = staged[staged_at(lane * 8 + i, first - row + pass * PASS)];
    }
    unsigned tops[PASSES];
    find_tops<SHARED>(terms, tops);
    unsigned tiny[PASSES];  // lanes that ask for low parts scaled up
    bool any = false;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        tiny[pass] = __ballot_sync(~0u, scale_terms(terms[pass], tops[pass], missing, seen));
        any |= tiny[pass] != 0;
    }
    const unsigned row_lanes = ((1u << (LANES - 1)) * 2 - 1) << (threadIdx.x % 32 / LANES * LANES);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const bool shifted = SHARED > 1 ? any : (tiny[pass] & row_lanes) != 0;
        store_terms<SHARED>(terms[pass], tops[pass], shifted, to, first + pass * PASS, chunk);
    }
}

// Whether the errors of elements far below their chunk's largest stay below 2^-24 of sum |a||b|, and no factor of a product
// leaves FP32's range. docs/log/kernels/gemm-emulated.md has the argument.
__device__ bool is_safe(const Header& a, const Header& b, int k)
{
    if (SHOWN) return true;
    const unsigned top_a = max(a.spread[0].highest, a.spread[1].highest);
    const unsigned top_b = max(b.spread[0].highest, b.spread[1].highest);
    if (top_a == 255 || top_b == 255) return false;
    if (top_a == 0 || top_b == 0) return true;  // all zero
    // Diagonals, permutations, one-hot rows: sums of a term or two have nothing for the errors of splitting to vanish in.
    if (max(a.spread[0].filled, a.spread[1].filled) <= 2 || max(b.spread[0].filled, b.spread[1].filled) <= 2) return false;
    const int low_a = 255 - max(a.spread[0].lowest, a.spread[1].lowest);
    const int low_b = 255 - max(b.spread[0].lowest, b.spread[1].lowest);
    if (low_a + low_b < 2 * 127 + 2 * TOP - 149) return false;  // a product of factors would be no FP32 number
    int doublings = 0;
    while (doublings < 31 && (1u << doublings) < (unsigned)k) ++doublings;
    if ((int)top_a + (int)top_b + 2 + doublings >= 3 * 127) return false;  // a sum could overflow
    for (int part = 0; part < 2; ++part) {
        const Spread &of_a = a.spread[part], &of_b = b.spread[part];
        const int harmful = of_a.harmful + of_b.harmful, terms = part ? k % CHUNK : CHUNK;
        const int both = terms - (int)min(of_a.small_8 + of_b.small_18, of_a.small_18 + of_b.small_8);
        if (harmful > 0 && harmful > both) return false;
    }
    return true;
}

// The last block hands on what was seen of the operands that this launch has packed, and decides.
__device__ __forceinline__ void decide(bool packs_a, bool packs_b, const void* packed_a, const void* packed_b, int k,
                                       Control* control, unsigned* fallbacks)
{
    const unsigned field = threadIdx.x % (2 * SPREAD_FIELDS), operand = threadIdx.x / (2 * SPREAD_FIELDS);
    if (operand < 2) {
        unsigned* const known = (unsigned*)(operand ? packed_b : packed_a) + field;
        unsigned value = 0;
        if (operand ? packs_b : packs_a) {
            value = atomicExch(&control->running[operand][0].small_8 + field, 0u);
            *known = value;
        } else if (operand ? packed_b : packed_a) {
            value = *known;
        }
        (&headers[operand].spread[0].small_8)[field] = value;
    }
    __syncthreads();
    if (threadIdx.x || !packed_a || !packed_b) return;
    const bool safe = is_safe(headers[0], headers[1], k);
    control->fall_back = safe ? 0 : 1;
    if (!safe && fallbacks) atomicAdd(fallbacks, 1u);
}
