// A thread's TM x TN sums of a tile of a product: both operands pass through shared memory, BK terms at a time.
//
// Comes after stored.cuh. GROUP threads, neighbours in a block, have a tile; threads of other tiles take part in the barriers.
// Elements outside an operand are read as zero, and not stored. In shared memory terms are outermost, [BK][BM + 1] and [BK][BN + 1]:
// a row is longer by one against bank conflicts. A thread's rows and columns lie a tile's fraction apart.

constexpr int DOWN = BM / TM, ACROSS = BN / TN, GROUP = DOWN * ACROSS;

// Puts LINES x BK elements at [term][line]; neighbouring threads read neighbouring pieces.
template <int LINES, bool ALONG_TERMS>
__device__ __forceinline__ void put(SCALAR (&tile)[BK][LINES + 1], const STORED* __restrict__ from, int first_line, int lines,
                                    int first_term, int k)
{
    constexpr int PER_ROW = (ALONG_TERMS ? BK : LINES) / VECTOR;
#pragma unroll 8
    for (int i = threadIdx.x % GROUP; i < LINES * BK / VECTOR; i += GROUP) {
        const int outer = i / PER_ROW, inner = i % PER_ROW * VECTOR;
        const int line = ALONG_TERMS ? outer : inner, term = ALONG_TERMS ? inner : outer;
        const int y = first_line + line, x = first_term + term;
        Piece<VECTOR> piece = {};
        if (y < lines && x < k) piece = read_piece<VECTOR>(from + (ALONG_TERMS ? (size_t)y * k + x : (size_t)x * lines + y));
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) tile[ALONG_TERMS ? term + e : term][ALONG_TERMS ? line : line + e] = used(piece.element[e]);
    }
}

// Sums of the tile at (row, column) of an m x n product.
__device__ __forceinline__ void sum_products(SCALAR (&sum)[TM][TN], SCALAR (&left)[BK][BM + 1], SCALAR (&right)[BK][BN + 1],
                                             const STORED* __restrict__ a, const STORED* __restrict__ b, int row, int column, int m,
                                             int n, int k)
{
    const int y = threadIdx.x % GROUP / ACROSS, x = threadIdx.x % ACROSS;
    for (int term = 0; term < k; term += BK) {
        put<BM, !A_TRANSPOSED>(left, a, row, m, term, k);
        put<BN, B_TRANSPOSED>(right, b, column, n, term, k);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < BK; ++t) {
            SCALAR down[TM], across[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) down[i] = left[t][i * DOWN + y];
#pragma unroll
            for (int j = 0; j < TN; ++j) across[j] = right[t][j * ACROSS + x];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += down[i] * across[j];
        }
        __syncthreads();
    }
}

__device__ __forceinline__ void store_sums(const SCALAR (&sum)[TM][TN], STORED* __restrict__ c, int row, int column, int m, int n)
{
    const int y = threadIdx.x % GROUP / ACROSS, x = threadIdx.x % ACROSS;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int to_row = row + i * DOWN + y, to_column = column + j * ACROSS + x;
            if (to_row < m && to_column < n) c[(size_t)to_row * n + to_column] = stored(sum[i][j]);
        }
}
