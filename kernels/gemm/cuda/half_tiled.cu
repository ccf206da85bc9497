// gemm of float16 or bfloat16 on ordinary cores: tiles in shared memory as FP32, TM x TN sums in a thread's registers.
//
// Idea     What tensor maps do not take, rows that are no multiple of 16 bytes, or devices without them: any shape is right here.
//          Elements become FP32 once, on the way to shared memory; the result is rounded once.
// Layout   a: m x k or k x m, b: k x n or n x k, c: m x n, row-major, elements as 16 bits (half.cuh).
// Source   textbook tiling (register_tiled.cu without its vectors), own code.
// Letters  BM BN BK   tile of C, and terms of a step
//          TM TN      elements of a thread: rows and columns that lie a tile's fraction apart

constexpr int DOWN = BM / TM, ACROSS = BN / TN, THREADS = DOWN * ACROSS;

// Puts LINES x BK elements at [term][line]; neighbouring threads read neighbouring elements.
template <int LINES, bool ALONG_TERMS>
__device__ __forceinline__ void put(float (&tile)[BK][LINES + 1], const unsigned short* __restrict__ from, int first_line, int lines,
                                    int first_term, int k)
{
    for (int i = threadIdx.x; i < LINES * BK; i += THREADS) {
        const int line = ALONG_TERMS ? i / BK : i % LINES, term = ALONG_TERMS ? i % BK : i / LINES;
        const int y = first_line + line, x = first_term + term;
        const bool inside = y < lines && x < k;
        tile[term][line] = inside ? widened(from[ALONG_TERMS ? (size_t)y * k + x : (size_t)x * lines + y]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const unsigned short* __restrict__ a, const unsigned short* __restrict__ b, EPILOGUE_OPERANDS unsigned short* __restrict__ c,
     int m, int n, int k EPILOGUE_FACTORS)
{
    __shared__ float left[BK][BM + 1], right[BK][BN + 1];
    const int tiles_n = (n - 1) / BN + 1, row = blockIdx.x / tiles_n * BM, column = blockIdx.x % tiles_n * BN;
    const int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
#if EPILOGUE
    const Epilogue epilogue = EPILOGUE_GIVEN;
#endif
    float sum[TM][TN] = {};
    for (int term = 0; term < k; term += BK) {
        put<BM, !A_TRANSPOSED>(left, a, row, m, term, k);
        put<BN, B_TRANSPOSED>(right, b, column, n, term, k);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < BK; ++t) {
            float down[TM], across[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) down[i] = left[t][i * DOWN + y];
#pragma unroll
            for (int j = 0; j < TN; ++j) across[j] = right[t][j * ACROSS + x];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(down[i], across[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int to_row = row + i * DOWN + y, to_column = column + j * ACROSS + x;
            if (to_row < m && to_column < n)
                c[(size_t)to_row * n + to_column] = rounded(EPILOGUE_RESULT(sum[i][j], to_row, to_column, n));
        }
}
