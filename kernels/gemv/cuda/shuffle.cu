// gemv, shuffle: a warp keeps 32 elements of x in its registers, one per lane, and passes them around.
//
// Idea     Stored by columns: a lane has ROWS rows, and gets each element of x from the lane that holds it by a shuffle.
//          Stored by rows: the lane's element of x multiplies the lane's column of ROWS rows, and shuffles add the lanes' sums.
//          Either way x costs one load per 32 * ROWS products, and no shared memory.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense.
// Source   public GEMV ladders (column-major A, one row a lane); the rest and the code are ours.
// Letters  m n      y has m elements, n products are summed into each
//          BLOCK    threads of a block
//          ROWS     rows of a lane (A by columns) or of a warp (A by rows)

constexpr unsigned ALL = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n)
{
    const unsigned warp = (blockIdx.x * BLOCK + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    // Rows of this lane lie 32 apart where lanes have rows of their own, else they follow each other.
    const unsigned first = A_TRANSPOSED ? warp * 32 * ROWS + lane : warp * ROWS;
    constexpr unsigned APART = A_TRANSPOSED ? 32 : 1;
    const SCALAR* from[ROWS];
    SCALAR sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const size_t row = min(first + r * APART, (unsigned)m - 1);
        from[r] = a + (A_TRANSPOSED ? row : row * n);
    }

    for (int j = 0; j < n; j += 32) {
        const SCALAR held = j + lane < n ? x[j + lane] : 0;
        if (!A_TRANSPOSED) {
            if (j + lane < n) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum[r] += from[r][j + lane] * held;
            }
        } else if (j + 32 <= n) {
#pragma unroll
            for (int s = 0; s < 32; ++s) {
                const SCALAR factor = __shfl_sync(ALL, held, s);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum[r] += from[r][(size_t)(j + s) * m] * factor;
            }
        } else {
            for (int s = 0; s < n - j; ++s) {
                const SCALAR factor = __shfl_sync(ALL, held, s);
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum[r] += from[r][(size_t)(j + s) * m] * factor;
            }
        }
    }

#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (!A_TRANSPOSED) {
#pragma unroll
            for (int away = 16; away > 0; away /= 2) sum[r] += __shfl_xor_sync(ALL, sum[r], away);
        }
        if (first + r * APART < (unsigned)m && (A_TRANSPOSED || lane == r % 32)) y[first + r * APART] = sum[r];
    }
}
