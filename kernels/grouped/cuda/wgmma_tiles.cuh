// Tiles of products on tensor cores of sm_90, fed by tensor maps: BM rows of C by BN columns, each of one of several matrices B.
//
// What gemm's wgmma_tma does for one product, without its clusters and shares. Blocks stay, and take tiles in turn: `tile_at` says which
// a number is, and finds the next one while the products of the one before are under way. 16 bits, sums in FP32; or 8 bits (EIGHT), whose
// sums leave the tensor cores after each place (scales.cuh).
//
// Comes after half.cuh, pairs.cuh, operands.cuh, hopper.cuh, tensor_maps.cuh, operand_layout.cuh, wgmma_shared.cuh, scales.cuh.
// Memory   STAGES places of 128 bytes of terms of both tiles, swizzled by 128 bytes.
// Edges    Boxes bring zeros from beyond a tensor's edges. Rows from the tile's end on, and columns beyond C, are not stored.
// Letters  BM BN        tile of C; CONSUMERS warpgroups share its rows. Of fewer than 64 no more are fetched: wgmma takes what lies
//                       behind them for the others, which are not stored.
//          STAGES       places in shared memory
//          STORE        tma: through shared memory in boxes of 16 x 64; registers: each thread its pairs

#if FLOAT_RESULT
using Result = float;
#else
using Result = unsigned short;
#endif
constexpr int TERMS = EIGHT ? 128 : 64, ROW_BYTES = 128, BOX_BYTES = 64 * ROW_BYTES;
constexpr int ROWS = BM < 64 ? 1 : BM / 64 / CONSUMERS, THREADS = 128 * (CONSUMERS + 1);
constexpr int A_BYTES = BM * ROW_BYTES, SLOT = A_BYTES + BN * ROW_BYTES, SHEET = 16 * ROW_BYTES;
constexpr int GIVEN = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 0;  // registers of a consumer's thread
constexpr int KEPT = 65536 / THREADS / 8 * 8 * (CONSUMERS + 1) - CONSUMERS * GIVEN;

__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int x, int y, int z, unsigned from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Two results as they are stored.
__device__ __forceinline__ unsigned both(float left, float right)
{
    unsigned two;
#if BFLOAT
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(right), "f"(left));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(right), "f"(left));
#endif
    return two;
}

// Where something lies in the ring of places; it flips a phase each time round.
struct Place {
    unsigned at = 0, phase = 0;
    __device__ __forceinline__ void step()
    {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

// Rows of C from `first` to before `end`, none where that is no more; they are times matrix `group` of B.
struct Tile {
    int group, first, end, column;
    __device__ __forceinline__ bool is_empty() const { return first >= end; }
};

// The products of a place; those of the first replace the sums.
__device__ __forceinline__ void multiply_place(float (&sum)[ROWS][SUMS], unsigned slot, int group, bool first)
{
    constexpr int NEXT_A = A_ALONG_M ? 16 * ROW_BYTES / 16 : 2, NEXT_B = B_ALONG_N ? 16 * ROW_BYTES / 16 : 2;
    const unsigned at_a = slot + group * ROWS * BOX_BYTES, at_b = slot + A_BYTES;
    const unsigned long long a = A_ALONG_M ? across_terms<64>(at_a, TERMS) : along_terms(at_a);
    const unsigned long long b = B_ALONG_N ? across_terms<64>(at_b, TERMS) : along_terms(at_b);
    begin_products();
#pragma unroll
    for (int step = 0; step < ROW_BYTES / 32; ++step)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            multiply_async(sum[r], a + step * NEXT_A + r * (BOX_BYTES / 16), b + step * NEXT_B, step || !first);
    close_products();
}

#if STORE == STORE_tma
// Stores a warpgroup's 64 rows from `row` on, 64 columns at a time: a warp fills one of its two sheets of 16 rows while the other one is
// stored, by the copy engine if all rows are the tile's.
template <class StoreBox>
__device__ __forceinline__ void store_rows(const float (&s)[SUMS], Result* __restrict__ c, const Tile& tile, int row, int n,
                                           unsigned sheets, unsigned& sheet, StoreBox store_box)
{
    const int lane = threadIdx.x % 32, line = lane % 16;
    row += threadIdx.x / 32 % 4 * 16;
    if (row >= tile.end) return;
#pragma unroll
    for (int piece = 0; piece < BN / 64; ++piece) {
        const unsigned from = sheets + sheet * SHEET;
        const int column = tile.column + piece * 64;
        if (lane == 0) await_stores_read<1>();
        __syncwarp();
#pragma unroll
        for (int two = 0; two < 4; ++two) {
            const int j = piece * 32 + two * 8;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(from + line * ROW_BYTES + ((two * 2 + lane / 16) ^ line % 8) * 16), "r"(both(s[j], s[j + 1])),
                         "r"(both(s[j + 2], s[j + 3])), "r"(both(s[j + 4], s[j + 5])), "r"(both(s[j + 6], s[j + 7])) : "memory");
        }
        publish_to_copies();
        __syncwarp();
        if (row + 16 <= tile.end) {
            if (lane == 0) store_box(column, row, from);
            sheet ^= 1;
            continue;
        }
#pragma unroll
        for (int y = lane / 8; y < 16; y += 4) {
            const int x = column + lane % 8 * 8;
            uint4 eight;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                         : "r"(from + y * ROW_BYTES + (lane % 8 ^ y % 8) * 16) : "memory");
            if (row + y < tile.end && x < n) *(uint4*)(c + (size_t)(row + y) * n + x) = eight;
        }
        __syncwarp();
    }
}
#else
template <class StoreBox>
__device__ __forceinline__ void store_rows(const float (&sum)[SUMS], Result* __restrict__ c, const Tile& tile, int row, int n, unsigned,
                                           unsigned&, StoreBox)
{
    const int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (row + h * 8 >= tile.end) continue;
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            const int column = tile.column + j * 8 + lane % 4 * 2;
#if FLOAT_RESULT
            Result* const to = c + (size_t)(row + h * 8) * n + column;
            if (column < n) to[0] = sum[4 * j + 2 * h];
            if (column + 1 < n) to[1] = sum[4 * j + 2 * h + 1];
#else
            store_pair(c, row + h * 8, column, n, sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
#endif
        }
    }
}
#endif

// A matrix's scales, of which those of B follow each other (scales.cuh).
__device__ __forceinline__ Scales scales_of_matrix(const float* a, const float* b, int matrix, int rows, int n, int k)
{
    const int blocks = (k - 1) / SCALED + 1, each = SCALES == 1 ? 1 : SCALES == 2 ? n : ((n - 1) / SCALED + 1) * blocks;
    return {a, b + (size_t)matrix * each, rows, n, blocks};
}

// All of a kernel. `fetch_a` brings a tile's rows of A, the terms from one on, to an address; `store_c` has a box of C stored from an
// address; `scales_of` knows a tile's scales.
template <class TileAt, class FetchA, class StoreC, class ScalesOf>
__device__ __forceinline__ void multiply_tiles(const TensorMap& map_a, const TensorMap& map_b, Result* __restrict__ c, int n, int k,
                                               int tiles, TileAt tile_at, FetchA fetch_a, StoreC store_c, ScalesOf scales_of)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
    const unsigned slots = (shared_address(memory) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        prefetch_map(map_a);
        prefetch_map(map_b);
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared_address(full + s), 1);
            make_barrier(shared_address(empty + s), 4 * CONSUMERS);
        }
        publish_barriers();
    }
    __syncthreads();

    const int lane = threadIdx.x % 32, chunks = (k - 1) / TERMS + 1;
    Place place;
    if (threadIdx.x < 128) {
        if (GIVEN > 0) give_registers<KEPT>();
        if (threadIdx.x >= 32) return;
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const Tile tile = tile_at(number);
            if (lane != 0 || tile.is_empty()) continue;
            for (int chunk = 0; chunk < chunks; ++chunk, place.step()) {
                const unsigned barrier = shared_address(full + place.at), to = slots + place.at * SLOT;
                await_phase(shared_address(empty + place.at), place.phase ^ 1);
                arrive_expecting(barrier, SLOT);
                fetch_a(to, tile, chunk * TERMS, barrier);
                if (!B_ALONG_N) load_box(to + A_BYTES, map_b, chunk * TERMS, tile.column, tile.group, barrier);
#pragma unroll
                for (int box = 0; box < (B_ALONG_N ? BN / 64 : 0); ++box)
                    load_box(to + A_BYTES + box * BOX_BYTES, map_b, tile.column + box * 64, chunk * TERMS, tile.group, barrier);
            }
        }
        return;
    }

    if (GIVEN > 0) take_registers<GIVEN>();
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
    auto release = [&](unsigned at) {
        if (lane == 0) arrive(shared_address(empty + at));
    };
    const unsigned sheets = slots + STAGES * SLOT + (threadIdx.x / 32 - 4) * 2 * SHEET;
    unsigned sheet = 0;
    Tile tile = tile_at(blockIdx.x), next = tile;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x, tile = next) {
        if (tile.is_empty()) {
            next = tile_at(min(number + (int)gridDim.x, tiles - 1));
            continue;
        }
        const int row = tile.first + group * ROWS * 64;
        float sum[ROWS][SUMS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[r][i] = 0.0f;
#if EIGHT
        const Scales scales = scales_of(tile);
        float part[ROWS][SUMS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) part[r][i] = 0.0f;
        for (int chunk = 0; chunk < chunks; ++chunk, place.step()) {
            Scales::OfBlock of[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) of[r] = scales.of_block(row + r * 64, tile.column, chunk);
            await_phase(shared_address(full + place.at), place.phase);
            multiply_place(part, slots + place.at * SLOT, group, true);
            await_products<0>();
            release(place.at);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                keep_in_place(part[r]);
                scales.add(sum[r], part[r], of[r], tile.column);
            }
        }
        next = tile_at(min(number + (int)gridDim.x, tiles - 1));
#pragma unroll
        for (int r = 0; r < ROWS; ++r) scales.multiply(sum[r], row + r * 64, tile.column);
#else
        unsigned before = 0;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            await_phase(shared_address(full + place.at), place.phase);
            multiply_place(sum, slots + place.at * SLOT, group, chunk == 0);
            if (chunk > 0) {
                await_products<1>();
                release(before);
            }
            before = place.at;
            place.step();
        }
        next = tile_at(min(number + (int)gridDim.x, tiles - 1));
        await_products<0>();
        release(before);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) keep_in_place(sum[r]);
#endif
#pragma unroll
        for (int r = 0; r < ROWS; ++r) store_rows(sum[r], c, tile, row + r * 64, n, sheets, sheet, store_c);
    }
#if STORE == STORE_tma
    if (lane == 0) await_stores_read<0>();  // shared memory is the block's until then
#endif
}
