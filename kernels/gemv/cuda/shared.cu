// gemv, shared: x passes through shared memory, piece by piece, and is read from there by all threads of a block.
//
// Idea     Each element of x is fetched from global memory once per block rather than once per warp; the loop over a piece
//          has a known length, so it can be unrolled, and its loads of A can be in flight together.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense.
// Source   public GEMV ladders (column-major A); the row-major form and the code are ours.
// Letters  m n      y has m elements, n products are summed into each
//          BLOCK    threads of a block: rows (A by columns), or 32 for each row (A by rows)
//          PIECE    elements of x in shared memory
//          UNROLL   unrolled steps of the inner loop

constexpr int STEPS = UNROLL;

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n)
{
    __shared__ SCALAR piece[PIECE];
    const unsigned thread = blockIdx.x * BLOCK + threadIdx.x;
    const unsigned row = A_TRANSPOSED ? thread : thread / 32;
    const size_t safe_row = min(row, (unsigned)m - 1);  // every thread is needed at the barriers
    const int first = A_TRANSPOSED ? 0 : threadIdx.x % 32;
    constexpr int STEP = A_TRANSPOSED ? 1 : 32;

    SCALAR sum = 0;
    for (int done = 0; done < n; done += PIECE) {
        const int count = min(PIECE, n - done);
        __syncthreads();
        for (int j = threadIdx.x; j < count; j += BLOCK) piece[j] = x[done + j];
        __syncthreads();
        const SCALAR* from = a + (A_TRANSPOSED ? (size_t)done * m + safe_row : safe_row * n + done);
        const size_t line = A_TRANSPOSED ? m : 1;
        if (count == PIECE) {
#pragma unroll STEPS
            for (int j = 0; j < PIECE; j += STEP) sum += from[(j + first) * line] * piece[j + first];
        } else {
            for (int j = first; j < count; j += STEP) sum += from[j * line] * piece[j];
        }
    }
    if (!A_TRANSPOSED) {
#pragma unroll
        for (int away = 16; away > 0; away /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
        if (first != 0) return;
    }
    if (row < (unsigned)m) y[row] = sum;
}
