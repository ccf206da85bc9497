// grouped, warp_mma: tensor cores by warps (mma.sync), tiles copied ahead through shared memory, in 16 bits.
//
// Idea     As tiled finds its group; a block's warps share BM x BN of C. STAGES tiles of BK terms are in shared memory or on their way
//          (cp.async); ldmatrix reads what a product takes, B in either order.
// Edges    Rows of other groups, columns and terms beyond the edge come as zeros, and are not stored.
// Memory   Lines of 64 bytes and more; their 16-byte chunks are permuted by the line, so that eight lines of one chunk lie in all banks.
// Layout   a: rows x k, b: groups of k x n or n x k, c: rows x n, dense, offsets: where groups end. Rows of a and b are divisible by
//          VECTOR.
// Source   own work; fragments as the PTX manual has them.
// Letters  BM BN BK          tile of C, and terms of a stage
//          WARPS_M WARPS_N   warps down and across the tile
//          STAGES            tiles of A and B in shared memory
//          VECTOR            elements of a copy: 8, past registers, or 1 for any rows
//          GROUP ORDER       how blocks walk the tiles (tile_order.cuh)

constexpr int THREADS = 32 * WARPS_M * WARPS_N, WM = BM / WARPS_M, WN = BN / WARPS_N;
constexpr int B_LINES = B_TRANSPOSED ? BN : BK, B_LINE = B_TRANSPOSED ? BK : BN;  // as stored
constexpr int A_SIZE = BM * BK, STAGE = A_SIZE + BN * BK;

// Where chunk `chunk` of a line of LINE elements lies.
template <int LINE> __device__ __forceinline__ int at(int line, int chunk)
{
    return line * LINE + (chunk ^ (LINE >= 64 ? line & 7 : line >> 1 & 3)) * 8;
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
        if (VECTOR == 8) {
            const bool inside = line < lines && chunk * 8 < along;
            copy_async<16>(there, inside ? here : from, inside);
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
    const int row = warp / WARPS_N * WM + lane % 16, column = warp % WARPS_N * WN;
#pragma unroll
    for (int term = 0; term < BK; term += 16) {
        unsigned a[WM / 16][4], b[WN / 16][4];
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) load_four(a[i], tile_a + at<BK>(row + i * 16, term / 8 + lane / 16));
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

extern "C" __global__ void __launch_bounds__(THREADS)
grouped(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, const int* __restrict__ offsets, SCALAR* __restrict__ c, int rows,
        int n, int k, int groups)
{
    extern __shared__ __align__(128) SCALAR shared[];
    const Cell cell = cell_at(blockIdx.x, rows / BM + groups, (n - 1) / BN + 1);
    const Rows own = rows_of_tile<BM>(offsets, groups, rows, cell.row);
    const int height = own.end - own.first, column = cell.column * BN, steps = (k - 1) / BK + 1;
    if (height <= 0) return;
    a += (size_t)own.first * k;
    b += (size_t)own.group * k * n + (B_TRANSPOSED ? (size_t)column * k : column);

    auto fetch = [&](int step) {
        SCALAR* const to = shared + step % STAGES * STAGE;
        const int left = k - step * BK;
        if (left > 0) {
            copy_tile<BM, BK>(to, a + step * BK, k, height, left);
            if (B_TRANSPOSED) copy_tile<B_LINES, B_LINE>(to + A_SIZE, b + step * BK, k, n - column, left);
            else copy_tile<B_LINES, B_LINE>(to + A_SIZE, b + (size_t)step * BK * n, n, left, n - column);
        }
        close_group();
    };

    float sum[WM / 16][WN / 8][4] = {};
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        await_group<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const SCALAR* const tile = shared + step % STAGES * STAGE;
        multiply_stage(sum, tile, tile + A_SIZE);
    }

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / WARPS_N * WM + lane / 4, first = column + warp % WARPS_N * WN + lane % 4 * 2;
    c += (size_t)own.first * n;
#pragma unroll
    for (int i = 0; i < WM / 16 * 2; ++i)
#pragma unroll
        for (int j = 0; j < WN / 8; ++j)
            if (row + i * 8 < height)
                store_pair(c, row + i * 8, first + j * 8, n, sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
}
