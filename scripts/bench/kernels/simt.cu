// gemm without edges: the kernel on which tuners are compared for how many configs they try in a minute.
//
// Idea     A block computes BM x BN of C; a warp's LM x LN lanes each hold TM x TN sums in registers; the next tile is
//          fetched into registers while this one is multiplied, and two shared buffers take turns.
// Layout   a m x k, b k x n, c m x n, row-major; m, n, k are multiples of BM, BN, BK.
// Source   a feasibility study of this project, written anew.
// Letters  BM BN BK tile of a block; TM TN of a thread; LM LN lanes of a warp down and across; GROUP block rows walked
//          together for L2; PADA floats between the columns of the tile of a in shared memory.

constexpr int WARP_M = LM * TM, WARP_N = LN * TN;
constexpr int WARPS_N = BN / WARP_N;
constexpr int THREADS = (BM / WARP_M) * WARPS_N * 32;
constexpr int QUADS_A = BM * BK / 4 / THREADS, QUADS_B = BK * BN / 4 / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_even(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k)
{
    __shared__ __align__(16) float tile_a[2][BK][BM + PADA];
    __shared__ __align__(16) float tile_b[2][BK][BN];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int row_in_block = warp / WARPS_N * WARP_M + lane / LN * 4;
    const int column_in_block = warp % WARPS_N * WARP_N + lane % LN * 4;

    const int blocks_m = m / BM, per_group = GROUP * (n / BN);
    const int first = blockIdx.x / per_group * GROUP, height = min(blocks_m - first, GROUP);
    const int block_m = first + blockIdx.x % per_group % height, block_n = blockIdx.x % per_group / height;
    a += (size_t)block_m * BM * k;
    b += block_n * BN;
    c += (size_t)block_m * BM * n + block_n * BN;

    float4 held_a[QUADS_A], held_b[QUADS_B];
    float sum[TM][TN] = {};
    auto fetch = [&](int depth) {
#pragma unroll
        for (int i = 0; i < QUADS_A; ++i) {
            const int quad = thread + i * THREADS;
            held_a[i] = *(const float4*)(a + (size_t)(quad / (BK / 4)) * k + depth + quad % (BK / 4) * 4);
        }
#pragma unroll
        for (int i = 0; i < QUADS_B; ++i) {
            const int quad = thread + i * THREADS;
            held_b[i] = *(const float4*)(b + (size_t)(depth + quad / (BN / 4)) * n + quad % (BN / 4) * 4);
        }
    };
    auto store = [&](int stage) {
#pragma unroll
        for (int i = 0; i < QUADS_A; ++i) {
            const int quad = thread + i * THREADS, row = quad / (BK / 4), depth = quad % (BK / 4) * 4;
            tile_a[stage][depth][row] = held_a[i].x;
            tile_a[stage][depth + 1][row] = held_a[i].y;
            tile_a[stage][depth + 2][row] = held_a[i].z;
            tile_a[stage][depth + 3][row] = held_a[i].w;
        }
#pragma unroll
        for (int i = 0; i < QUADS_B; ++i) {
            const int quad = thread + i * THREADS;
            *(float4*)&tile_b[stage][quad / (BN / 4)][quad % (BN / 4) * 4] = held_b[i];
        }
    };

    fetch(0);
    store(0);
    __syncthreads();
    int stage = 0;
    for (int depth = 0; depth < k; depth += BK) {
        const bool more = depth + BK < k;
        if (more) fetch(depth + BK);
#pragma unroll
        for (int p = 0; p < BK; ++p) {
            float part_a[TM], part_b[TN];
#pragma unroll
            for (int i = 0; i < TM; i += 4)
                *(float4*)&part_a[i] = *(const float4*)&tile_a[stage][p][row_in_block + i * LM];
#pragma unroll
            for (int j = 0; j < TN; j += 4)
                *(float4*)&part_b[j] = *(const float4*)&tile_b[stage][p][column_in_block + j * LN];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(part_a[i], part_b[j], sum[i][j]);
        }
        stage ^= 1;
        if (more) {
            store(stage);
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = row_in_block + i / 4 * LM * 4 + i % 4;
#pragma unroll
        for (int j = 0; j < TN; j += 4)
            *(float4*)(c + (size_t)row * n + column_in_block + j * LN) =
                make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
    }
}
