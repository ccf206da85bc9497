// gemm, row_shared: a block computes a stretch of one row of C, with the row of op(A) in shared memory.
//
// Idea     All threads of the block need the same row of op(A): it is read from global memory once per block, PIECE
//          elements at a time, and each value read from shared memory serves COLUMNS products. Every block still
//          reads B from global memory.
// Layout   C is M x N, row-major. A is stored M x K, or K x M when A_TRANSPOSED; B is stored K x N, or N x K when
//          B_TRANSPOSED. Rows are padded to a multiple of PITCH elements; with PITCH = 1 all is dense.
// Source   a public report on accuracy and memory layout of GEMM on a GeForce 8800; own code.
// Letters  m n k        sizes: C is m x n, k products are summed into each element
//          BLOCK        threads of a block
//          COLUMNS      elements of C of a thread, BLOCK apart
//          PIECE        elements of the row of op(A) in shared memory
//          ACCUMULATE   plain, or kahan: sums are compensated
//          PITCH        elements that the length of every row is padded to a multiple of

extern "C" __global__ void __launch_bounds__(BLOCK)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, SCALAR* __restrict__ c, int m, int n, int k)
{
    __shared__ SCALAR piece[PIECE];
    const unsigned blocks_per_row = ((unsigned)n + BLOCK * COLUMNS - 1) / (BLOCK * COLUMNS);
    const size_t row = blockIdx.x / blocks_per_row;
    const unsigned first = blockIdx.x % blocks_per_row * (BLOCK * COLUMNS) + threadIdx.x;
    const size_t lda = pitch(A_TRANSPOSED ? m : k, PITCH), ldb = pitch(B_TRANSPOSED ? k : n, PITCH);
    const size_t step_b = B_TRANSPOSED ? 1 : ldb;

    const SCALAR* from_b[COLUMNS];
    Sum sum[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        const size_t column = min(first + i * BLOCK, (unsigned)n - 1);  // every thread is needed at the barriers
        from_b[i] = b + (B_TRANSPOSED ? column * ldb : column);
    }
    for (int done = 0; done < k; done += PIECE) {
        const int count = min(PIECE, k - done);
        __syncthreads();
        for (int p = threadIdx.x; p < count; p += BLOCK)
            piece[p] = a[A_TRANSPOSED ? (done + p) * lda + row : row * lda + done + p];
        __syncthreads();
        for (int p = 0; p < count; ++p) {
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) sum[i].add(piece[p], from_b[i][(done + p) * step_b]);
        }
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
        if (first + i * BLOCK < (unsigned)n) c[row * pitch(n, PITCH) + first + i * BLOCK] = sum[i].total;
}
