// bmm, small_matrices: a block takes MATRICES products at once, each with threads of its own.
//
// Idea     A matrix of 32 x 32 is too small for a block, and a launch for each is too much. Tiles of all MATRICES products pass
//          through shared memory together, so that many reads are in flight; a thread keeps TM x TN sums in registers.
// Edges    Elements outside a matrix are read as zero, and not stored. Past the batch the last product is computed again.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense. Rows of A and B are divisible by VECTOR.
//          In shared memory terms are outermost, [BK][BM + 1] and [BK][BN + 1]: a row is longer by one against bank conflicts.
// Source   own work, after half_tiled of gemm.
// Letters  BM BN BK   tile of a product, and terms of a step
//          TM TN      elements of a thread: rows and columns that lie a tile's fraction apart
//          MATRICES   products of a block
//          VECTOR     elements of one global access

constexpr int DOWN = BM / TM, ACROSS = BN / TN, GROUP = DOWN * ACROSS, THREADS = GROUP * MATRICES;

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

extern "C" __global__ void __launch_bounds__(THREADS)
bmm(const STORED* __restrict__ a, const STORED* __restrict__ b, STORED* __restrict__ c, int batch, int m, int n, int k)
{
    __shared__ SCALAR left[MATRICES][BK][BM + 1], right[MATRICES][BK][BN + 1];
    const int tiles_n = (n - 1) / BN + 1, tiles = ((m - 1) / BM + 1) * tiles_n, tile = blockIdx.x % tiles;
    const int row = tile / tiles_n * BM, column = tile % tiles_n * BN;
    const int own = threadIdx.x / GROUP, number = blockIdx.x / tiles * MATRICES + own;
    const size_t matrix = min(number, batch - 1);
    const int y = threadIdx.x % GROUP / ACROSS, x = threadIdx.x % ACROSS;
    a += matrix * m * k;
    b += matrix * k * n;
    c += matrix * m * n;

    SCALAR sum[TM][TN] = {};
    for (int term = 0; term < k; term += BK) {
        put<BM, !A_TRANSPOSED>(left[own], a, row, m, term, k);
        put<BN, B_TRANSPOSED>(right[own], b, column, n, term, k);
        __syncthreads();
#pragma unroll
        for (int t = 0; t < BK; ++t) {
            SCALAR down[TM], across[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) down[i] = left[own][t][i * DOWN + y];
#pragma unroll
            for (int j = 0; j < TN; ++j) across[j] = right[own][t][j * ACROSS + x];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += down[i] * across[j];
        }
        __syncthreads();
    }

    if (number >= batch) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const int to_row = row + i * DOWN + y, to_column = column + j * ACROSS + x;
            if (to_row < m && to_column < n) c[(size_t)to_row * n + to_column] = stored(sum[i][j]);
        }
}
