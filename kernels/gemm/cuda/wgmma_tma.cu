// gemm of float16 or bfloat16, or of 8 bits: tensor cores (wgmma) fed by tensor maps (TMA), sums in FP32, result rounded once.
//
// Floor    2 m n k operations at about 800 TFLOPS (H100, H200; random numbers, bound by power), or the bytes of A, B and C.
// Idea     One warp fetches boxes of A and B as they lie; 1 to 3 warpgroups multiply them from shared memory. wgmma reads either
//          dimension of a 16-bit operand as the contiguous one, so that all four layouts are one kernel without transposing.
// Tile     A consumer has 64 ROWS rows by WIDTH columns. Consumers of a team that works together share B's tile; those that work
//          apart take whole tiles in turn, so that one stores while the other one multiplies.
// Memory   STAGES places of 64 terms (of 8 bits, 128) of both tiles, swizzled by 128 bytes. CLUSTER_M blocks below each other fetch a share of B's
//          tile each, for all of them; CLUSTER_N blocks beside each other a share of A's.
//          A tile of columns that lie contiguous is fetched in boxes of 64, or of 32 where it has no more; of the last one WIDTH
//          may leave some unused. SWAP: the transpose of C is computed, from those of B and A, so that WIDTH is of C's rows.
// Blocks   stay, and take tiles in turn, while the next tile's operands are fetched; BLOCKS=0: a block for each.
//          K may be split. Shares are added up in a fixed order by the block that arrives last, or, where there are many,
//          by a kernel of its own on all multiprocessors: one alone reads 0.1 TB/s.
// Order    Blocks that share the only row, or column, of tiles of C all read one small operand. They begin at different terms, so
//          that not all ask for the same lines of L2 at a time.
// Store    tma: through shared memory in boxes of 16 x 64 (or 32); registers: each thread its pairs. A consumer alone keeps the tensor cores
//          busy: those of a team start LEAD places after each other, and store after each other.
// Edges    Boxes bring zeros from beyond the edges, and are not stored there.
// Layout   a: m x k or k x m, b: k x n or n x k, c: m x n, row-major; rows of a and b (of c with STORE=tma) multiples of 16 bytes.
// Source   own work; the steps are those of the published ladder of fast.cu, descriptors as the PTX manual has them.
// Letters  CONSUMERS TEAM        warpgroups that multiply; together on a tile, or apart
//          ROWS WIDTH            64 rows each; columns of a wgmma
//          STAGES                places in shared memory
//          CLUSTER_M CLUSTER_N   blocks that share tiles of B, and of A
//          GROUP ORDER           rows of tiles in a swath; rows, snake, or a Hilbert curve
//          SWAP                  1: rows below are columns of C, and columns rows
//          SPLIT_K ADD           blocks that share K; what adds their shares up: last, the block that arrives last, or after
//          STORE SHEETS          tma or registers; parts of C that a warp has in shared memory
//          LEAD                  places by which consumers of a team follow each other, so that one stores while the next multiplies
//          GIVEN                 registers of a consumer's thread; 0: as many as the producer's
//          BLOCKS BLOCKS_PER_SM  multiprocessors on which blocks stay, 0: none; how many on each
//          PROMOTE               of 8 bits: places after which sums leave the tensor cores (scales.cuh), 0: all of them
//          PARTS                 of 8 bits: sums in the tensor cores beside each other, 2: the ones leave while the others grow
//          BORDER                operands as they lie (whole), or copied to longer rows where tensor maps do not take them (pad)

#ifndef EIGHT
#define EIGHT 0
#endif
#if FLOAT_RESULT
using Result = float;
#else
using Result = unsigned short;
#endif
constexpr int TERMS = EIGHT ? 128 : 64, ROW_BYTES = 128, BOX_BYTES = 64 * ROW_BYTES;
constexpr int B_COLUMNS = WIDTH < 64 ? WIDTH : 64;  // that lie together in boxes, where columns are contiguous
constexpr int B_LINES = B_ALONG_N ? (WIDTH + B_COLUMNS - 1) / B_COLUMNS * B_COLUMNS : WIDTH;  // columns of B that are fetched
constexpr bool IS_APART = TEAM == TEAM_apart;
constexpr int BM = 64 * ROWS * (IS_APART ? 1 : CONSUMERS), BN = WIDTH, THREADS = 128 * (CONSUMERS + 1);
constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;                        // blocks that share operands
constexpr int FILLERS = CLUSTER_M + CLUSTER_N - 1;                    // blocks that fetch what one needs
constexpr int A_BYTES = BM * ROW_BYTES, SLOT = A_BYTES + B_LINES * ROW_BYTES;
constexpr int WARPS = IS_APART ? 4 : 4 * CONSUMERS;                   // that read a place
constexpr int SHEET_COLUMNS = WIDTH % 32 ? 16 : WIDTH % 64 ? 32 : 64;
constexpr int SHEET = 16 * SHEET_COLUMNS * 2;                         // bytes that a warp stores at a time; it has SHEETS of them
constexpr int POOL = 65536 / BLOCKS_PER_SM / THREADS / 8 * 8 * (CONSUMERS + 1);
constexpr int KEPT = POOL - CONSUMERS * GIVEN;                        // the producer's share of registers

// A tile of C, or a share of one, and the chunks of TERMS terms that it sums: from `begin` on to the last, then from the first on.
struct Item {
    unsigned tile, share, first, last, begin;
    int row, column;
};

// Tiles in whole clusters. Boxes bring lines_a rows of A and lines_b columns of B: fewer than the tile has where C itself is small,
// for to fill a box with zeros takes as long as to fetch it. What lies behind in shared memory makes up sums that are not stored.
struct Grid {
    unsigned rows, columns, chunks, items;
    int lines_a, lines_b;
};

// How many of `lines` are boxed: whole tiles where lines are contiguous, or blocks fetch shares of a tile.
template <bool ACROSS, int LINES, int SHARERS>
__device__ __forceinline__ int boxed(int lines)
{
    return ACROSS || SHARERS > 1 ? LINES : min(LINES, (lines + 7) / 8 * 8);
}

__device__ __forceinline__ Item item_at(unsigned item, unsigned rank, const Grid& grid)
{
    Item to;
    const unsigned tile = item / SPLIT_K;
    const Cell cell = cell_at(tile, grid.rows, grid.columns);
    to.tile = tile * CLUSTER + rank;
    to.share = item % SPLIT_K;
    to.row = (cell.row * CLUSTER_M + rank % CLUSTER_M) * BM;
    to.column = (cell.column * CLUSTER_N + rank / CLUSTER_M) * BN;
    const unsigned each = (grid.chunks - 1) / SPLIT_K + 1;
    to.first = min(to.share * each, grid.chunks);
    to.last = min(to.first + each, grid.chunks);
    to.begin = to.first;
    // Not where those beside each other read parts of the same rows of the large operand, one memory page together.
    if (B_ALONG_N ? false : grid.rows == 1) to.begin += tile * (to.last - to.first) / grid.columns;
    if (A_ALONG_M ? false : grid.columns == 1) to.begin += tile * (to.last - to.first) / grid.rows;
    return to;
}

// Where something lies in the ring of places; it flips a phase each time round.
struct Place {
    unsigned at = 0, phase = 0;
    __device__ __forceinline__ void step()
    {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
    __device__ __forceinline__ void skip(unsigned count)
    {
        at += count;
        phase ^= at / STAGES & 1;
        at %= STAGES;
    }
};

struct Shared {
    unsigned slots, full, empty, turns, sheets;  // addresses
    unsigned rank;                               // in the cluster
};

// When a consumer may begin. Those that work apart read places one after the other, item by item: a barrier tells phases that
// follow each other, not later ones. Those that work together wait once.
struct Turn {
    unsigned mine, next, parity;
    bool takes, passes;
    __device__ __forceinline__ void take()
    {
        if (takes) await_phase(mine, parity);
        parity ^= 1;
        if (!IS_APART) takes = false;
    }
    __device__ __forceinline__ void pass()
    {
        if (passes && threadIdx.x % 32 == 0) arrive(next);
        if (!IS_APART) passes = false;
    }
    // After `done` of `all` places: the next one may begin.
    __device__ __forceinline__ void pass_after(unsigned done, unsigned all)
    {
        if (IS_APART ? done == all : LEAD > 0 && done == LEAD) pass();
    }
};

// Fetches one of SHARERS shares of an operand's tile of LINES rows (columns), for all blocks that share it. Where lines are
// contiguous, boxes have WIDE of them.
template <bool ACROSS, int LINES, int SHARERS, int WIDE>
__device__ __forceinline__ void fetch(unsigned to, const TensorMap& map, int line, int term, unsigned share, unsigned barrier,
                                      unsigned blocks)
{
    constexpr int DEPTH = TERMS / SHARERS, EACH = LINES / SHARERS;
    to += share * (ACROSS ? DEPTH * WIDE * 2 : EACH * ROW_BYTES);
#pragma unroll
    for (int box = 0; box < (ACROSS ? LINES / WIDE : 1); ++box) {
        const int x = ACROSS ? line + box * WIDE : term, y = ACROSS ? term + int(share) * DEPTH : line + int(share) * EACH;
        if (SHARERS > 1) load_box_to(to + box * BOX_BYTES, map, x, y, barrier, (unsigned short)blocks);
        else load_box(to + box * BOX_BYTES, map, x, y, barrier);
    }
}

__device__ __forceinline__ void produce(const TensorMap& map_a, const TensorMap& map_b, const Item& item, const Shared& shared,
                                        Place& place, unsigned bytes)
{
    const unsigned down = shared.rank % CLUSTER_M, beside = shared.rank / CLUSTER_M;
    constexpr unsigned SAME_ROW = ((1 << CLUSTER) - 1) / ((1 << CLUSTER_M) - 1);  // blocks of the first row
    const unsigned share_a = SAME_ROW << down, share_b = ((1 << CLUSTER_M) - 1) << beside * CLUSTER_M;
    unsigned chunk = item.begin;
    for (unsigned left = item.last - item.first; left > 0; --left) {
        const unsigned full = shared.full + place.at * 8, to = shared.slots + place.at * SLOT;
        await_phase(shared.empty + place.at * 8, place.phase ^ 1);
        arrive_expecting(full, bytes);
        const int term = chunk * TERMS;
        fetch<A_ALONG_M, BM, CLUSTER_N, 64>(to, map_a, item.row, term, beside, full, share_a);
        fetch<B_ALONG_N, B_LINES, CLUSTER_M, B_COLUMNS>(to + A_BYTES, map_b, item.column, term, down, full, share_b);
        place.step();
        if (++chunk == item.last) chunk = item.first;
    }
}

// Waits until all places have been given back: other blocks arrive at this one's barriers, so it may not end before.
__device__ __forceinline__ void await_all_places(const Shared& shared, Place place)
{
    for (int count = 0; count < STAGES; ++count) {
        await_phase(shared.empty + place.at * 8, place.phase ^ 1);
        place.step();
    }
}

// Gives a place back, to the producers of all blocks that fill it.
__device__ __forceinline__ void release(const Shared& shared, unsigned slot)
{
    const unsigned lane = threadIdx.x % 32;
    if (lane >= FILLERS) return;
    const unsigned down = shared.rank % CLUSTER_M, beside = shared.rank / CLUSTER_M, other = lane - CLUSTER_M;
    const unsigned filler = lane < CLUSTER_M ? beside * CLUSTER_M + lane : (other + (other >= beside)) * CLUSTER_M + down;
    if (CLUSTER > 1) arrive_at(shared.empty + slot * 8, filler);
    else arrive(shared.empty + slot * 8);
}

// Starts the products of a place, a group of them; those of the first chunk replace the sums.
__device__ __forceinline__ void multiply_place(float (&sum)[ROWS][SUMS], const Shared& shared, const Place& place, int group,
                                               unsigned chunk, unsigned first)
{
    constexpr int NEXT_A = A_ALONG_M ? 16 * ROW_BYTES / 16 : 2, NEXT_B = B_ALONG_N ? 16 * B_COLUMNS * 2 / 16 : 2;
    const unsigned at_b = shared.slots + place.at * SLOT + A_BYTES;
    const unsigned at_a = shared.slots + place.at * SLOT + (IS_APART ? 0 : group * ROWS * BOX_BYTES);
    const unsigned long long a = A_ALONG_M ? across_terms<64>(at_a, TERMS) : along_terms(at_a);
    const unsigned long long b = B_ALONG_N ? across_terms<B_COLUMNS>(at_b, TERMS) : along_terms(at_b);
    begin_products();
#pragma unroll
    for (int step = 0; step < ROW_BYTES / 32; ++step)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            multiply_async(sum[r], a + step * NEXT_A + r * (BOX_BYTES / 16), b + step * NEXT_B, step || chunk > first);
    close_products();
}

#if EIGHT && PROMOTE && PARTS == 2
// The products of a place make `part`. Those of the place before, `last`, are added to the sums while they are under way.
__device__ __forceinline__ void consume_place(float (&sum)[ROWS][SUMS], float (&part)[ROWS][SUMS], float (&last)[ROWS][SUMS],
                                              const Scales::OfBlock (&of_last)[ROWS], unsigned place_before, int column,
                                              const Shared& shared, const Place& place, int group, const Scales& scales)
{
    await_phase(shared.full + place.at * 8, place.phase);
    multiply_place(part, shared, place, group, 0, 0);
    await_products<1>();
    release(shared, place_before);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        keep_in_place(last[r]);
        scales.add(sum[r], last[r], of_last[r], column);
    }
}

// Sums of a consumer's rows over the chunks of an item, each of which is added up outside of the tensor cores while the next one's
// products are under way.
template <class F>
__device__ __forceinline__ void consume(float (&sum)[ROWS][SUMS], const Item& item, const Shared& shared, int group, Place& place,
                                        Turn& turn, const Scales& scales, F meanwhile)
{
    const int row = item.row + (IS_APART ? 0 : group * ROWS * 64), column = item.column;
    const unsigned count = item.last - item.first;
    unsigned before = 0, chunk = item.begin;
    float one[ROWS][SUMS], other[ROWS][SUMS];
    Scales::OfBlock of_one[ROWS], of_other[ROWS];
    const auto read = [&](Scales::OfBlock(&of)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) of[r] = scales.of_block(row + r * 64, column, chunk);
        if (++chunk == item.last) chunk = item.first;
    };
    const auto finish_part = [&](float(&part)[ROWS][SUMS], const Scales::OfBlock(&of)[ROWS]) {
        await_products<0>();
        release(shared, before);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            keep_in_place(part[r]);
            scales.add(sum[r], part[r], of[r], column);
        }
    };
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) one[r][i] = other[r][i] = 0.0f;
    turn.take();
    if (count > 0) {
        read(of_one);
        await_phase(shared.full + place.at * 8, place.phase);
        multiply_place(one, shared, place, group, 0, 0);
        before = place.at;
        place.step();
        unsigned left = count - 1;
        for (; left >= 2; left -= 2) {
            read(of_other);
            consume_place(sum, other, one, of_one, before, column, shared, place, group, scales);
            before = place.at;
            place.step();
            read(of_one);
            consume_place(sum, one, other, of_other, before, column, shared, place, group, scales);
            before = place.at;
            place.step();
        }
        if (left == 1) {
            read(of_other);
            consume_place(sum, other, one, of_one, before, column, shared, place, group, scales);
            before = place.at;
            place.step();
            finish_part(other, of_other);
        } else {
            finish_part(one, of_one);
        }
    }
    if (IS_APART || LEAD > 0) turn.pass();
    meanwhile();
}
#elif EIGHT && PROMOTE
// Sums of a consumer's rows over the chunks of an item: those of PROMOTE places, which are added up outside of the tensor cores. The
// other warpgroups of the block multiply in the meantime.
template <class F>
__device__ __forceinline__ void consume(float (&sum)[ROWS][SUMS], const Item& item, const Shared& shared, int group, Place& place,
                                        Turn& turn, const Scales& scales, F meanwhile)
{
    const int row = item.row + (IS_APART ? 0 : group * ROWS * 64);
    const unsigned count = item.last - item.first;
    unsigned before = 0, chunk = item.begin;
    turn.take();
    float part[ROWS][SUMS];  // zeros once: the first products of a part replace them
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) part[r][i] = 0.0f;
    for (unsigned done = 0; done < count;) {
        Scales::OfBlock of[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) of[r] = scales.of_block(row + r * 64, item.column, chunk);
        const unsigned until = PROMOTE == 1 ? done + 1 : min(done + PROMOTE, count), first = done;
        do {
            await_phase(shared.full + place.at * 8, place.phase);
            turn.pass_after(done + 1, count);
            multiply_place(part, shared, place, group, done, first);
            if (PROMOTE > 1 && done > first) {
                await_products<1>();
                release(shared, before);
            }
            before = place.at;
            place.step();
        } while (++done < until && PROMOTE > 1);
        await_products<0>();
        release(shared, before);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            keep_in_place(part[r]);
            scales.add(sum[r], part[r], of[r], item.column);
        }
        if (++chunk == item.last) chunk = item.first;  // of blocks with scales, whose parts are single places
    }
    if (IS_APART ? count == 0 : LEAD > 0) turn.pass();
    meanwhile();
}
#else
// Sums of a consumer's rows over the chunks of an item. A place goes back while the next one's products are under way.
// `meanwhile` is called while the last products are under way.
template <class F>
__device__ __forceinline__ void consume(float (&sum)[ROWS][SUMS], const Item& item, const Shared& shared, int group, Place& place,
                                        Turn& turn, F meanwhile)
{
    unsigned before = 0;
    turn.take();
    for (unsigned chunk = item.first; chunk < item.last; ++chunk) {
        await_phase(shared.full + place.at * 8, place.phase);
        turn.pass_after(chunk + 1 - item.first, item.last - item.first);
        multiply_place(sum, shared, place, group, chunk, item.first);
        if (chunk > item.first) {
            await_products<1>();
            release(shared, before);
        }
        before = place.at;
        place.step();
    }
    if (IS_APART ? item.first == item.last : LEAD > 0) turn.pass();
    meanwhile();
    await_products<0>();
    if (item.first < item.last) release(shared, before);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) keep_in_place(sum[r]);
}
#endif

#if EPILOGUE && SWAP
// Finishes a warpgroup's 64 rows, columns of C.
__device__ __forceinline__ void finish(float (&s)[SUMS], const Epilogue& epilogue, int row, int column, int m, int n)
{
    const int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4, column += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int y = column + i / 4 * 8 + i % 2, x = row + i / 2 % 2 * 8;
        if (y < m && x < n) s[i] = epilogue(s[i], y, x, n);
    }
}
#endif

#if FLOAT_RESULT
// Each thread stores its own, as they are.
__device__ __forceinline__ void store(const float (&s)[SUMS], const TensorMap&, Result* c, int, int row, int column, int m, int n,
                                      unsigned, unsigned&)
{
    const int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4, column += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int right = column + i / 4 * 8 + i % 2, down = row + i / 2 % 2 * 8, y = SWAP ? right : down, x = SWAP ? down : right;
        if (y < m && x < n) c[(size_t)y * n + x] = s[i];
    }
}
#elif SWAP
#if STORE == STORE_tma
// A warpgroup stores SHEET_COLUMNS rows of C, 64 columns of each, from a sheet that its warps fill together.
__device__ __forceinline__ void store(const float (&s)[SUMS], const TensorMap& map_c, unsigned short*, int group, int row, int column,
                                      int, int, unsigned sheets, unsigned& sheet)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool speaks = threadIdx.x % 128 == 0;
#pragma unroll
    for (int piece = 0; piece < WIDTH / SHEET_COLUMNS; ++piece) {
        const unsigned to = sheets + sheet * 4 * SHEET;
        if (speaks) await_stores_read<SHEETS - 1>();
        wait_named(1 + group, 128);
#pragma unroll
        for (int two = 0; two < SHEET_COLUMNS / 16; ++two) {
            const int j = 4 * (piece * (SHEET_COLUMNS / 8) + two * 2), line = two * 16 + lane / 16 * 8 + lane % 8;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(to + line * ROW_BYTES + ((warp * 2 + lane / 8 % 2) ^ line % 8) * 16), "r"(pair(s[j], s[j + 1])),
                         "r"(pair(s[j + 2], s[j + 3])), "r"(pair(s[j + 4], s[j + 5])), "r"(pair(s[j + 6], s[j + 7])) : "memory");
        }
        publish_to_copies();
        wait_named(1 + group, 128);
        if (speaks) store_box(map_c, row, column + piece * SHEET_COLUMNS, to);
        sheet = (sheet + 1) % SHEETS;
    }
}
#else
__device__ __forceinline__ void store(const float (&s)[SUMS], const TensorMap&, unsigned short* c, int, int row, int column, int m,
                                      int n, unsigned, unsigned&)
{
    const int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4, column += lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int y = column + i / 4 * 8 + i % 2, x = row + i / 2 % 2 * 8;
        if (y < m && x < n) c[(size_t)y * n + x] = (unsigned short)pair(s[i], 0.0f);
    }
}
#endif
#elif STORE == STORE_tma
// A warp stores its 16 rows of each SHEET_COLUMNS columns from a sheet of its own, while it fills the other one. Sheets are swizzled
// by as many bytes as they have in a row, as the map says.
__device__ __forceinline__ void store(const float (&s)[SUMS], const TensorMap& map_c, unsigned short*, int, int row, int column, int,
                                      int, unsigned sheets, unsigned& sheet)
{
    const int lane = threadIdx.x % 32, line = lane % 16;
    row += threadIdx.x / 32 % 4 * 16, sheets += threadIdx.x / 32 % 4 * SHEETS * SHEET;
#pragma unroll
    for (int piece = 0; piece < WIDTH / SHEET_COLUMNS; ++piece) {
        const unsigned to = sheets + sheet * SHEET;
        const unsigned mask = SHEET_COLUMNS == 64 ? line & 7 : SHEET_COLUMNS == 32 ? line >> 1 & 3 : line >> 2 & 1;
        if (lane == 0) await_stores_read<SHEETS - 1>();
        __syncwarp();
#pragma unroll
        for (int two = 0; two < SHEET_COLUMNS / 16; ++two) {
            const int j = 4 * (piece * (SHEET_COLUMNS / 8) + two * 2);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(to + line * SHEET_COLUMNS * 2 + ((two * 2 + lane / 16) ^ mask) * 16), "r"(pair(s[j], s[j + 1])),
                         "r"(pair(s[j + 2], s[j + 3])), "r"(pair(s[j + 4], s[j + 5])), "r"(pair(s[j + 6], s[j + 7])) : "memory");
        }
        publish_to_copies();
        __syncwarp();
        if (lane == 0) store_box(map_c, column + piece * SHEET_COLUMNS, row, to);
        sheet = (sheet + 1) % SHEETS;
    }
}
#else
__device__ __forceinline__ void store(const float (&s)[SUMS], const TensorMap&, unsigned short* c, int, int row, int column, int m,
                                      int n, unsigned, unsigned&)
{
    const int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16;
    const bool paired = n % 2 == 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int line = row + h * 8 + lane / 4;
        if (line >= m) continue;
        unsigned short* const to = c + (size_t)line * n;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j) {
            const int x = column + j * 8 + lane % 4 * 2;
            const unsigned both = pair(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
            if (paired) {
                if (x < n) *(unsigned*)(to + x) = both;
            } else {
                if (x < n) to[x] = (unsigned short)both;
                if (x + 1 < n) to[x + 1] = (unsigned short)(both >> 16);
            }
        }
    }
}
#endif

// The first of a warpgroup's rows.
__device__ __forceinline__ int row_of(const Item& item, int group) { return item.row + (IS_APART ? 0 : group * ROWS * 64); }

#if SPLIT_K > 1
// A warpgroup's place among all that share tiles of C, by which its shares lie in the workspace.
__device__ __forceinline__ unsigned unit_of(const Item& item, int group) { return IS_APART ? item.tile : item.tile * CONSUMERS + group; }

#if ADD == ADD_last
// Leaves a warpgroup's share. In the one that arrives last of a tile's, `sum` becomes that of all.
__device__ __forceinline__ bool add_shares(float (&sum)[ROWS][SUMS], const Item& item, int group, unsigned* counters, float* parts,
                                           volatile unsigned* arrived, int height)
{
    const unsigned unit = unit_of(item, group), thread = threadIdx.x % 128;
    leave_share(sum, shares_at(parts, unit), item.share, row_of(item, group), height);
    __threadfence();
    wait_named(1 + group, 128);
    if (thread == 0) {
        arrived[group] = atomicInc(counters + unit, SPLIT_K - 1);
        __threadfence();
    }
    wait_named(1 + group, 128);
    const bool last = arrived[group] == SPLIT_K - 1;
    wait_named(1 + group, 128);
    if (last) sum_shares(sum, shares_at(parts, unit), row_of(item, group), height);
    return last;
}
#else
// Adds up what all blocks left, 128 fours a block.
extern "C" __global__ void __launch_bounds__(128)
add(float* __restrict__ parts, unsigned short* __restrict__ c, EPILOGUE_OPERANDS int m, int n EPILOGUE_FACTORS)
{
    constexpr int GROUPS = IS_APART ? 1 : CONSUMERS;
    Grid grid;
    grid.rows = ((SWAP ? n : m) - 1) / (BM * CLUSTER_M) + 1, grid.columns = ((SWAP ? m : n) - 1) / (BN * CLUSTER_N) + 1;
    grid.chunks = SPLIT_K;
    const unsigned unit = blockIdx.x / FOURS_EACH, tile = unit / GROUPS;
    const Item item = item_at(tile / CLUSTER * SPLIT_K, tile % CLUSTER, grid);
    store_total(shares_at(parts, unit), blockIdx.x % FOURS_EACH, c, row_of(item, unit % GROUPS), item.column, m, n EPILOGUE_OF_KERNEL);
}
#endif
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
#if CLUSTER_M * CLUSTER_N > 1
__cluster_dims__(CLUSTER_M * CLUSTER_N, 1, 1)
#endif
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
     Result* __restrict__ c, SCALES_TAKEN EPILOGUE_OPERANDS int m, int n, int k, unsigned* counters,
     float* parts EPILOGUE_FACTORS)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES], turns[CONSUMERS];
#if SPLIT_K > 1 && ADD == ADD_last
    __shared__ unsigned arrived[CONSUMERS];
#endif
    const unsigned start = (shared_address(memory) + 1023) / 1024 * 1024;
    const unsigned rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    const Shared shared = {start, shared_address(full), shared_address(empty), shared_address(turns), start + STAGES * SLOT,
                           rank};
    if (threadIdx.x == 0) {
        prefetch_map(map_a);
        prefetch_map(map_b);
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared.full + 8 * s, 1);
            make_barrier(shared.empty + 8 * s, WARPS * FILLERS);
        }
        for (int group = 0; group < CONSUMERS; ++group) make_barrier(shared.turns + 8 * group, 4);
        publish_barriers();
    }
    if (CLUSTER > 1) sync_cluster();
    else __syncthreads();

    const int height = SWAP ? n : m, width = SWAP ? m : n;
    Grid grid;
    grid.rows = (height - 1) / (BM * CLUSTER_M) + 1, grid.columns = (width - 1) / (BN * CLUSTER_N) + 1;
    grid.chunks = (k - 1) / TERMS + 1, grid.items = grid.rows * grid.columns * SPLIT_K;
    grid.lines_a = boxed<A_ALONG_M, BM, CLUSTER_N>(height), grid.lines_b = boxed<B_ALONG_N, B_LINES, CLUSTER_M>(width);
    const unsigned step = gridDim.x / CLUSTER;
    Place place;
    if (threadIdx.x < 128) {
        if (GIVEN > 0) give_registers<KEPT>();
        if (threadIdx.x == 0) {
            const unsigned bytes = (grid.lines_a + grid.lines_b) * ROW_BYTES;
            for (unsigned item = blockIdx.x / CLUSTER; item < grid.items; item += step)
                produce(map_a, map_b, item_at(item, rank, grid), shared, place, bytes);
            if (CLUSTER > 1) await_all_places(shared, place);
        }
        __syncwarp();
    } else {
        if (GIVEN > 0) take_registers<GIVEN>();
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
        [[maybe_unused]] const unsigned sheets = shared.sheets + group * 4 * SHEETS * SHEET;
        const bool waits = IS_APART || (LEAD > 0 && group > 0), is_followed = IS_APART || (LEAD > 0 && group < CONSUMERS - 1);
        Turn turn = {shared.turns + 8 * group, shared.turns + 8 * ((group + 1) % CONSUMERS), group == 0 ? 1u : 0u, waits, is_followed};
        [[maybe_unused]] unsigned sheet = 0;
#if EIGHT
        const Scales scales = {SCALES_GIVEN, m, n, (k - 1) / SCALED + 1};
#endif
        unsigned count = 0, at = blockIdx.x / CLUSTER;
        Item item = item_at(at, rank, grid), next = item;
        for (; at < grid.items; at += step, ++count, item = next) {
            const unsigned after = min(at + step, grid.items - 1);
            if (IS_APART && count % CONSUMERS != group) {
                next = item_at(after, rank, grid);
                place.skip(item.last - item.first);
                continue;
            }
            float sum[ROWS][SUMS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sum[r][i] = 0.0f;
#if EPILOGUE && !SWAP
            BiasAhead<SUMS> ahead[EPILOGUE_BIAS == 1 ? ROWS : 1];
#endif
            consume(sum, item, shared, group, place, turn SCALES_PASSED, [&] {
                next = item_at(after, rank, grid);
#if EPILOGUE && !SWAP
#pragma unroll
                for (int r = 0; r < (EPILOGUE_BIAS == 1 ? ROWS : 1); ++r)
                    ahead[r].ask(EPILOGUE_GIVEN, row_of(item, group) + r * 64 + threadIdx.x / 32 % 4 * 16, item.column, m, n);
#endif
            });
#if SPLIT_K > 1 && ADD == ADD_after
            leave_share(sum, shares_at(parts, unit_of(item, group)), item.share, row_of(item, group), height);
#else
#if SPLIT_K > 1
            if (!add_shares(sum, item, group, counters, parts, arrived, height)) continue;
#endif
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int row = row_of(item, group) + r * 64;
#if EIGHT
                scales.multiply(sum[r], row, item.column);
#endif
#if EPILOGUE && SWAP
                finish(sum[r], EPILOGUE_GIVEN, row, item.column, m, n);
#elif EPILOGUE
                const auto& asked = ahead[EPILOGUE_BIAS == 1 ? r : 0];
                finish_fragments(sum[r], EPILOGUE_GIVEN, asked, row + threadIdx.x / 32 % 4 * 16, item.column, m, n);
#endif
                store(sum[r], map_c, c, group, row, item.column, m, n, sheets, sheet);
            }
#endif
        }
        if (STORE == STORE_tma && threadIdx.x % 32 == 0) await_stores_read<0>();
    }
}
