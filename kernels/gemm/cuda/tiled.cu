// gemm, tiled: a block computes a BLOCK x BLOCK tile of C, a thread one element of it.
//
// Idea     Tiles of op(A) and op(B) pass through shared memory, where each value serves BLOCK products: global memory is
//          read 2*m*n*k / BLOCK times instead of 2*m*n*k.
// Edges    BORDER = check: loads and stores check whether they are inside; elements outside are zero.
//          BORDER = pad: every array is a zero-padded copy whose sizes are multiples of BLOCK, so there are no checks.
// Layout   C is M x N, row-major. A is stored M x K, or K x M when A_TRANSPOSED; B is stored K x N, or N x K when
//          B_TRANSPOSED. Rows are padded to a multiple of PITCH elements (and of BLOCK if BORDER = pad).
// Source   the shared-memory step of every GEMM ladder, e.g. the CUDA C++ Programming Guide's; own code.
// Letters  m n k        sizes: C is m x n, k products are summed into each element
//          BLOCK        edge of the tiles, and of the block of threads
//          BORDER       check or pad, see Edges
//          ACCUMULATE   plain, or kahan: sums are compensated
//          PITCH        elements that the length of every row is padded to a multiple of

#define CHECKED (BORDER == BORDER_check)
constexpr int UNIT = CHECKED || PITCH > BLOCK ? PITCH : BLOCK;

extern "C" __global__ void __launch_bounds__(BLOCK * BLOCK)
gemm(const SCALAR* __restrict__ a, const SCALAR* __restrict__ b, EPILOGUE_OPERANDS SCALAR* __restrict__ c, int m,
     int n, int k EPILOGUE_FACTORS)
{
    // One more column: a transposing store then meets every bank.
    __shared__ SCALAR tile_a[BLOCK][BLOCK + A_TRANSPOSED], tile_b[BLOCK][BLOCK + B_TRANSPOSED];
    const unsigned tiles_per_row = ((unsigned)n + BLOCK - 1) / BLOCK;
    const unsigned top = blockIdx.x / tiles_per_row * BLOCK, left = blockIdx.x % tiles_per_row * BLOCK;
    const unsigned x = threadIdx.x, y = threadIdx.y;
    const size_t lda = pitch(A_TRANSPOSED ? m : k, UNIT), ldb = pitch(B_TRANSPOSED ? k : n, UNIT);

    Sum sum;
    for (unsigned p = 0; p < (unsigned)k; p += BLOCK) {
        // Neighbouring threads read neighbours as stored.
        const unsigned a_row = top + (A_TRANSPOSED ? x : y), a_k = p + (A_TRANSPOSED ? y : x);
        const unsigned b_column = left + (B_TRANSPOSED ? y : x), b_k = p + (B_TRANSPOSED ? x : y);
        const bool a_inside = !CHECKED || (a_row < (unsigned)m && a_k < (unsigned)k);
        const bool b_inside = !CHECKED || (b_column < (unsigned)n && b_k < (unsigned)k);
        const SCALAR of_a = a_inside ? a[A_TRANSPOSED ? a_k * lda + a_row : a_row * lda + a_k] : 0;
        const SCALAR of_b = b_inside ? b[B_TRANSPOSED ? b_column * ldb + b_k : b_k * ldb + b_column] : 0;
        __syncthreads();
        tile_a[A_TRANSPOSED ? x : y][A_TRANSPOSED ? y : x] = of_a;
        tile_b[B_TRANSPOSED ? x : y][B_TRANSPOSED ? y : x] = of_b;
        __syncthreads();
#pragma unroll
        for (int q = 0; q < BLOCK; ++q) sum.add(tile_a[y][q], tile_b[q][x]);
    }
#if EPILOGUE
    const Epilogue epilogue = EPILOGUE_GIVEN;
#endif
    if (!CHECKED || (top + y < (unsigned)m && left + x < (unsigned)n))
        c[(top + y) * pitch(n, UNIT) + left + x] = EPILOGUE_RESULT(sum.total, top + y, left + x, n);
}
