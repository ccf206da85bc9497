// multiply_add: to see how many multiply-adds a device does when nothing has to be fetched.
//
// Idea     Every thread keeps CHAINS numbers in registers and puts each through y <- y / 2 + 1 again and again: a chain
//          waits for itself, but not for the others.
// Layout   x and y are dense.
// Source   own work.
// Letters  n steps    numbers, and multiply-adds done to each
//          BLOCK      threads of a block
//          CHAINS     numbers of a thread

extern "C" __global__ void __launch_bounds__(BLOCK)
multiply_add(const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int n, int steps)
{
    const size_t first = (size_t)blockIdx.x * (BLOCK * CHAINS) + threadIdx.x;
    const SCALAR half = (SCALAR)0.5, one = 1;
    SCALAR value[CHAINS];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) value[c] = first + c * BLOCK < (size_t)n ? x[first + c * BLOCK] : 0;
#pragma unroll 16
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int c = 0; c < CHAINS; ++c) value[c] = value[c] * half + one;
    }
#pragma unroll
    for (int c = 0; c < CHAINS; ++c)
        if (first + c * BLOCK < (size_t)n) y[first + c * BLOCK] = value[c];
}
