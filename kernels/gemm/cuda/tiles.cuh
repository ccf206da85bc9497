// Says which thread computes and writes which piece of C, for kernels that keep a TM x TN piece in every thread's registers.
//
// Comes after epilogue.cuh, copies.cuh and lanes.cuh. A warp has LANES_M lanes down C and LANES_N along its rows. A thread's rows and
// columns come in groups of GROUPED neighbours (one 128-bit access), LANES_M * GROUPED rows or LANES_N * GROUPED columns
// apart.

constexpr int LANES_N = 32 / LANES_M;
constexpr int WARPS_N = BN / (LANES_N * TN);
constexpr int THREADS = (BM / TM) * (BN / TN);

// Which tile of C the block computes: SWATH rows of tiles are walked together, column by column, so that blocks that run
// at the same time share operands in L2.
__device__ void place_tile(unsigned number, unsigned m, unsigned n, unsigned& first_row, unsigned& first_column)
{
    const unsigned tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const unsigned swath = number / (SWATH * tiles_n), inside_swath = number % (SWATH * tiles_n);
    const unsigned height = min((unsigned)SWATH, tiles_m - swath * SWATH);
    first_row = (swath * SWATH + inside_swath % height) * BM;
    first_column = inside_swath / height * BN;
}

template <int WIDTH, bool INSIDE>
__device__ void write_packs(const SCALAR (&sum)[TM][TN], SCALAR* c, unsigned row, unsigned column, unsigned m,
                            unsigned n EPILOGUE_PARAMETER)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const unsigned at_row = row + i / GROUPED * GROUPED * LANES_M + i % GROUPED;
        if (!INSIDE && at_row >= m) continue;
        SCALAR* line = c + (size_t)at_row * n;
#pragma unroll
        for (int j = 0; j < TN; j += WIDTH) {
            const unsigned at_column = column + j / GROUPED * GROUPED * LANES_N + j % GROUPED;
            if (!INSIDE && at_column >= n) continue;
            Pack<WIDTH> part;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) part.element[e] = EPILOGUE_RESULT(sum[i][j + e], at_row, at_column + e, n);
            *(Pack<WIDTH>*)(line + at_column) = part;
        }
    }
}

// Passes sums on through an operation that changes nothing and that the compiler cannot see through (`zero` is 0, known
// at run time alone), before they are stored 128 bits at a time. Else each four of them would have to lie in four
// consecutive registers all along, on the side of the register file where the elements of B lie that they meet, and a
// product would read both from that side. docs/log/kernels/gemm-warp-tiled.md gives the cost.
__device__ __forceinline__ void untie(SCALAR (&sum)[TM][TN], int zero)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            int* words = (int*)&sum[i][j];
#pragma unroll
            for (int word = 0; word < (int)sizeof(SCALAR) / 4; ++word) words[word] ^= zero;
        }
}

// Writes a thread's piece of the tile at (first_row, first_column); wide stores where rows of C are aligned to them.
__device__ void write_tile(const SCALAR (&sum)[TM][TN], SCALAR* c, unsigned first_row, unsigned first_column,
                           unsigned thread_row, unsigned thread_column, unsigned m, unsigned n EPILOGUE_PARAMETER)
{
    const unsigned row = first_row + thread_row, column = first_column + thread_column;
    if (n % GROUPED != 0)
        write_packs<1, false>(sum, c, row, column, m, n EPILOGUE_PASSED);
    else if (first_row + BM <= m && first_column + BN <= n)
        write_packs<GROUPED, true>(sum, c, row, column, m, n EPILOGUE_PASSED);
    else
        write_packs<GROUPED, false>(sum, c, row, column, m, n EPILOGUE_PASSED);
}

