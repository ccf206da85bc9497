// Shares of k of a tile of C: what warpgroups leave in a workspace as wgmma left it in their registers, and its total.
//
// Comes after epilogue.cuh and wgmma_shared.cuh. ROWS times 64 rows and WIDTH columns are a warpgroup's; SPLIT_K of them share K. Sums
// are added in the order of the shares, so that every run gives the same. With SWAP the product is C's transpose.

// Two results as 16 bits each, the left one below.
__device__ __forceinline__ unsigned pair(float left, float right)
{
    unsigned both;
#if BFLOAT
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
#else
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(right), "f"(left));
#endif
    return both;
}

#if SPLIT_K > 1
// Four sums of a thread are two neighbours in each of two rows, eight apart. FOURS of them are a warpgroup's.
constexpr int FOURS_EACH = ROWS * SUMS / 4, FOURS = FOURS_EACH * 128;

// The first of a thread's rows in its fours `at`, and of its columns, from the warpgroup's first on.
__device__ __forceinline__ int row_of_fours(int at)
{
    return at / (SUMS / 4) * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}
__device__ __forceinline__ int column_of_fours(int at) { return at % (SUMS / 4) * 8 + threadIdx.x % 4 * 2; }

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// A warpgroup's shares, SPLIT_K after each other.
__device__ __forceinline__ float4* shares_at(float* parts, unsigned unit) { return (float4*)parts + (size_t)unit * SPLIT_K * FOURS; }

// Leaves a share, but for rows beyond the product's `height`.
__device__ __forceinline__ void leave_share(const float (&sum)[ROWS][SUMS], float4* shares, unsigned share, int row, int height)
{
    shares += (size_t)share * FOURS + threadIdx.x % 128;
    const int left = height - row - row_of_fours(0);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (r * 64 >= left) continue;
        const float(&s)[SUMS] = sum[r];
#pragma unroll
        for (int j = 0; j < SUMS / 4; ++j)
            shares[(r * (SUMS / 4) + j) * 128] = make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
    }
}

// A warpgroup's total in its registers, as its products would be.
__device__ __forceinline__ void sum_shares(float (&sum)[ROWS][SUMS], const float4* shares, int row, int height)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[r][i] = 0.0f;
    shares += threadIdx.x % 128;
    const int left = height - row - row_of_fours(0);
#pragma unroll 1
    for (int share = 0; share < SPLIT_K; ++share, shares += FOURS)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (r * 64 >= left) continue;
            float(&s)[SUMS] = sum[r];
#pragma unroll
            for (int j = 0; j < SUMS / 4; ++j) {
                const float4 four = __ldcg(shares + (r * (SUMS / 4) + j) * 128);
                s[4 * j] += four.x, s[4 * j + 1] += four.y, s[4 * j + 2] += four.z, s[4 * j + 3] += four.w;
            }
        }
}

// Stores one of each thread's fours, `at`, finished.
__device__ __forceinline__ void store_four(const float4& four, int at, unsigned short* c, int row, int column, int m,
                                           int n EPILOGUE_PARAMETER)
{
    row += row_of_fours(at), column += column_of_fours(at);
    const float sum[4] = {four.x, four.y, four.z, four.w};
#if SWAP
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int y = column + i % 2, x = row + i / 2 * 8;
        if (y < m && x < n) c[(size_t)y * n + x] = (unsigned short)pair(EPILOGUE_RESULT(sum[i], y, x, n), 0.0f);
    }
#else
    if (column >= n) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int y = row + h * 8;
        if (y >= m) return;
        unsigned short* const to = c + (size_t)y * n + column;
        const float left = EPILOGUE_RESULT(sum[2 * h], y, column, n);
        if (n % 2 == 0) {
            *(unsigned*)to = pair(left, EPILOGUE_RESULT(sum[2 * h + 1], y, column + 1, n));
            continue;
        }
        to[0] = (unsigned short)pair(left, 0.0f);
        if (column + 1 < n) to[1] = (unsigned short)pair(EPILOGUE_RESULT(sum[2 * h + 1], y, column + 1, n), 0.0f);
    }
#endif
}

// Stores the total of one of each thread's fours, `at`, finished.
__device__ __forceinline__ void store_total(const float4* shares, int at, unsigned short* c, int row, int column, int m,
                                            int n EPILOGUE_PARAMETER)
{
    if (row + row_of_fours(at) >= (SWAP ? n : m)) return;
    shares += at * 128 + threadIdx.x % 128;
    float4 sum = {};
#pragma unroll 16
    for (int share = 0; share < SPLIT_K; ++share) sum = sum_of(sum, shares[(size_t)share * FOURS]);
    store_four(sum, at, c, row, column, m, n EPILOGUE_PASSED);
}
#endif
