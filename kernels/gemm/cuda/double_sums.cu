// gemm, double_sums: FP32 products and their sums in FP64, on its tensor cores: each element is rounded once, at the end.
//
// Floor    The FP64 tensor cores of an H100, H200 or A100 do as many operations a second as FP32 has there outside of tensor
//          cores (67 of 67 and 19.5 of 19.5 TFLOPS).
// Idea     A product of two FP32 numbers is exact in FP64, and a sum of 2^20 of them has 2^-33 of error at most: whatever the
//          inputs are, the result is the exact one, rounded. So it is what other kernels fall back to (docs/precision.md).
//          Tiles lie in shared memory as FP32, as they do in global memory, and become FP64 on their way to registers.
// Tile     A warp has WM x WN elements of C as m16n8k16 products; on sm_80, as pairs of m8n8k4.
// Sharing  SPLIT_K blocks share the k of a tile; the one that arrives last adds their sums, in the order of k.
// Edges    Copies past an edge write zeros.
// Layout   C is m x n, row-major. A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when
//          B_TRANSPOSED. Dense; rows of A and B are divisible by VECTOR, arrays aligned to VECTOR elements.
// Source   own work.
// Letters  BM BN BK   tile of a block
//          WM WN      tile of a warp
//          STAGES     tiles that shared memory holds
//          VECTOR     elements of a copy
//          SWATH      block rows that are walked together, column by column, so that blocks share L2
//          SPLIT_K    blocks that share k

constexpr int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
constexpr int STEP = 16, QUADS = STEP / 4;         // terms of a product; of one register of each of four lanes
constexpr int TILES_M = WM / 16, TILES_N = WN / 8;  // products of a warp
static_assert(BK % STEP == 0 && WM % 16 == 0 && WN % 8 == 0, "tiles are of whole products");
static_assert(VECTOR <= GROUPED, "a copy has at most 16 bytes");

// c += a * b: 16 rows, 8 columns, 16 terms. Lane l has rows l / 4 and l / 4 + 8, terms l % 4 + 4 q, columns of c from l % 4 * 2 on.
__device__ __forceinline__ void multiply(double (&c)[4], const double (&a)[QUADS][2], const double (&b)[QUADS])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11},"
                 "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0][0]), "d"(a[0][1]), "d"(a[1][0]), "d"(a[1][1]), "d"(a[2][0]), "d"(a[2][1]), "d"(a[3][0]),
                   "d"(a[3][1]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
    for (int q = 0; q < QUADS; ++q)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                         : "+d"(c[2 * half]), "+d"(c[2 * half + 1]) : "d"(a[q][half]), "d"(b[q]));
#endif
}

// Tiles of one operand in shared memory. ALONG_K: neighbours in memory are neighbours in k. Lines are padded, so that the
// lanes of a product's operand meet 32 banks.
template <int SPAN, bool ALONG_K>
struct Tile {
    static constexpr int LENGTH = ALONG_K ? BK : SPAN, PITCH = LENGTH + (ALONG_K ? 4 : 8), LINES = ALONG_K ? SPAN : BK;
    static constexpr int SIZE = PITCH * LINES, COPIES = SPAN * BK / VECTOR;
    static_assert(COPIES % THREADS == 0, "every thread makes the same number of copies");

    static __device__ __forceinline__ void start(float* to, const float* from, int first, int count, int k, int start_k, int end_k)
    {
#pragma unroll
        for (int i = 0; i < COPIES / THREADS; ++i) {
            const int at = (i * THREADS + threadIdx.x) * VECTOR, line = at / LENGTH, place = at % LENGTH;
            const int span = first + (ALONG_K ? line : place), term = start_k + (ALONG_K ? place : line);
            const bool valid = span < count && term < end_k;
            const size_t offset = ALONG_K ? (size_t)span * k + term : (size_t)term * count + span;
            copy_async<VECTOR * 4>(to + line * PITCH + place, valid ? from + offset : from, valid);
        }
    }

    static __device__ __forceinline__ double read(const float* tile, int span, int term)
    {
        return tile[ALONG_K ? span * PITCH + term : term * PITCH + span];
    }
};

using TileA = Tile<BM, !A_TRANSPOSED>;
using TileB = Tile<BN, B_TRANSPOSED>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;

__device__ __forceinline__ void multiply_tile(double (&sum)[TILES_M][TILES_N][4], const float* tile, int row, int column)
{
    const int group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < BK; k += STEP) {
        double b[TILES_N][QUADS];
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
                b[j][q] = TileB::read(tile + TileA::SIZE, column + j * 8 + group, k + 4 * q + quad);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
            double a[QUADS][2];
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    a[q][half] = TileA::read(tile, row + i * 16 + half * 8 + group, k + 4 * q + quad);
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) multiply(sum[i][j], a, b[j]);
        }
    }
}

#if SPLIT_K > 1
// Leaves a block's sums; in the block that arrives last of a tile's, `sum` becomes that of all.
__device__ __forceinline__ bool add_shares(double (&sum)[TILES_M][TILES_N][4], unsigned char* workspace, unsigned tiles)
{
    constexpr int PER_THREAD = TILES_M * TILES_N * 4;
    __shared__ unsigned arrived;
    unsigned* const counter = (unsigned*)workspace + blockIdx.x;
    double* const shares = (double*)(workspace + ((size_t)tiles * 4 + 255) / 256 * 256)
                           + (size_t)blockIdx.x * SPLIT_K * PER_THREAD * THREADS + threadIdx.x;
    double* const flat = &sum[0][0][0];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) shares[(blockIdx.y * PER_THREAD + i) * THREADS] = flat[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        arrived = atomicInc(counter, SPLIT_K - 1);
        __threadfence();
    }
    __syncthreads();
    if (arrived != SPLIT_K - 1) return false;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) flat[i] = 0.0;
#pragma unroll 1
    for (int share = 0; share < SPLIT_K; ++share)
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) flat[i] += __ldcg(shares + (share * PER_THREAD + i) * THREADS);
    return true;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const float* __restrict__ a, const float* __restrict__ b, EPILOGUE_OPERANDS float* __restrict__ c, int m, int n,
     int k EPILOGUE_FACTORS
#if SPLIT_K > 1
     , unsigned char* workspace
#endif
)
{
    extern __shared__ __align__(16) float shared[];
    const unsigned tiles_m = (m - 1) / BM + 1, tiles_n = (n - 1) / BN + 1;
    const unsigned swath = blockIdx.x / (SWATH * tiles_n), inside = blockIdx.x % (SWATH * tiles_n);
    const unsigned rows = min((unsigned)SWATH, tiles_m - swath * SWATH);
    const int first_row = (swath * SWATH + inside % rows) * BM, first_column = inside / rows * BN;
    const int per_share = ((k - 1) / SPLIT_K / BK + 1) * BK;
    const int first_k = SPLIT_K > 1 ? min((int)blockIdx.y * per_share, k) : 0, end_k = SPLIT_K > 1 ? min(first_k + per_share, k) : k;
    const int tiles = (end_k - first_k + BK - 1) / BK;
    const int warp = threadIdx.x / 32, row = warp / WARPS_N * WM, column = warp % WARPS_N * WN;

    auto start = [&](int tile) {
        if (tile < tiles) {
            float* const to = shared + tile % STAGES * STAGE;
            TileA::start(to, a, first_row, m, k, first_k + tile * BK, end_k);
            TileB::start(to + TileA::SIZE, b, first_column, n, k, first_k + tile * BK, end_k);
        }
        close_group();  // empty where no tile is left, so that waiting stays the same
    };
    double sum[TILES_M][TILES_N][4] = {};
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) start(stage);
    for (int tile = 0; tile < tiles; ++tile) {
        await_group<STAGES - 2>();
        __syncthreads();
        start(tile + STAGES - 1);
        multiply_tile(sum, shared + tile % STAGES * STAGE, row, column);
    }
#if SPLIT_K > 1
    if (!add_shares(sum, workspace, tiles_m * tiles_n)) return;
#endif
#if EPILOGUE
    const Epilogue epilogue = EPILOGUE_GIVEN;
#endif
    const int lane_row = first_row + row + threadIdx.x % 32 / 4, lane_column = first_column + column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int r = lane_row + i * 16 + e / 2 * 8, x = lane_column + j * 8 + e % 2;
                if (r < m && x < n) c[(size_t)r * n + x] = EPILOGUE_RESULT((float)sum[i][j][e], r, x, n);
            }
}
