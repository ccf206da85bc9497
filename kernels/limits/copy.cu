// copy: to see how fast memory can be read and written.
//
// Idea     128-bit loads and stores, UNROLL of them on their way in every thread.
// Layout   x and y are dense, aligned to 16 bytes.
// Source   own work.
// Letters  n         elements of ELEMENT_BYTES
//          BLOCK     threads of a block
//          UNROLL    pieces of a thread

extern "C" __global__ void __launch_bounds__(BLOCK)
copy(const uint4* __restrict__ x, uint4* __restrict__ y, int n)
{
    const size_t packs = (size_t)n * ELEMENT_BYTES / 16;
    const size_t first = (size_t)blockIdx.x * (BLOCK * UNROLL) + threadIdx.x;
    uint4 held[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * BLOCK < packs) held[u] = __ldcs(x + first + u * BLOCK);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * BLOCK < packs) __stcs(y + first + u * BLOCK, held[u]);
    // What is left is less than one piece.
    const size_t left = (size_t)n * ELEMENT_BYTES / 4 - packs * 4;
    if (blockIdx.x == 0 && threadIdx.x < left)
        ((unsigned*)(y + packs))[threadIdx.x] = ((const unsigned*)(x + packs))[threadIdx.x];
}
