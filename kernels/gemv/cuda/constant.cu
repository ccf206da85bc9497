// gemv, constant: x lies in constant memory, whose cache hands one value to all threads of a warp at once.
//
// Idea     A thread per row: all threads of a warp need the same element of x at the same time, which constant memory
//          serves at once. It has 64 KB. A longer x passes through it in pieces, with a launch for each, and each launch
//          continues the sums of the one before.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense.
// Source   public GEMV ladders (column-major A); the pieces and the code are ours.
// Letters  m n      y has m elements, n products are summed into each
//          first    elements of x before the piece that `piece` holds
//          BLOCK    threads of a block, and rows
//          PIECE    elements of x in constant memory
//          UNROLL   unrolled steps of the loop, whose loads of A can be in flight together

constexpr int STEPS = UNROLL;

__constant__ SCALAR piece[PIECE];

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n, int first)
{
    const unsigned row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= (unsigned)m) return;
    const SCALAR* from = a + (A_TRANSPOSED ? (size_t)first * m + row : (size_t)row * n + first);
    const size_t step = A_TRANSPOSED ? m : 1;
    const int count = min(PIECE, n - first);

    SCALAR sum = first == 0 ? 0 : y[row];
#pragma unroll STEPS
    for (int j = 0; j < count; ++j) sum += from[j * step] * piece[j];
    y[row] = sum;
}
