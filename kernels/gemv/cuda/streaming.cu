// gemv, streaming: A is read once, in wide pieces, with enough loads in flight to keep memory busy.
//
// Idea     The only limit is how fast A is read. Full speed needs tens of kilobytes in flight per multiprocessor, so every
//          thread requests several pieces of VECTOR elements before it uses the first.
//          Stored by rows: SPAN threads side by side along ROWS rows at once; an element of x serves all ROWS of them.
//          Stored by columns: SPAN threads side by side down a column, with VECTOR rows each; the other threads of the
//          block take other columns, and their sums are added in shared memory. No atomics, so every run gives the same sums.
// Layout   A is m x n row-major, or stored n x m when A_TRANSPOSED (A column-major). Dense; a stored line is a
//          multiple of VECTOR long, arrays aligned to VECTOR elements.
// Source   own work.
// Letters  m n      y has m elements, n products are summed into each
//          BLOCK    threads of a block
//          SPAN     threads side by side along a stored line of A
//          ROWS     stored lines that a thread works on together
//          UNROLL   steps along those lines that a thread works on together (A by rows)
//          ACCESS_BYTES  of one load; VECTOR elements

constexpr int VECTOR = ACCESS_BYTES / sizeof(SCALAR);

union Pack {
    Access<ACCESS_BYTES> raw;
    SCALAR element[VECTOR];
};

// What is read once need not stay in a cache.
__device__ __forceinline__ void load_once(Pack& pack, const SCALAR* from)
{
    pack.raw = __ldcs((const Access<ACCESS_BYTES>*)from);
}

__device__ __forceinline__ void load_kept(Pack& pack, const SCALAR* from)
{
    pack.raw = __ldg((const Access<ACCESS_BYTES>*)from);
}

constexpr int GROUPS = BLOCK / SPAN;
constexpr int WARPS = BLOCK / 32;
constexpr int LANES = SPAN < 32 ? SPAN : 32;

template <int STEPS>
__device__ __forceinline__ void add_steps(SCALAR (&sum)[ROWS], const SCALAR* const (&line)[ROWS], const SCALAR* x, size_t pack)
{
    Pack of_a[STEPS][ROWS], of_x[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const size_t at = (pack + step * SPAN) * VECTOR;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_once(of_a[step][r], line[r] + at);
        load_kept(of_x[step], x + at);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) sum[r] += of_a[step][r].element[e] * of_x[step].element[e];
}

__device__ void along_rows(const SCALAR* a, const SCALAR* x, SCALAR* y, unsigned m, unsigned n)
{
    const unsigned group = threadIdx.x / SPAN, along = threadIdx.x % SPAN;
    const unsigned first = (blockIdx.x * GROUPS + group) * ROWS, packs = n / VECTOR;
    const SCALAR* line[ROWS];
    SCALAR sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) line[r] = a + (size_t)min(first + r, m - 1) * n;

    unsigned pack = along;
    for (; pack + (UNROLL - 1) * SPAN < packs; pack += UNROLL * SPAN) add_steps<UNROLL>(sum, line, x, pack);
    for (; pack < packs; pack += SPAN) add_steps<1>(sum, line, x, pack);

    __shared__ SCALAR of_warp[WARPS][ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int away = LANES / 2; away > 0; away /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], away);
        if (SPAN > 32 && threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][r] = sum[r];
    }
    if (SPAN > 32) __syncthreads();
    if (along != 0) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        for (int warp = 1; warp < SPAN / 32; ++warp) sum[r] += of_warp[threadIdx.x / 32 + warp][r];
        if (first + r < m) y[first + r] = sum[r];
    }
}

template <int COLUMNS>
__device__ __forceinline__ void add_columns(SCALAR (&sum)[VECTOR], const SCALAR* from, const SCALAR* x, unsigned j, size_t m)
{
    Pack of_a[COLUMNS];
    SCALAR of_x[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        load_once(of_a[c], from + (j + c * GROUPS) * m);
        of_x[c] = __ldg(x + j + c * GROUPS);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) sum[e] += of_a[c].element[e] * of_x[c];
}

__device__ void down_columns(const SCALAR* a, const SCALAR* x, SCALAR* y, unsigned m, unsigned n)
{
    constexpr unsigned HEIGHT = SPAN * VECTOR;
    const unsigned group = threadIdx.x / SPAN, along = threadIdx.x % SPAN;
    const unsigned first = blockIdx.x * HEIGHT;
    const SCALAR* from = a + min(first + along * VECTOR, m - VECTOR);
    SCALAR sum[VECTOR] = {};

    unsigned j = group;
    for (; j + (ROWS - 1) * GROUPS < n; j += ROWS * GROUPS) add_columns<ROWS>(sum, from, x, j, m);
    for (; j < n; j += GROUPS) add_columns<1>(sum, from, x, j, m);

    __shared__ SCALAR of_group[GROUPS][HEIGHT];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) of_group[group][along * VECTOR + e] = sum[e];
    __syncthreads();
    for (unsigned row = threadIdx.x; row < HEIGHT && first + row < m; row += BLOCK) {
        SCALAR total = of_group[0][row];
        for (int g = 1; g < GROUPS; ++g) total += of_group[g][row];
        y[first + row] = total;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
gemv(const SCALAR* __restrict__ a, const SCALAR* __restrict__ x, SCALAR* __restrict__ y, int m, int n)
{
#if A_TRANSPOSED
    down_columns(a, x, y, m, n);
#else
    along_rows(a, x, y, m, n);
#endif
}
