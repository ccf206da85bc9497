// transpose, unrolled: a block of TILE x ROWS threads moves a TILE x TILE tile, a thread TILE / ROWS elements.
//
// Idea     As padded_tile, with fewer threads that do more each: index arithmetic is shared, and every thread has several
//          loads in flight before the barrier.
// Layout   A is m x n, B is n x m, both row-major and dense.
// Source   public transposition ladders; own code.
// Letters  m n     A has m rows of n elements
//          TILE    edge of the tile
//          ROWS    rows of the tile that the block's threads span at once

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
transpose(const SCALAR* __restrict__ a, SCALAR* __restrict__ b, int m, int n)
{
    __shared__ SCALAR tile[TILE][TILE + 1];
    const unsigned tiles_per_row = ((unsigned)n + TILE - 1) / TILE;
    const unsigned top = blockIdx.x / tiles_per_row * TILE, left = blockIdx.x % tiles_per_row * TILE;

    const unsigned column = left + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TILE; i += ROWS) {
        const unsigned row = top + threadIdx.y + i;
        if (row < (unsigned)m && column < (unsigned)n)
            tile[threadIdx.y + i][threadIdx.x] = a[(size_t)row * n + column];
    }
    __syncthreads();
    const unsigned b_column = top + threadIdx.x;
#pragma unroll
    for (int i = 0; i < TILE; i += ROWS) {
        const unsigned b_row = left + threadIdx.y + i;
        if (b_row < (unsigned)n && b_column < (unsigned)m)
            b[(size_t)b_row * m + b_column] = tile[threadIdx.x][threadIdx.y + i];
    }
}
