// gemv, row_per_thread: one thread computes one element of y, walking along its row of A.
//
// Idea     None yet. With A stored by rows, neighbouring threads read addresses a whole row apart: a warp's load touches
//          32 lines of memory and uses 4 bytes of each. With A stored by columns the same code reads neighbours.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense.
// Source   the first step of public GEMV ladders; own code.
// Letters  m n      y has m elements, n products are summed into each
//          BLOCK    threads of a block, and rows

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n)
{
    const unsigned row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= (unsigned)m) return;
    const SCALAR* from = a + (A_TRANSPOSED ? (size_t)row : (size_t)row * n);
    const size_t step = A_TRANSPOSED ? m : 1;

    SCALAR sum = 0;
    for (int j = 0; j < n; ++j) sum += from[j * step] * x[j];
    y[row] = sum;
}
