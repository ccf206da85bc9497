// transpose, padded_tile: a block moves a square tile through shared memory, a thread one element.
//
// Idea     As shared_tile, with one more element per row of the tile: the elements of a column then lie in different
//          banks, and a warp reads them at once.
// Layout   A is m x n, B is n x m, both row-major and dense.
// Source   public transposition ladders; own code.
// Letters  m n     A has m rows of n elements
//          TILE    edge of the tile, and of the block of threads

extern "C" __global__ void __launch_bounds__(TILE * TILE)
transpose(const SCALAR* __restrict__ a, SCALAR* __restrict__ b, int m, int n)
{
    __shared__ SCALAR tile[TILE][TILE + 1];
    const unsigned tiles_per_row = ((unsigned)n + TILE - 1) / TILE;
    const unsigned top = blockIdx.x / tiles_per_row * TILE, left = blockIdx.x % tiles_per_row * TILE;

    const unsigned row = top + threadIdx.y, column = left + threadIdx.x;
    if (row < (unsigned)m && column < (unsigned)n) tile[threadIdx.y][threadIdx.x] = a[(size_t)row * n + column];
    __syncthreads();
    // Now threads side by side take a column of the tile, which is a row of B.
    const unsigned b_row = left + threadIdx.y, b_column = top + threadIdx.x;
    if (b_row < (unsigned)n && b_column < (unsigned)m) b[(size_t)b_row * m + b_column] = tile[threadIdx.x][threadIdx.y];
}
