// transpose, naive: one thread moves one element.
//
// Idea     None yet. A warp reads neighbours of a row of A, and writes them a whole row of B apart: every store touches
//          another line of memory.
// Layout   A is m x n, B is n x m, both row-major and dense.
// Source   the first step of every transposition ladder; own code.
// Letters  m n          A has m rows of n elements
//          BLOCK_X/_Y   threads of a block along a row of A and down it

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
transpose(const SCALAR* __restrict__ a, SCALAR* __restrict__ b, int m, int n)
{
    // One-dimensional grid: its x extent alone holds more than 65535 blocks.
    const unsigned blocks_per_row = ((unsigned)n + BLOCK_X - 1) / BLOCK_X;
    const unsigned row = blockIdx.x / blocks_per_row * BLOCK_Y + threadIdx.y;
    const unsigned column = blockIdx.x % blocks_per_row * BLOCK_X + threadIdx.x;
    if (row < (unsigned)m && column < (unsigned)n) b[(size_t)column * m + row] = a[(size_t)row * n + column];
}
