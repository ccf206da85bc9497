// smooth: every sample becomes a weighted mean of its neighbours up to RADIUS away, nearer ones weighing more.
//
// Idea     A block computes BLOCK * PER_THREAD neighbouring samples. Each input serves 2 * RADIUS + 1 outputs: with
//          SHARED=1 a block brings its inputs into shared memory once, else the caches must do that.
// Layout   signal and smoothed hold n samples; past both ends the signal is zero.
// Source   written for this project.
// Letters  BLOCK, PER_THREAD   threads of a block, samples of a thread (BLOCK apart, so that accesses coalesce)
//          SHARED              1: through shared memory; 0: straight from global memory
//          RADIUS              from the problem: known when compiling, so that the loop over neighbours unrolls

constexpr int TILE = BLOCK * PER_THREAD;

__device__ SCALAR sample(const SCALAR* signal, long long at, int n) { return at >= 0 && at < n ? signal[at] : 0; }

extern "C" __global__ void __launch_bounds__(BLOCK)
smooth(const SCALAR* __restrict__ signal, SCALAR* __restrict__ smoothed, int n)
{
    extern __shared__ SCALAR window[];
    const long long first = (long long)blockIdx.x * TILE;
    if (SHARED) {
        for (int i = threadIdx.x; i < TILE + 2 * RADIUS; i += BLOCK) window[i] = sample(signal, first - RADIUS + i, n);
        __syncthreads();
    }
#pragma unroll
    for (int item = 0; item < PER_THREAD; ++item) {
        const int i = item * BLOCK + threadIdx.x;
        if (first + i >= n) return;
        SCALAR sum = 0;
#pragma unroll
        for (int away = -RADIUS; away <= RADIUS; ++away) {
            const SCALAR weight = SCALAR(RADIUS + 1 - (away < 0 ? -away : away)) / ((RADIUS + 1) * (RADIUS + 1));
            sum += weight * (SHARED ? window[i + RADIUS + away] : sample(signal, first + i + away, n));
        }
        smoothed[first + i] = sum;
    }
}
