// Moves an operand from global memory through shared memory to registers, by asynchronous copies. thin, shallow and
// small share it.

// One operand: tiles of SPAN x BK, of which a thread reads COUNT rows (columns of op(B)); LANES lanes of a warp read
// different ones. GROUP threads copy a tile together, VECTOR elements at a time.
// ALONG_K: neighbours in memory are neighbours in k. Either they stay so in shared memory and KS steps of k are read at
// once; then a row is 16 bytes longer than BK, and rows that lanes read together are side by side, so that they differ
// in banks. Or they are TURNED on their way: copied one by one.
template <int SPAN, int COUNT, int LANES, bool ALONG_K, bool TURNED, int VECTOR, int GROUP, int KS>
struct AsyncOperand {
    static constexpr bool BY_ROWS = ALONG_K && !TURNED;  // how a tile lies in shared memory
    static constexpr int WIDTH = ALONG_K && TURNED ? 1 : VECTOR;
    static constexpr int LINE = BY_ROWS ? BK + GROUPED : SPAN + (ALONG_K ? GROUPED : 0);
    static constexpr int SIZE = LINE * (BY_ROWS ? SPAN : BK);
    static constexpr int PER_LINE = (ALONG_K ? BK : SPAN) / WIDTH;
    static constexpr int COPIES = SPAN * BK / WIDTH;
    static constexpr int PASSES = (COPIES + GROUP - 1) / GROUP;
    static constexpr int PACKED = COUNT < GROUPED ? COUNT : GROUPED;  // rows of a thread that are neighbours
    static constexpr int PART = LANES * COUNT;                       // rows of a warp

    const SCALAR* from;
    size_t step;
    unsigned offset[PASSES];

    static __device__ unsigned copy(int pass) { return threadIdx.x % GROUP + pass * GROUP; }
    static __device__ bool has(int pass) { return (pass + 1) * GROUP <= COPIES || copy(pass) < COPIES; }
    static __device__ unsigned k_of(int pass) { return ALONG_K ? copy(pass) % PER_LINE * WIDTH : copy(pass) / PER_LINE; }
    static __device__ unsigned span_of(int pass) { return ALONG_K ? copy(pass) / PER_LINE : copy(pass) % PER_LINE * WIDTH; }

    // Where an element lies in the tile.
    static __device__ unsigned in_tile(unsigned span, unsigned k)
    {
        if constexpr (!BY_ROWS) return k * LINE + span;
        const unsigned inside = span % PART, i = inside / (LANES * PACKED) * PACKED + inside % PACKED;
        return (span - inside + i * LANES + inside / PACKED % LANES) * LINE + k;
    }

    // Tiles begin at row `first` of `count`, at `k_first` of `depth` and then every `k_step`.
    __device__ void set_tile(const SCALAR* operand, unsigned first, unsigned count, unsigned k_first, unsigned k_step, unsigned depth)
    {
        const size_t line = ALONG_K ? depth : count;
        from = operand + (ALONG_K ? first * line + k_first : k_first * line + first);
        step = ALONG_K ? k_step : k_step * line;
        const unsigned last = count - (ALONG_K ? 1 : WIDTH) - first;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const unsigned at = min(span_of(pass), last), k = k_of(pass);
            offset[pass] = ALONG_K ? at * (unsigned)line + k : k * (unsigned)line + at;
        }
    }

    // Starts copying the next tile; elements from step `depth` of k on are zero.
    template <bool WHOLE>
    __device__ void start(SCALAR* tile, int depth)
    {
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            if (!has(pass)) continue;
            const bool valid = WHOLE || (int)k_of(pass) < depth;
            SCALAR* to = tile + in_tile(span_of(pass), k_of(pass));
            copy_async<WIDTH * sizeof(SCALAR)>(to, from + offset[pass], valid);
        }
        from += step;
    }

    // The first row of a lane of the warps that are number `warp` along this operand, and, from there, its row `i`.
    static __device__ int first_of(int warp, int lane) { return warp * PART + lane * PACKED; }
    static __device__ int place(int i) { return i / PACKED * PACKED * LANES + i % PACKED; }

    // Where that lane begins to read in a tile.
    static __device__ int reads_from(int warp, int lane) { return BY_ROWS ? (warp * PART + lane) * LINE : first_of(warp, lane); }

    // `tile` is where this lane begins to read.
    static __device__ void read(SCALAR (&part)[KS][COUNT], const SCALAR* tile, int k)
    {
        if constexpr (BY_ROWS) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const Pack<GROUPED> pack = *(const Pack<GROUPED>*)(tile + i * LANES * LINE + k);
#pragma unroll
                for (int e = 0; e < KS; ++e) part[e][i] = pack.element[e];
            }
        } else {
#pragma unroll
            for (int e = 0; e < KS; ++e)
#pragma unroll
                for (int i = 0; i < COUNT; i += PACKED) {
                    const Pack<PACKED> pack = *(const Pack<PACKED>*)(tile + (k + e) * LINE + place(i));
#pragma unroll
                    for (int x = 0; x < PACKED; ++x) part[e][i + x] = pack.element[x];
                }
        }
    }
};

// Multiplies a tile of each operand, from where this lane begins to read them. SNAKE: every second row of sums backward,
// so that what the last product of a row read is at hand for the first of the next.
template <class Rows, class Columns, int KS, bool SNAKE, int ROWS, int COLUMNS>
__device__ __forceinline__ void multiply(SCALAR (&sum)[ROWS][COLUMNS], const SCALAR* rows, const SCALAR* columns)
{
    // Steps of k that are written out: more of them would only fill the instruction cache.
    constexpr int MOST = 2048 / (ROWS * COLUMNS * KS) > 0 ? 2048 / (ROWS * COLUMNS * KS) : 1;
    constexpr int WRITTEN_OUT = MOST < BK / KS ? MOST : BK / KS;
#pragma unroll WRITTEN_OUT
    for (int k = 0; k < BK; k += KS) {
        SCALAR of_row[KS][ROWS], of_column[KS][COLUMNS];
        Columns::read(of_column, columns, k);
        Rows::read(of_row, rows, k);
#pragma unroll
        for (int e = 0; e < KS; ++e)
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int step = 0; step < COLUMNS; ++step) {
                    const int j = SNAKE && i % 2 == 1 ? COLUMNS - 1 - step : step;
                    sum[i][j] += of_row[e][i] * of_column[e][j];
                }
    }
}

// Leaves a thread's sums in shared memory, where a row of C has PITCH elements, or a column where TURNED.
template <class Rows, class Columns, int PITCH, bool TURNED, int ROWS, int COLUMNS>
__device__ void spill_partials(SCALAR* sums, const SCALAR (&sum)[ROWS][COLUMNS], int row, int column)
{
    constexpr int WIDTH = TURNED ? 1 : Columns::PACKED;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += WIDTH) {
            const int at_row = row + Rows::place(i), at_column = column + Columns::place(j);
            Pack<WIDTH> pack;
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) pack.element[e] = sum[i][j + e];
            *(Pack<WIDTH>*)(sums + (TURNED ? at_column * PITCH + at_row : at_row * PITCH + at_column)) = pack;
        }
}
