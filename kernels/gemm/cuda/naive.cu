// gemm, naive: one thread computes one element of C, reading a row of op(A) and a column of op(B) from global memory.
//
// Layout   C is M x N, row-major. A is stored M x K, or K x M when A_TRANSPOSED; B is stored K x N, or N x K when
//          B_TRANSPOSED. Rows are padded to a multiple of PITCH elements; with PITCH = 1 all is dense.
// Source   the first step of every GEMM ladder, e.g. the CUDA C++ Programming Guide's matrix multiplication
//          without shared memory; own code.
// Letters  m n k        sizes: C is m x n, k products are summed into each element
//          BLOCK_X/_Y   threads of a block along a row of C (neighbouring threads, neighbouring columns) and down it
//          ACCUMULATE   plain, or kahan: sums are compensated
//          PITCH        elements that the length of every row is padded to a multiple of

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, EPILOGUE_OPERANDS SCALAR* __restrict__ c, int m,
     int n, int k EPILOGUE_FACTORS)
{
    // One-dimensional grid: its x extent alone holds more than 65535 blocks.
    const unsigned blocks_per_row = ((unsigned)n + BLOCK_X - 1) / BLOCK_X;
    const unsigned row = blockIdx.x / blocks_per_row * BLOCK_Y + threadIdx.y;
    const unsigned column = blockIdx.x % blocks_per_row * BLOCK_X + threadIdx.x;
    if (row >= (unsigned)m || column >= (unsigned)n) return;

    const size_t lda = pitch(A_TRANSPOSED ? m : k, PITCH), ldb = pitch(B_TRANSPOSED ? k : n, PITCH);
    const SCALAR* from_a = a + (A_TRANSPOSED ? (size_t)row : (size_t)row * lda);
    const SCALAR* from_b = b + (B_TRANSPOSED ? (size_t)column * ldb : (size_t)column);
    const size_t step_a = A_TRANSPOSED ? lda : 1;
    const size_t step_b = B_TRANSPOSED ? 1 : ldb;

    Sum sum;
    for (int p = 0; p < k; ++p) sum.add(from_a[p * step_a], from_b[p * step_b]);
#if EPILOGUE
    const Epilogue epilogue = EPILOGUE_GIVEN;
#endif
    c[(size_t)row * pitch(n, PITCH) + column] = EPILOGUE_RESULT(sum.total, row, column, n);
}
