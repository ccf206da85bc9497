// transpose, swizzled: wide loads and stores only, turned in registers and in a swizzled tile of shared memory.
//
// Idea     A thread reads a micro-tile of VECTOR x VECTOR elements as VECTOR packs, turns it in its registers, and writes
//          the VECTOR turned packs to shared memory; from there to global memory everything moves in packs.
//          A warp would write its packs to the same banks. So a pack's place in its row of the tile is exclusive-ored
//          with the number of the column of micro-tiles that it comes from, which costs no memory. Lanes then use all
//          banks, both when they write and when they read.
//          Every thread has MICRO_TILES * VECTOR packs in flight before the barrier.
// Edges    m and n are multiples of VECTOR, so that a micro-tile is inside of A or outside.
// Layout   A is m x n, B is n x m, both row-major and dense, aligned to packs.
// Source   own work.
// Letters  m n            A has m rows of n elements
//          TILE           edge of a block's tile
//          MICRO_TILES    micro-tiles of a thread
//          ACCESS_BYTES   of a pack; VECTOR elements
//          WALK           rows: blocks that follow each other lie along a row of A; columns: along a row of B; squares: along
//                         both, in squares of SIDE_OF_SQUARE tiles a side
//          STREAM         loads and stores are marked as used once

constexpr int VECTOR = ACCESS_BYTES / sizeof(SCALAR);
constexpr int SIDE = TILE / VECTOR;  // micro-tiles along the tile's edge
constexpr int THREADS = SIDE * SIDE / MICRO_TILES;
constexpr int WIDE_LANES = 128 / ACCESS_BYTES;  // lanes that shared memory serves at once
constexpr int SWIZZLE = (SIDE < WIDE_LANES ? SIDE : WIDE_LANES) - 1;

using Wide = Access<ACCESS_BYTES>;

union Pack {
    Wide raw;
    SCALAR element[VECTOR];
};

extern "C" __global__ void __launch_bounds__(THREADS)
transpose(const SCALAR* __restrict__ a, SCALAR* __restrict__ b, int m, int n)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Wide* tile = (Wide*)shared;  // [TILE rows of B][SIDE packs]
    const unsigned across = ((unsigned)n + TILE - 1) / TILE, down = ((unsigned)m + TILE - 1) / TILE;
#if WALK == WALK_squares
    constexpr unsigned SIDE_OF_SQUARE = 8, SQUARE = SIDE_OF_SQUARE * SIDE_OF_SQUARE;
    const unsigned squares_across = (across + SIDE_OF_SQUARE - 1) / SIDE_OF_SQUARE, inside = blockIdx.x % SQUARE;
    const unsigned square_row = blockIdx.x / SQUARE / squares_across, square_column = blockIdx.x / SQUARE % squares_across;
    // What lies outside of A moves nothing.
    const unsigned top = (square_row * SIDE_OF_SQUARE + inside / SIDE_OF_SQUARE) * TILE;
    const unsigned left = (square_column * SIDE_OF_SQUARE + inside % SIDE_OF_SQUARE) * TILE;
#elif WALK == WALK_rows
    const unsigned top = blockIdx.x / across * TILE, left = blockIdx.x % across * TILE;
#else
    const unsigned top = blockIdx.x % down * TILE, left = blockIdx.x / down * TILE;
#endif
    (void)across;
    (void)down;

    Pack held[MICRO_TILES][VECTOR];
#pragma unroll
    for (int t = 0; t < MICRO_TILES; ++t) {
        const unsigned place = threadIdx.x + t * THREADS;
        const unsigned row = top + place / SIDE * VECTOR, column = left + place % SIDE * VECTOR;
        if (row >= (unsigned)m || column >= (unsigned)n) continue;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const Wide* from = (const Wide*)(a + (size_t)(row + e) * n + column);
            held[t][e].raw = STREAM ? __ldcs(from) : __ldg(from);
        }
    }
#pragma unroll
    for (int t = 0; t < MICRO_TILES; ++t) {
        const unsigned place = threadIdx.x + t * THREADS, micro_row = place / SIDE, micro_column = place % SIDE;
        if (top + micro_row * VECTOR >= (unsigned)m || left + micro_column * VECTOR >= (unsigned)n) continue;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            Pack turned;
#pragma unroll
            for (int f = 0; f < VECTOR; ++f) turned.element[f] = held[t][f].element[e];
            tile[(micro_column * VECTOR + e) * SIDE + (micro_row ^ (micro_column & SWIZZLE))] = turned.raw;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MICRO_TILES * VECTOR; ++i) {
        const unsigned place = threadIdx.x + i * THREADS, line = place / SIDE, pack = place % SIDE;
        const unsigned b_row = left + line, b_column = top + pack * VECTOR;
        if (b_row >= (unsigned)n || b_column >= (unsigned)m) continue;
        const Wide value = tile[line * SIDE + (pack ^ (line / VECTOR & SWIZZLE))];
        Wide* to = (Wide*)(b + (size_t)b_row * m + b_column);
        if (STREAM) __stcs(to, value);
        else *to = value;
    }
}
