// Scales of operands of 8 bits, and the sums of their products outside of the tensor cores.
//
// Comes after wgmma_shared.cuh. SCALES: 1, one for each operand; 2, one for each row of A and column of B; 3, one for 1 x 128 elements of A,
// stored by blocks of k, and for 128 x 128 of B. With SWAP the product is C's transpose: its left operand is B.
//
// Tensor cores add up products of 8 bits in fewer bits than a float has. So after PROMOTE places the sums of these alone are added to
// others in registers, multiplied by the scales of their blocks where there are such; PROMOTE=0: not before the end.

#if SCALES
#define SCALES_TAKEN const float *__restrict__ scale_a, const float *__restrict__ scale_b,
#define SCALES_GIVEN scale_a, scale_b
#else
#define SCALES_TAKEN
#define SCALES_GIVEN nullptr, nullptr
#endif

#if EIGHT && PROMOTE
#define SCALES_PASSED , scales
#else
#define SCALES_PASSED
#endif

enum { SCALED = 128 };  // terms, rows or columns of a block

// What a thread's sums are multiplied by: its sum i lies in its row i / 2 % 2 and in its column i % 2 of the eight columns i / 4.
struct Scales {
    const float *a, *b;
    int m, n, blocks;  // of k

    // Of A's row and of B's column, or of A's block of a row and of B's block of a column.
    __device__ __forceinline__ float of_row(int row, int block) const { return __ldg(a + (size_t)block * m + min(row, m - 1)); }
    __device__ __forceinline__ float of_column(int column, int block) const
    {
        return __ldg(b + (size_t)(min(column, n - 1) / SCALED) * blocks + block);
    }

    // Those of a block of k for a thread's sums, read while its products are under way. WIDTH columns from a multiple of it on are in
    // two of B's blocks at the most.
    struct OfBlock {
#if SCALES == 3 && SWAP
        float left, held[(SUMS + 31) / 32 * 2];  // of each 64 columns a lane has two
#elif SCALES == 3
        float one[2], other[2];
#endif
    };
    __device__ __forceinline__ OfBlock of_block(int row, int column, int block) const
    {
        OfBlock of;
        const int lane = threadIdx.x % 32;
        (void)lane, (void)row, (void)column, (void)block;
#if SCALES == 3 && SWAP
        of.left = of_column(row, block);  // 64 rows are in one block
#pragma unroll
        for (int i = 0; i < (SUMS + 31) / 32 * 2; ++i) of.held[i] = of_row(column + i / 2 * 64 + lane * 2 + i % 2, block);
#elif SCALES == 3
        row += threadIdx.x / 32 % 4 * 16 + lane / 4;
        const float first = of_column(column, block);
        const float second = SCALED % (2 * SUMS) ? of_column(column - column % SCALED + SCALED, block) : first;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float own = of_row(row + h * 8, block);
            of.one[h] = own * first, of.other[h] = own * second;
        }
#endif
        return of;
    }

    // Adds the products of a block of k, whose first column is `column`.
    __device__ __forceinline__ void add(float (&sum)[SUMS], const float (&part)[SUMS], const OfBlock& of, int column) const
    {
        (void)of, (void)column;
#if SCALES == 3 && SWAP
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            if (i % 4 > 1) continue;
            const float both = of.left * __shfl_sync(~0u, of.held[i / 32 * 2 + i % 2], i / 4 % 8 * 4 + threadIdx.x % 4);
            sum[i] += part[i] * both, sum[i + 2] += part[i + 2] * both;
        }
#else
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
#if SCALES == 3
            const bool beyond = SCALED % (2 * SUMS) && i / 4 * 8 >= SCALED - column % SCALED;
            sum[i] += part[i] * (beyond ? of.other[i / 2 % 2] : of.one[i / 2 % 2]);
#else
            sum[i] += part[i];
#endif
        }
#endif
    }

    // Multiplies the total of a warpgroup's 64 rows from `row` on and columns from `column` on.
    __device__ __forceinline__ void multiply(float (&sum)[SUMS], int row, int column) const
    {
        (void)row, (void)column;
#if SCALES == 1
        const float both = __ldg(a) * __ldg(b);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[i] *= both;
#elif SCALES == 2
        const float *left = SWAP ? b : a, *right = SWAP ? a : b;
        const int lane = threadIdx.x % 32, height = SWAP ? n : m, width = SWAP ? m : n;
        row += threadIdx.x / 32 % 4 * 16 + lane / 4, column += lane % 4 * 2;
        const float own[2] = {__ldg(left + min(row, height - 1)), __ldg(left + min(row + 8, height - 1))};
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (i % 4 < 2) {
                const float other = __ldg(right + min(column + i / 4 * 8 + i % 2, width - 1));
                sum[i] *= own[0] * other, sum[i + 2] *= own[1] * other;
            }
#endif
    }
};
