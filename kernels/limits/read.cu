// read: a block sums one part of an array, to see how fast memory can be read.
//
// Idea     128-bit loads, UNROLL of them on their way in every thread, and nothing else to wait for.
// Layout   x is parts x n, row-major and dense; sums has an element per part.
// Source   own work.
// Letters  parts n    blocks, and the elements that each sums
//          BLOCK      threads of a block
//          UNROLL     loads of a thread on their way together

constexpr int VECTOR = 16 / sizeof(SCALAR);

union Pack {
    uint4 raw;
    SCALAR element[VECTOR];
};

extern "C" __global__ void __launch_bounds__(BLOCK)
read(const SCALAR* __restrict__ x, SCALAR* __restrict__ sums, int parts, int n)
{
    const uint4* from = (const uint4*)(x + (size_t)blockIdx.x * n);
    const int packs = n % VECTOR == 0 ? n / VECTOR : 0;  // else rows begin where no wide load may
    SCALAR sum[UNROLL] = {};
    int at = threadIdx.x;
    for (; at + (UNROLL - 1) * BLOCK < packs; at += UNROLL * BLOCK) {
        Pack held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) held[u].raw = __ldcs(from + at + u * BLOCK);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) sum[u] += held[u].element[e];
    }
    for (; at < packs; at += BLOCK) {
        Pack held;
        held.raw = __ldcs(from + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) sum[0] += held.element[e];
    }
    for (int j = packs * VECTOR + threadIdx.x; j < n; j += BLOCK) sum[0] += x[(size_t)blockIdx.x * n + j];
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];

    __shared__ SCALAR of_warp[BLOCK / 32];
#pragma unroll
    for (int away = 16; away > 0; away /= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], away);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum[0];
    __syncthreads();
    if (threadIdx.x != 0) return;
    SCALAR total = of_warp[0];
    for (int warp = 1; warp < BLOCK / 32; ++warp) total += of_warp[warp];
    sums[blockIdx.x] = total;
}
