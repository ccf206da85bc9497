// What emulated products have in common, of one matrix and of stacks: a tile of C from packed operands (emulated.cu tells the
// idea, the letters and the source).

constexpr int BM = 64 * CONSUMERS, BN = WIDTH * PARTS, THREADS = 128 * (CONSUMERS + 1);
constexpr int SLOT = (BM + BN) * ROW_BYTES;                          // bytes of a place: A's tile, then B's
constexpr int OF_B = BN / SHARE + 8;                                 // factors of B: from a multiple of four on
constexpr int FACTORS = (BM + OF_B + 3) / 4 * 4, FACTOR_SLOTS = STAGES / BLOCKS_OF_CHUNK + 2;  // floats; A's, then B's
constexpr int PIECE = BN / CLUSTER;                                  // rows of B that a block fetches
constexpr int WARPS = 4 * CONSUMERS;
constexpr bool COMPENSATED = PROMOTION == PROMOTION_compensated;
constexpr int LOST = COMPENSATED ? SUMS : 1;                         // registers for what additions have lost
constexpr int POOL = 65536 / THREADS / 8 * 8 * (CONSUMERS + 1);      // registers of a thread of each warpgroup, together
constexpr int KEPT = POOL - CONSUMERS * GIVEN;                       // the producer's share


static_assert(STAGES >= BLOCKS_OF_CHUNK, "a chunk's places are all in use at once");
static_assert(!SHOWN || PARTS == 1, "ladders show one part");
static_assert(BN <= 256, "a lane looks at eight columns");
static_assert(PIECE % 8 == 0, "swizzled rows come in eights");

// A tile of C, or a share of one, and the chunks that it sums.
struct Item {
    unsigned tile, share, first, last;
    int row, column;
};

__device__ __forceinline__ Item item_at(unsigned item, unsigned rank, unsigned tiles_m, unsigned tiles_n, unsigned chunks)
{
    Item to;
    const unsigned tile = item / SPLIT_K, of_swath = GROUP * tiles_n, swath = tile / of_swath;
    const unsigned rows = min((unsigned)GROUP, tiles_m - swath * GROUP), inside = tile % of_swath;
    unsigned column = inside / rows;
    if (ORDER == ORDER_snake && swath % 2) column = tiles_n - 1 - column;
    to.tile = tile * CLUSTER + rank;
    to.share = item % SPLIT_K;
    to.row = ((swath * GROUP + inside % rows) * CLUSTER + rank) * BM;
    to.column = column * BN;
    const unsigned each = (chunks - 1) / SPLIT_K + 1;
    to.first = min(to.share * each, chunks);
    to.last = min(to.first + each, chunks);
    return to;
}

// Where something lies in rings of places: counts round, and flips a phase each time.
template <int SIZE>
struct Place {
    unsigned at = 0, phase = 0;
    __device__ __forceinline__ void step()
    {
        if (++at == SIZE) at = 0, phase ^= 1;
    }
};

// Rows from `row` on that a tile of `most` rows has.
__device__ __forceinline__ unsigned rows_in(int row, unsigned rows, unsigned most)
{
    return row < (int)rows ? min(rows - row, most) : 0;
}

struct Shared {
    unsigned slots, factors, full, empty, turns;  // addresses
};

// Two warpgroups issue products in turn, so that one adds while the tensor cores work for the other. By mbarriers:
// the compiler moves arithmetic into the turn past named ones.
struct Turn {
    unsigned mine, next, parity;
    __device__ __forceinline__ void take()
    {
        if (TURNS == TURNS_free) return;
        await_phase_late(mine, parity);
        parity ^= 1;
    }
    __device__ __forceinline__ void pass()
    {
        if (TURNS != TURNS_free && threadIdx.x % 32 == 0) arrive(next);
    }
};

__device__ __forceinline__ void produce(const Packed& a, const Packed& b, const Item& item, unsigned rank, const Shared& shared,
                                        Place<STAGES>& place, unsigned& factor_slot)
{
    const unsigned rows_a = rows_in(item.row, a.rows, BM), rows_b = rows_in(item.column, b.rows, BN);
    const int piece = item.column + rank * PIECE;
    const unsigned rows_piece = rows_in(piece, b.rows, PIECE);
    const unsigned group = item.column / SHARE / 4 * 4, groups = min(b.groups - group, (unsigned)OF_B / 4 * 4);
    for (unsigned chunk = item.first; chunk < item.last; ++chunk) {
#pragma unroll
        for (int j = 0; j < BLOCKS_OF_CHUNK; ++j) {
            const unsigned full = shared.full + place.at * 8, to = shared.slots + place.at * SLOT;
            await_phase(shared.empty + place.at * 8, place.phase ^ 1);
            const unsigned factor_bytes = j ? 0 : (rows_a + groups) * 4;
            arrive_expecting(full, (rows_a + rows_b) * ROW_BYTES + factor_bytes);
            const size_t block = (size_t)chunk * BLOCKS_OF_CHUNK + j;
            if (rows_a)
                copy_bulk(to, a.data + (block * a.rows + item.row) * ROW_BYTES, rows_a * ROW_BYTES, full);
            if (rows_piece) {
                const unsigned char* const from = b.data + (block * b.rows + piece) * ROW_BYTES;
                const unsigned into = to + (BM + rank * PIECE) * ROW_BYTES;
                if (CLUSTER > 1) copy_bulk_to(into, from, rows_piece * ROW_BYTES, full, (1 << CLUSTER) - 1);
                else copy_bulk(into, from, rows_piece * ROW_BYTES, full);
            }
            if (j == 0) {
                const unsigned into = shared.factors + factor_slot * FACTORS * 4;
                if (rows_a) copy_bulk(into, a.factors + (size_t)chunk * a.rows + item.row, rows_a * 4, full);
                copy_bulk(into + BM * 4, b.factors + (size_t)chunk * b.groups + group, groups * 4, full);
            }
            place.step();
        }
        factor_slot = factor_slot + 1 == FACTOR_SLOTS ? 0 : factor_slot + 1;
    }
}

// Calls `use(j, factor)` for each of the eight-column groups of a part. Lanes read the same: one access serves all.
template <class F>
__device__ __forceinline__ void for_columns(const float* columns, F use)
{
    constexpr int AT_ONCE = WIDTH % 32 == 0 ? 4 : 1;
#pragma unroll
    for (int j = 0; j < WIDTH / 8; j += AT_ONCE) {
        if (AT_ONCE == 4) {
            const float4 four = *(const float4*)(columns + j);
            use(j, four.x), use(j + 1, four.y), use(j + 2, four.z), use(j + 3, four.w);
        } else {
            use(j, columns[j]);
        }
    }
}

// sum += t * factor. Compensated: what rounding took from the sum comes back with the next term (Kahan 1965).
__device__ __forceinline__ void add_term(float& sum, float& lost, float t, float factor)
{
    if (COMPENSATED) {
        const float term = __fmaf_rn(t, factor, -lost), grown = __fadd_rn(sum, term);
        lost = __fsub_rn(__fsub_rn(grown, sum), term);
        sum = grown;
    } else {
        sum = fmaf(t, factor, sum);
    }
}

// Adds a chunk's sums times the factors of its two rows and of the columns.
__device__ __forceinline__ void add(float (&sum)[SUMS], float (&lost)[LOST], const float (&t)[SUMS], float upper, float lower,
                                    const float* columns)
{
    for_columns(columns, [&](int j, float factor) {
        const float up = fabsf(upper) * fabsf(factor), down = fabsf(lower) * fabsf(factor);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) add_term(sum[i], lost[COMPENSATED ? i : 0], t[i], i % 4 < 2 ? up : down);
    });
}

// Operands of a chunk: high parts; low ones are 64 bytes on. Where its factors lie, and whether some of the warpgroup's rows
// or of the tile's columns have low parts that are scaled up.
struct Operands {
    unsigned long long a[BLOCKS_OF_CHUNK], b[BLOCKS_OF_CHUNK];
    unsigned slot[BLOCKS_OF_CHUNK];
    const float* factors;
    bool shifted_rows;
    unsigned shifted_columns;  // a bit for each eight of them

    __device__ __forceinline__ bool shifted(int part) const
    {
        constexpr unsigned ALL = (1u << (WIDTH / 8 - 1)) * 2 - 1;
        return shifted_rows || (shifted_columns >> (part * WIDTH / 8) & ALL);
    }
};
constexpr int LOW = 64 / 16;  // in a descriptor

// Rows of a warpgroup and groups of columns that its tile has: shared memory past them is stale.
struct Edges {
    unsigned rows, groups;
};

// Waits for a chunk's operands. All warps of a warpgroup find the same.
__device__ __forceinline__ void prepare(Operands& of, const Shared& shared, const float* factors, int group, int first_factor,
                                        const Edges& edges, Place<STAGES>& place, unsigned& factor_slot)
{
#pragma unroll
    for (int j = 0; j < BLOCKS_OF_CHUNK; ++j) {
        of.slot[j] = place.at;
        await_phase(shared.full + place.at * 8, place.phase);
        const unsigned at = shared.slots + place.at * SLOT;
        of.a[j] = operand_at(at + group * 64 * ROW_BYTES);
        of.b[j] = operand_at(at + BM * ROW_BYTES);
        place.step();
    }
    of.factors = factors + factor_slot * FACTORS;
    factor_slot = factor_slot + 1 == FACTOR_SLOTS ? 0 : factor_slot + 1;
    const unsigned lane = threadIdx.x % 32;
    const float *const rows = of.factors + group * 64 + lane, *const columns = of.factors + BM + first_factor;
    const bool row = rows[0] < 0.0f && lane < edges.rows, lower = rows[32] < 0.0f && lane + 32 < edges.rows;
    of.shifted_rows = __any_sync(~0u, row || lower);
    of.shifted_columns = __ballot_sync(~0u, lane < edges.groups && columns[min(lane, BN / SHARE - 1u)] < 0.0f);
}

// Whether all of the next chunk's operands have arrived.
__device__ __forceinline__ bool has_arrived(const Shared& shared, Place<STAGES> place)
{
    bool arrived = true;
#pragma unroll
    for (int j = 0; j < BLOCKS_OF_CHUNK; ++j) {
        arrived &= is_over(shared.full + place.at * 8, place.phase);
        place.step();
    }
    return arrived;
}

__device__ __forceinline__ void multiply_chunk(float (&t)[SUMS], const Operands& of, int low_a, int low_b, int add)
{
#pragma unroll
    for (int j = 0; j < BLOCKS_OF_CHUNK; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            multiply_async(t, of.a[j] + low_a + 2 * i, of.b[j] + low_b + 2 * i, add + i + j);
}

// Low parts as they are: all products at once, low ones first.
__device__ __forceinline__ void multiply_plain(float (&t)[SUMS], const Operands& of, Turn& turn)
{
    turn.take();
    begin_products();
    multiply_chunk(t, of, LOW, 0, 0);
    multiply_chunk(t, of, 0, LOW, 1);
    if (TURNS == TURNS_early) turn.pass();
    multiply_chunk(t, of, 0, 0, 1);
    close_products();
    if (TURNS == TURNS_taken) turn.pass();
}

// Some low parts are scaled up: each kind of low products is scaled down in registers before others join it.
__device__ __forceinline__ void multiply_shifted(float (&t)[SUMS], const Operands& of, int row, const float* columns, Turn& turn)
{
    constexpr float SCALE = 1 << LOW_SHIFT;
    const float up = of.factors[row] < 0.0f ? SCALE : 1.0f, down = of.factors[row + 8] < 0.0f ? SCALE : 1.0f;
    turn.take();
    begin_products();
    multiply_chunk(t, of, 0, LOW, 0);
    close_products();
    await_products(t);
    for_columns(columns, [&](int j, float factor) {
        const float by = factor < 0.0f ? 1.0f / SCALE : 1.0f;
        t[4 * j] *= by * up, t[4 * j + 1] *= by * up, t[4 * j + 2] *= by * down, t[4 * j + 3] *= by * down;
    });
    if (of.shifted_rows) {
        begin_products();
        multiply_chunk(t, of, LOW, 0, 1);
        close_products();
        await_products(t);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) t[i] *= 1.0f / (i % 4 < 2 ? up : down);
        begin_products();
        multiply_chunk(t, of, 0, 0, 1);
        close_products();
    } else {
        begin_products();
        multiply_chunk(t, of, LOW, 0, 1);
        multiply_chunk(t, of, 0, 0, 1);
        close_products();
    }
    turn.pass();
    await_products(t);
}

// What ladders show: sums stay inside wgmma.
__device__ __forceinline__ void multiply_inside(float (&sum)[SUMS], const Operands& of)
{
    begin_products();
    if (SHOWN == 3) multiply_chunk(sum, of, LOW, 0, 1);
    if (SHOWN == 3) multiply_chunk(sum, of, 0, LOW, 1);
    multiply_chunk(sum, of, 0, 0, 1);
    close_products();
    await_products(sum);
}

// Gives a chunk's places back, to the producers of all blocks that fill them.
__device__ __forceinline__ void release(const Operands& of, const Shared& shared)
{
    const int lane = threadIdx.x % 32;
    if (lane >= CLUSTER) return;
#pragma unroll
    for (int j = 0; j < BLOCKS_OF_CHUNK; ++j) {
        if (CLUSTER > 1) arrive_at(shared.empty + of.slot[j] * 8, lane);
        else arrive(shared.empty + of.slot[j] * 8);
    }
}

// Sums of a warpgroup's 64 rows over the chunks of an item. What the next chunk needs is prepared while this one multiplies.
__device__ __forceinline__ void consume(float (&sum)[PARTS][SUMS], float (&lost)[PARTS][LOST], const Item& item, const Shared& shared,
                                        const float* factors, int group, const Edges& edges, Place<STAGES>& place,
                                        unsigned& factor_slot, Turn& turn)
{
    const int row = group * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, first_factor = item.column / SHARE % 4;
    Operands next;
    if (item.first < item.last) prepare(next, shared, factors, group, first_factor, edges, place, factor_slot);
    for (unsigned chunk = item.first; chunk < item.last; ++chunk) {
        Operands of = next;
        const float* const columns = of.factors + BM + first_factor;
        if (SHOWN) {
            multiply_inside(sum[0], of);
            release(of, shared);
            if (chunk + 1 < item.last) prepare(next, shared, factors, group, first_factor, edges, place, factor_slot);
            continue;
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            float t[SUMS];
            if (of.shifted(part)) multiply_shifted(t, of, row, columns + part * WIDTH / SHARE, turn);
            else multiply_plain(t, of, turn);
            const bool ends = part + 1 == PARTS, goes_on = ends && chunk + 1 < item.last;
            // To wait here for what has not arrived would keep this chunk's places from those who fetch.
            const bool early = goes_on && has_arrived(shared, place);
            if (early) prepare(next, shared, factors, group, first_factor, edges, place, factor_slot);
            await_products(t);
            if (ends) release(of, shared);
            add(sum[part], lost[part], t, of.factors[row], of.factors[row + 8], columns + part * WIDTH / SHARE);
            if (goes_on && !early) prepare(next, shared, factors, group, first_factor, edges, place, factor_slot);
#pragma unroll
            for (int j = 0; j < BLOCKS_OF_CHUNK; ++j) of.b[j] += WIDTH * ROW_BYTES / 16;
        }
    }
}

__device__ __forceinline__ void store_two(float* line, int row, int column, int n, float2 two, bool paired EPILOGUE_PARAMETER)
{
    if (paired) {
        if (column < n)
            *(float2*)(line + column)
                = make_float2(EPILOGUE_RESULT(two.x, row, column, n), EPILOGUE_RESULT(two.y, row, column + 1, n));
    } else {
        if (column < n) line[column] = EPILOGUE_RESULT(two.x, row, column, n);
        if (column + 1 < n) line[column + 1] = EPILOGUE_RESULT(two.y, row, column + 1, n);
    }
}

// Lanes of an even and an odd number swap halves of two neighbouring groups of eight columns, so that each has four
// neighbouring elements: of the first group, or of the second.
__device__ __forceinline__ float4 four_of(float2 first, float2 second, bool odd)
{
    const float2 given = odd ? first : second, kept = odd ? second : first;
    const float2 got = make_float2(__shfl_xor_sync(~0u, given.x, 1), __shfl_xor_sync(~0u, given.y, 1));
    return odd ? make_float4(got.x, got.y, kept.x, kept.y) : make_float4(kept.x, kept.y, got.x, got.y);
}

__device__ __forceinline__ void store(const float (&sum)[PARTS][SUMS], float* __restrict__ c, const Item& item, int group, int m,
                                      int n EPILOGUE_PARAMETER)
{
    const int lane = threadIdx.x % 32;
    const bool paired = n % 2 == 0 && (size_t)c % 8 == 0, fours = n % 4 == 0 && (size_t)c % 16 == 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = item.row + group * 64 + threadIdx.x / 32 % 4 * 16 + h * 8 + lane / 4;
        float* const line = c + (size_t)row * n;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j += 2) {
                const float(&s)[SUMS] = sum[part];
                const float2 first = make_float2(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
                const float2 second = make_float2(s[4 * j + 4 + 2 * h], s[4 * j + 5 + 2 * h]);
                const int base = item.column + part * WIDTH + j * 8;
                if (fours) {
                    const int column = base + lane % 2 * 8 + lane % 4 / 2 * 4;
                    const float4 four = four_of(first, second, lane % 2);
                    if (row < m && column < n)
                        *(float4*)(line + column)
                            = make_float4(EPILOGUE_RESULT(four.x, row, column, n), EPILOGUE_RESULT(four.y, row, column + 1, n),
                                          EPILOGUE_RESULT(four.z, row, column + 2, n), EPILOGUE_RESULT(four.w, row, column + 3, n));
                } else if (row < m) {
                    store_two(line, row, base + lane % 4 * 2, n, first, paired EPILOGUE_PASSED);
                    store_two(line, row, base + 8 + lane % 4 * 2, n, second, paired EPILOGUE_PASSED);
                }
            }
    }
}

#if SPLIT_K > 1
// Leaves a warpgroup's share; in the warpgroup that arrives last of a tile's, `sum` becomes that of all shares.
__device__ __forceinline__ bool add_shares(float (&sum)[PARTS][SUMS], float (&lost)[PARTS][LOST], const Item& item, int group,
                                           unsigned* counters, float* parts, volatile unsigned* arrived)
{
    constexpr int FOURS = PARTS * SUMS / 4 * 128;
    const unsigned unit = item.tile * CONSUMERS + group, thread = threadIdx.x % 128;
    float4* const shares = (float4*)parts + (size_t)unit * SPLIT_K * FOURS + thread;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int j = 0; j < SUMS / 4; ++j) {
            const float(&s)[SUMS] = sum[part];
            shares[item.share * FOURS + (part * (SUMS / 4) + j) * 128]
                = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
        }
    __threadfence();
    wait_named(3 + group, 128);
    if (thread == 0) {
        arrived[group] = atomicInc(counters + unit, SPLIT_K - 1);
        __threadfence();
    }
    wait_named(3 + group, 128);
    const bool last = arrived[group] == SPLIT_K - 1;
    wait_named(3 + group, 128);
    if (!last) return false;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[part][i] = 0.0f, lost[part][COMPENSATED ? i : 0] = 0.0f;
#pragma unroll 1
    for (int share = 0; share < SPLIT_K; ++share)
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
#pragma unroll
            for (int j = 0; j < SUMS / 4; ++j) {
                const float4 four = __ldcg(shares + share * FOURS + (part * (SUMS / 4) + j) * 128);
                const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 4 * j; i < 4 * j + 4; ++i)
                    add_term(sum[part][i], lost[part][COMPENSATED ? i : 0], each[i % 4], 1.0f);
            }
    return true;
}
#endif
