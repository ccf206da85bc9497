// gemm, multivector: C is thin (m or n small), so the large operand is read once, straight from memory into registers.
//
// Idea     As gemv's streaming, but for a few vectors: every thread requests LINES x PACKS wide pieces of the large
//          operand before it uses the first, and each piece serves all TT rows of the thin side. The thin operand's share
//          of k is in shared memory; a block writes it there once and then goes from tile to tile.
//          If neighbours in memory are neighbours in k, threads lie along k, and shuffles add their sums. Otherwise they
//          lie across k, keep their own columns, and the warps of a block take lines in turn.
//          Sums need no atomics: parts of warps are added in shared memory, parts of blocks in a workspace by the block
//          that arrives last, both in a fixed order. So every run gives the same sums.
// Error    Products of a piece are summed before they join the sum, so that chains are short.
// 16 bits  Elements stay as they are stored, in registers and in shared memory, until they are used: a wide one is then widened
//          once for all TT rows, and a result is rounded once (stored.cuh). Copies are of 4 bytes or more, so that no element is
//          turned on its way: a thin operand that lies across k stays so, an element of each row after the other.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; stored lines of the wide operand are divisible by VECTOR.
// Source   own work.
// Letters  THIN            the thin side of C: m (B is wide) or n (A is wide). Below, t counts along it and w across it
//          TT              elements of a tile of C along the thin side
//          LINES PACKS     stored lines of the wide operand that a thread reads together, and pieces in each of them
//          VECTOR          elements of a piece
//          LANES           lanes of a warp side by side along a line; the others, if any, take further lines
//          WARPS_W WARPS_K warps of a block side by side along w, and along k
//          BK              k of a block: its share
//          AHEAD           steps whose pieces are in flight while a thread works
//          BLOCKS          blocks that stay and go from tile to tile; 0: a block for each
//          BLOCKS_PER_SM   blocks that must fit into a multiprocessor: bounds the registers

constexpr bool THIN_IS_M = THIN == THIN_m;
constexpr bool WIDE_ALONG_K = THIN_IS_M ? B_TRANSPOSED : !A_TRANSPOSED;
constexpr bool THIN_ALONG_K = THIN_IS_M ? !A_TRANSPOSED : B_TRANSPOSED;
constexpr int REACH = LANES * VECTOR;  // from a piece of a thread to its next one in a line
constexpr int ALONG = REACH * PACKS;   // what a warp reads of a line at once
constexpr int BW = WARPS_W * (WIDE_ALONG_K ? LINES : ALONG);
constexpr int DEPTH = WIDE_ALONG_K ? ALONG : 32 / LANES * LINES;  // k that a warp goes through in a step
constexpr int STEPS = BK / (WARPS_K * DEPTH);
constexpr int THREADS = 32 * WARPS_W * WARPS_K;
constexpr int PITCH = BK + WIDEST;  // of the thin operand's rows in shared memory
// In which those rows are laid down, the last ones while work goes on; copies are of up to WIDEST elements.
constexpr int PARTS = BK / WIDEST < 8 && BK / WIDEST < STEPS / AHEAD ? BK / WIDEST : STEPS / AHEAD < 8 ? STEPS / AHEAD : 8;

// Whether the thin operand's share lies in shared memory as memory has it, TT elements of each k, or in rows along k.
__device__ constexpr bool is_turned() { return IS_HALF && !THIN_ALONG_K; }

// Lanes that read along k begin VECTOR * TT elements apart: an access more after each spreads them over the banks.
__device__ constexpr int thin_place(int t, int k)
{
    const int skew = WIDE_ALONG_K && VECTOR * TT > WIDEST ? WIDEST : 0;
    return is_turned() ? k * TT + k / VECTOR * skew + t : t * PITCH + k;
}

// What a thread sums: a row of C along t for each of COUNT lines, or columns. MEETING lanes have sums of the same elements.
constexpr int COUNT = WIDE_ALONG_K ? LINES : PACKS * VECTOR;
constexpr int VALUES = COUNT * TT;
constexpr int MEETING = WIDE_ALONG_K ? 32 : 32 / LANES;
__device__ constexpr int place(int i, int t) { return WIDE_ALONG_K ? i * TT + t : t * COUNT + i; }
constexpr bool SHORT_CHAINS = TT <= 8 && !IS_HALF;  // else arithmetic counts

// Sums of a warp's share of k in shared memory, in C's order. A longer row spreads threads over the banks.
constexpr int INNER = THIN_IS_M ? BW : TT;
constexpr int PADDED = INNER + (THIN_IS_M ? GROUPED : 1);
constexpr int SUMS = TT * BW / INNER * PADDED;
constexpr bool STAYS = BLOCKS > 0;
constexpr int BUFFERS = STAYS && WIDE_ALONG_K ? 2 : 1;  // two spare a barrier, and are small where lanes have met

// What is read once need not stay in a cache.
__device__ __forceinline__ void load_once(Piece<VECTOR>& piece, const STORED* from)
{
    using Type = Access<VECTOR * sizeof(STORED)>;
    *(Type*)&piece = __ldcs((const Type*)from);
}

// The way of a warp through the wide operand: step by step through its share of k, tile by tile.
struct WideReader {
    const STORED* operand;                   // from where this thread's k begins
    unsigned line, count;                    // elements of a stored line; what there is across C
    unsigned tile, following, tiles;         // of C: the present one, the next one, all
    unsigned lane_w;                         // where this thread begins in a tile
    int depth;                               // what the block's share has of k, from where the warp begins
    const STORED* from;
    unsigned offset[WIDE_ALONG_K ? LINES : PACKS];
    int step = 0;

    // k of this lane, among those that its warp goes through in a step.
    static __device__ int lane_k() { return WIDE_ALONG_K ? threadIdx.x % 32 * VECTOR : threadIdx.x % 32 / LANES * LINES; }

    __device__ void set_tile()
    {
        const unsigned first = tile * BW + lane_w, row = min(first, count - 1);
        from = operand + (WIDE_ALONG_K ? (size_t)row * line : 0);
#pragma unroll
        for (int i = 0; i < (WIDE_ALONG_K ? LINES : PACKS); ++i)
            offset[i] = WIDE_ALONG_K ? (min(first + i, count - 1) - row) * line : min(first + i * REACH, count - VECTOR);
    }

    template <bool WHOLE>
    __device__ __forceinline__ void load(Piece<VECTOR> (&wide)[LINES][PACKS], int left) const
    {
#pragma unroll
        for (int l = 0; l < LINES; ++l)
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const int k = WIDE_ALONG_K ? p * REACH : l;
                if (WHOLE || k < left)
                    load_once(wide[l][p], from + (WIDE_ALONG_K ? offset[l] + p * REACH : l * (size_t)line + offset[p]));
                else
                    wide[l][p] = Piece<VECTOR>{};
            }
    }

    // Asks for the next pieces; there is nothing more after the last tile.
    __device__ __forceinline__ void ask(Piece<VECTOR> (&wide)[LINES][PACKS])
    {
        if (step == STEPS) {
            step = 0;
            tile = following;
            set_tile();
        }
        if (tile >= tiles) return;
        const int left = depth - step * (WARPS_K * DEPTH);
        if (left >= DEPTH) load<true>(wide, left);
        else load<false>(wide, left - lane_k());
        from += (WIDE_ALONG_K ? 1 : (size_t)line) * (WARPS_K * DEPTH);
        ++step;
    }
};

// Starts to lay down a part of the thin operand's rows from `first` on; zeros follow what is `depth` deep.
template <int WIDTH>
__device__ __forceinline__ void lay_part(STORED* rows, const STORED* thin, unsigned first, unsigned count, unsigned first_k,
                                         unsigned k, int depth, int part)
{
    constexpr int LENGTH = BK / PARTS, PER_ROW = LENGTH / WIDTH;
    constexpr bool COPIED = WIDTH * sizeof(STORED) >= 4;  // else through a register
    if (part >= PARTS) return;
#pragma unroll (COPIED ? 2 : 4)
    for (int x = threadIdx.x; x < TT * PER_ROW; x += THREADS) {
        const int t = THIN_ALONG_K ? x / PER_ROW : x * WIDTH % TT;
        const int at = part * LENGTH + (THIN_ALONG_K ? x % PER_ROW * WIDTH : x * WIDTH / TT);
        const unsigned row = min(first + t, count - 1);
        const size_t from = THIN_ALONG_K ? (size_t)row * k + first_k + at : (size_t)(first_k + at) * count + row;
        STORED* const to = rows + thin_place(t, at);
        if constexpr (COPIED) copy_async<WIDTH * sizeof(STORED)>((SCALAR*)to, (const SCALAR*)(thin + from), at < depth);
        else *to = at < depth ? __ldg(thin + from) : (STORED)0;
    }
}

// `rows` is where this thread's k begins in the thin operand's rows.
__device__ __forceinline__ void multiply(SCALAR (&sum)[VALUES], const Piece<VECTOR> (&wide)[LINES][PACKS], const STORED* rows)
{
    constexpr int TOGETHER = WIDE_ALONG_K ? VECTOR : LINES < WIDEST ? LINES : WIDEST;
    constexpr int PIECES = WIDE_ALONG_K ? PACKS : LINES / TOGETHER;  // of a row of the thin operand
    constexpr int APART = WIDE_ALONG_K ? REACH : TOGETHER;
    constexpr int CHUNK = TT * TOGETHER < WIDEST ? TT * TOGETHER : WIDEST;
    Piece<CHUNK> turned[PIECES][TT * TOGETHER / CHUNK];
    if constexpr (is_turned()) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int x = 0; x < TT * TOGETHER / CHUNK; ++x)
                turned[i][x] = read_piece<CHUNK>(rows + thin_place(0, i * APART) + x * CHUNK);
    }
    SCALAR of_wide[LINES][PACKS * VECTOR];
#pragma unroll
    for (int l = 0; l < LINES; ++l)
#pragma unroll
        for (int e = 0; e < PACKS * VECTOR; ++e) of_wide[l][e] = used(wide[l][e / VECTOR].element[e % VECTOR]);
#pragma unroll
    for (int t = 0; t < TT; ++t) {
        SCALAR of_row[PIECES * TOGETHER];
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            Piece<TOGETHER> piece;
            if constexpr (!is_turned()) piece = read_piece<TOGETHER>(rows + thin_place(t, i * APART));
#pragma unroll
            for (int e = 0; e < TOGETHER; ++e) {
                const int place = e * TT + t;
                of_row[i * TOGETHER + e] = used(is_turned() ? turned[i][place / CHUNK].element[place % CHUNK] : piece.element[e]);
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            SCALAR& of_both = sum[place(i, t)];
            SCALAR products = SHORT_CHAINS ? 0 : of_both;
#pragma unroll
            for (int e = 0; e < PIECES * TOGETHER; ++e) products += of_row[e] * (WIDE_ALONG_K ? of_wide[i][e] : of_wide[e][i]);
            of_both = SHORT_CHAINS ? of_both + products : products;
        }
    }
}

// Adds up the values of lanes, half of the values with each step: those that a lane is left with begin at `first`.
template <int LEFT, int AWAY, int NEAREST>
__device__ __forceinline__ void reduce_lanes(SCALAR* value, int lane, int& first)
{
    if constexpr (AWAY < NEAREST) return;
    else if constexpr (LEFT == 1) {
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], AWAY);
        reduce_lanes<1, AWAY / 2, NEAREST>(value, lane, first);
    } else {
        const bool upper = lane & AWAY;
#pragma unroll
        for (int i = 0; i < LEFT / 2; ++i) {
            const SCALAR kept = upper ? value[i + LEFT / 2] : value[i], given = upper ? value[i] : value[i + LEFT / 2];
            value[i] = kept + __shfl_xor_sync(0xffffffffu, given, AWAY);
        }
        first += upper ? LEFT / 2 : 0;
        reduce_lanes<LEFT / 2, AWAY / 2, NEAREST>(value, lane, first);
    }
}

// Leaves a thread's sums in shared memory, for a warp that begins at column `w` of a tile.
__device__ __forceinline__ void spill_partials(SCALAR* sums, SCALAR (&sum)[VALUES], int w)
{
    constexpr int LEFT = VALUES > MEETING ? VALUES / MEETING : 1;
    constexpr int WIDE = VECTOR < GROUPED ? VECTOR : GROUPED;
    constexpr int WIDTH = !WIDE_ALONG_K && THIN_IS_M && LEFT % WIDE == 0 ? WIDE : 1;
    const int lane = threadIdx.x % 32;
    int first = 0;
    reduce_lanes<VALUES, 16, 32 / MEETING>(sum, lane, first);
    if (VALUES < MEETING && lane / (32 / MEETING) % (MEETING / min(VALUES, MEETING)) != 0) return;
#pragma unroll
    for (int x = 0; x < LEFT; x += WIDTH) {
        const int t = WIDE_ALONG_K ? (first + x) % TT : (first + x) / COUNT;
        const int i = WIDE_ALONG_K ? (first + x) / TT : (first + x) % COUNT;
        const int at = w + (WIDE_ALONG_K ? i : i / VECTOR * REACH + lane % LANES * VECTOR + i % VECTOR);
        Pack<WIDTH> pack;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) pack.element[e] = sum[x + e];
        *(Pack<WIDTH>*)(sums + (THIN_IS_M ? t * PADDED + at : at * PADDED + t)) = pack;
    }
}

// Where an element of C's tile is stored; elements past an edge are not stored.
struct Corner {
    STORED* c;
    unsigned row, column, line, rows, columns;  // of the tile's first element; of C; left from there

    __device__ void store(unsigned x, SCALAR sum EPILOGUE_PARAMETER) const
    {
        const unsigned down = x / INNER, along = x % INNER;
        if (down < rows && along < columns)
            c[(size_t)down * line + along] = stored(EPILOGUE_RESULT(sum, row + down, column + along, line));
    }
};

__device__ Corner corner(STORED* c, unsigned t, unsigned w, unsigned count_t, unsigned count_w)
{
    if constexpr (THIN_IS_M) return {c + (size_t)t * count_w + w, t, w, count_w, count_t - t, count_w - w};
    else return {c + (size_t)w * count_t + t, w, t, count_t, count_w - w, count_t - t};
}

// Blocks that share a tile have each left a part of its sums. The last to arrive adds them up, and sets the tile's counter
// back to zero. `tile` in shared memory are `have` tiles of this block.
__device__ void add_up(unsigned* tile, unsigned have, unsigned* counters, const SCALAR* parts, unsigned shares, STORED* c,
                       unsigned first_t, unsigned count_t, unsigned count_w EPILOGUE_PARAMETER)
{
    constexpr unsigned NONE = ~0u, WIDTH = TT * BW % GROUPED == 0 ? GROUPED : 1, PER_TILE = TT * BW / WIDTH;
    __threadfence();
    __syncthreads();
    if (threadIdx.x < have && atomicInc(counters + tile[threadIdx.x], shares - 1) != shares - 1) tile[threadIdx.x] = NONE;
    __threadfence();
    __syncthreads();
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < have * PER_TILE; i += THREADS) {
        const unsigned one = tile[i / PER_TILE], x = i % PER_TILE * WIDTH;
        if (one == NONE) continue;
        const Pack<WIDTH> found = total<WIDTH, 4>(shares, parts + (size_t)one * shares * (TT * BW) + x, TT * BW);
        const Corner to = corner(c, first_t, one * BW, count_t, count_w);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) to.store(x + e, found.element[e] EPILOGUE_PASSED);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm(const STORED* __restrict__ a, const STORED* __restrict__ b, EPILOGUE_OPERANDS STORED* __restrict__ c, int m, int n,
     int k EPILOGUE_FACTORS,
     unsigned char* workspace)  // counters of groups and of tiles, then from a multiple of 256 bytes on sums of shares
{
    extern __shared__ __align__(16) STORED shared[];
    __shared__ unsigned coming[2], own[THREADS];

    const unsigned count_t = THIN_IS_M ? m : n, count_w = THIN_IS_M ? n : m;
    const unsigned tiles = (count_w - 1) / BW + 1, tiles_t = (count_t - 1) / TT + 1, shares = (k - 1) / BK + 1;

    // A block stays with some rows of the thin operand and a share of k: a group's. Blocks that are neighbours read
    // neighbours in memory. Its first two tiles are given; more are handed out, so that no block waits for a slow one.
    const unsigned groups = tiles_t * shares, blocks = gridDim.x;
    const unsigned group = WIDE_ALONG_K ? blockIdx.x % groups : (unsigned)((size_t)blockIdx.x * groups / blocks);
    const unsigned begin = (unsigned)(((size_t)group * blocks + groups - 1) / groups);
    const unsigned end = (unsigned)(((size_t)(group + 1) * blocks + groups - 1) / groups);
    const unsigned first_tile = WIDE_ALONG_K ? blockIdx.x / groups : blockIdx.x - begin;
    const unsigned given = WIDE_ALONG_K ? (blocks - group - 1) / groups + 1 : end - begin;
    const unsigned share = group % shares, first_t = group / shares * TT, first_k = share * BK;
    const int depth = min(BK, k - (int)first_k);
    unsigned* const handed_out = (unsigned*)workspace + group;
    unsigned* const counters = (unsigned*)workspace + groups + group / shares * tiles;
    SCALAR* const parts = (SCALAR*)(workspace + ((groups + (size_t)tiles * tiles_t) * sizeof(unsigned) + 255) / 256 * 256)
                          + (size_t)(group / shares * tiles) * shares * (TT * BW);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_w = warp / WARPS_K, warp_k = warp % WARPS_K;
    unsigned tile = first_tile, following = STAYS ? first_tile + given : tiles;
    const unsigned own_k = warp_k * DEPTH + WideReader::lane_k();
    WideReader reader;
    reader.line = WIDE_ALONG_K ? k : count_w;
    reader.operand = (THIN_IS_M ? b : a) + (WIDE_ALONG_K ? first_k + own_k : (size_t)(first_k + own_k) * reader.line);
    reader.count = count_w, reader.tile = tile, reader.following = following, reader.tiles = tiles;
    reader.lane_w = warp_w * (BW / WARPS_W) + (WIDE_ALONG_K ? 0 : lane % LANES * VECTOR);
    reader.depth = depth - warp_k * DEPTH;
    reader.set_tile();
    Piece<VECTOR> wide[AHEAD][LINES][PACKS];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) reader.ask(wide[i]);

    auto prefetch_thin = [&](int part) {
        const STORED* const thin = THIN_IS_M ? a : b;
        if ((THIN_ALONG_K || is_turned() && count_t == TT) && k % WIDEST == 0)
            lay_part<WIDEST>(shared, thin, first_t, count_t, first_k, k, depth, part);
        else lay_part<1>(shared, thin, first_t, count_t, first_k, k, depth, part);
        close_group();
    };
    prefetch_thin(0);
    prefetch_thin(1);

    constexpr int SHARE = is_turned() ? thin_place(0, BK) : thin_place(TT, 0);
    SCALAR* const of_warps = (SCALAR*)(shared + (STAYS ? SHARE : 0));  // else in place of the thin operand
    const STORED* const rows = shared + thin_place(0, own_k);
    unsigned have = 0, turn = 0;
    bool laid = false;
    while (tile < tiles) {
        unsigned after = tiles;
        if (STAYS && threadIdx.x == 0 && following < tiles) after = 2 * given + atomicInc(handed_out, tiles - given - 1);
        SCALAR sum[VALUES] = {};
#pragma unroll 1
        for (int step = 0; step < STEPS; step += AHEAD) {
            if (!laid && step % (STEPS / PARTS) == 0) {
                await_group<1>();
                __syncthreads();
                prefetch_thin(step / (STEPS / PARTS) + 2);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                multiply(sum, wide[i], rows + thin_place(0, (step + i) * (WARPS_K * DEPTH)));
                reader.ask(wide[i]);
            }
        }
        laid = true;
        if (!STAYS) __syncthreads();
        SCALAR* const sums = of_warps + turn % BUFFERS * (WARPS_K * SUMS);
        spill_partials(sums + warp_k * SUMS, sum, warp_w * (BW / WARPS_W));
        if (threadIdx.x == 0) coming[turn % 2] = after, own[have] = tile;
        __syncthreads();
        const Corner to = corner(c, first_t, tile * BW, count_t, count_w);
        SCALAR* const part = parts + ((size_t)tile * shares + share) * (TT * BW);
#pragma unroll 1
        for (unsigned x = threadIdx.x; x < TT * BW; x += THREADS) {
            const SCALAR found = total<1, 4>(WARPS_K, sums + x / INNER * PADDED + x % INNER, SUMS).element[0];
            if (shares == 1) to.store(x, found EPILOGUE_OF_KERNEL);
            else part[x] = found;
        }
        if (shares > 1 && ++have == THREADS) {
            add_up(own, have, counters, parts, shares, c, first_t, count_t, count_w EPILOGUE_OF_KERNEL);
            have = 0;
        }
        if (!STAYS) break;
        tile = following;
        following = coming[turn % 2];
        reader.following = following;
        if (BUFFERS == 1) __syncthreads();
        turn = 1 - turn;
    }
    if (shares > 1) add_up(own, have, counters, parts, shares, c, first_t, count_t, count_w EPILOGUE_OF_KERNEL);
}
