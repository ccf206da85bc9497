// A product's tile on tensor cores by warps (mma.sync): BM x BN of C, STAGES tiles of BK terms in shared memory or on their way.
//
// Comes after half.cuh, pairs.cuh and copies.cuh. ldmatrix reads what a product takes of either operand, in either order.
// Edges    What is beyond a tile's rows, columns and terms comes as zeros, and is not stored.
// Memory   Lines of 32 bytes and more; their 16-byte chunks are permuted by the line, so that eight lines of one chunk lie in all banks.
// Source   own work; fragments as the PTX manual has them.
// Letters  WARPS_M WARPS_N   warps down and across the tile
//          VECTOR            elements of a copy: 8, 4 or 2, past registers, or 1 for any rows

constexpr int THREADS = 32 * WARPS_M * WARPS_N, WM = BM / WARPS_M, WN = BN / WARPS_N;
constexpr int A_LINES = A_TRANSPOSED ? BK : BM, A_LINE = A_TRANSPOSED ? BM : BK;  // as stored
constexpr int B_LINES = B_TRANSPOSED ? BN : BK, B_LINE = B_TRANSPOSED ? BK : BN;
constexpr int A_SIZE = BM * BK, STAGE = A_SIZE + BN * BK;

// Where chunk `chunk` of a line of LINE elements lies.
template <int LINE> __device__ __forceinline__ int at(int line, int chunk)
{
    return line * LINE + (chunk ^ (LINE >= 64 ? line & 7 : LINE == 32 ? line >> 1 & 3 : line >> 2 & 1)) * 8;
}

// Copies `lines` x `along` elements of a tile; what is beyond comes as zeros.
template <int LINES, int LINE>
__device__ __forceinline__ void copy_tile(SCALAR* to, const SCALAR* __restrict__ from, size_t row, int lines, int along)
{
    constexpr int CHUNKS = LINE / 8;
#pragma unroll
    for (int i = threadIdx.x; i < LINES * CHUNKS; i += THREADS) {
        const int line = i / CHUNKS, chunk = i % CHUNKS;
        SCALAR* const there = to + at<LINE>(line, chunk);
        const SCALAR* const here = from + line * row + chunk * 8;
        if constexpr (VECTOR > 1) {
#pragma unroll
            for (int e = 0; e < 8; e += VECTOR) {
                const bool inside = line < lines && chunk * 8 + e < along;
                copy_async<2 * VECTOR>(there + e, inside ? here + e : from, inside);
            }
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e) there[e] = line < lines && chunk * 8 + e < along ? here[e] : (SCALAR)0;
        }
    }
}

__device__ __forceinline__ void load_four(unsigned (&to)[4], const SCALAR* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
__device__ __forceinline__ void load_four_turned(unsigned (&to)[4], const SCALAR* from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
#if BFLOAT
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Adds a stage's products to a warp's sums.
__device__ __forceinline__ void multiply_stage(float (&sum)[WM / 16][WN / 8][4], const SCALAR* tile_a, const SCALAR* tile_b)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * WM, column = warp % WARPS_N * WN;
#pragma unroll
    for (int term = 0; term < BK; term += 16) {
        unsigned a[WM / 16][4], b[WN / 16][4];
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
            if (A_TRANSPOSED) load_four_turned(a[i], tile_a + at<BM>(term + lane / 16 * 8 + lane % 8, (row + i * 16) / 8 + lane / 8 % 2));
            else load_four(a[i], tile_a + at<BK>(row + i * 16 + lane % 16, term / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < WN / 16; ++j) {
            if (B_TRANSPOSED) load_four(b[j], tile_b + at<BK>(column + j * 16 + lane / 16 * 8 + lane % 8, term / 8 + lane / 8 % 2));
            else load_four_turned(b[j], tile_b + at<BN>(term + lane % 16, (column + j * 16) / 8 + lane / 16));
        }
#pragma unroll
        for (int i = 0; i < WM / 16; ++i)
#pragma unroll
            for (int j = 0; j < WN / 8; ++j) multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

// Sums of a tile of `height` x `width`, as far as it has so many. `a` and `b` point to its first elements, of operands whose stored
// rows have a_row and b_row elements.
__device__ __forceinline__ void sum_tile(float (&sum)[WM / 16][WN / 8][4], SCALAR* shared, const SCALAR* __restrict__ a, size_t a_row,
                                         const SCALAR* __restrict__ b, size_t b_row, int height, int width, int k)
{
    auto fetch = [&](int step) {
        SCALAR* const to = shared + step % STAGES * STAGE;
        const int done = step * BK, left = k - done;
        if (left > 0) {
            if (A_TRANSPOSED) copy_tile<A_LINES, A_LINE>(to, a + done * a_row, a_row, left, height);
            else copy_tile<A_LINES, A_LINE>(to, a + done, a_row, height, left);
            if (B_TRANSPOSED) copy_tile<B_LINES, B_LINE>(to + A_SIZE, b + done, b_row, width, left);
            else copy_tile<B_LINES, B_LINE>(to + A_SIZE, b + done * b_row, b_row, left, width);
        }
        close_group();
    };

    const int steps = (k - 1) / BK + 1;
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        await_group<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const SCALAR* const tile = shared + step % STAGES * STAGE;
        multiply_stage(sum, tile, tile + A_SIZE);
    }
}

// Stores a tile; `c` points to the first element of its first row.
__device__ __forceinline__ void store_tile(const float (&sum)[WM / 16][WN / 8][4], SCALAR* __restrict__ c, int height, int column, int n)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * WM + lane / 4, first = column + warp % WARPS_N * WN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < WM / 16 * 2; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
            if (row + i * 8 < height)
                store_pair(c, row + i * 8, first + j * 8, n, sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
}
