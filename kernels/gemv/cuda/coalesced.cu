// gemv, coalesced: neighbouring threads read neighbouring elements of A, however it is stored.
//
// Idea     Stored by columns: a thread per row, so that a warp reads 32 elements of one column, side by side in memory.
//          Stored by rows: a warp per row, its lanes side by side along the row; the lanes' sums are added by shuffles.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense.
// Source   public GEMV ladders (column-major A); the row-major form and the code are ours.
// Letters  m n      y has m elements, n products are summed into each
//          BLOCK    threads of a block
//          UNROLL   unrolled steps of the loop, whose loads can be in flight together

constexpr int STEPS = UNROLL;

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n)
{
    const unsigned thread = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned row = A_TRANSPOSED ? thread : thread / 32;
    if (row >= (unsigned)m) return;  // lanes of a warp leave together where they need each other
    const int first = A_TRANSPOSED ? 0 : threadIdx.x % 32;
    const int step = A_TRANSPOSED ? 1 : 32;
    const SCALAR* from = a + (A_TRANSPOSED ? (size_t)row : (size_t)row * n);

    SCALAR sum = 0;
#pragma unroll STEPS
    for (int j = first; j < n; j += step) sum += from[A_TRANSPOSED ? (size_t)j * m : (size_t)j] * x[j];
    if (!A_TRANSPOSED) {
#pragma unroll
        for (int away = 16; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
        if (first != 0) return;
    }
    y[row] = sum;
}
