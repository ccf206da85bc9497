// bmm, wgmma_turns: tensor cores of sm_90 fed by tensor maps, in 16 bits; two warpgroups take tiles in turn.
//
// Idea     What wgmma does, but a tile is one warpgroup's: while it stores, the other one multiplies the next tile. That pays where k is
//          short, and tiles are stored often. One warp fetches for both, a tile after the other.
// Turns    A turn passes with the last place of a tile: its operands are there, so that the next places in the ring are those of the
//          next round. A phase tells two rounds in a row apart, no more.
// Layout   as in wgmma
// Source   own work; CUTLASS calls it ping-pong.
// Letters  as in wgmma; TURNS warpgroups, each with all rows of its tile (CONSUMERS 1)

constexpr int ALL_THREADS = 128 * (TURNS + 1), TAKEN = 232, LEFT = 65536 / ALL_THREADS / 8 * 8 * (TURNS + 1) - TURNS * TAKEN;

// So many places on.
__device__ __forceinline__ void skip(Place& place, unsigned count)
{
    const unsigned to = place.at + count;
    place.phase ^= to / STAGES & 1;
    place.at = to % STAGES;
}

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
bmm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
    Result* __restrict__ c, int batch, int m, int n, int k)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES], turns[TURNS];
    const unsigned slots = (shared_address(memory) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        prefetch_map(map_a);
        prefetch_map(map_b);
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared_address(full + s), 1);
            make_barrier(shared_address(empty + s), 4);
        }
        for (int turn = 0; turn < TURNS; ++turn) make_barrier(shared_address(turns + turn), 4);
        publish_barriers();
    }
    __syncthreads();

    const int down = (m - 1) / BM + 1, columns = (n - 1) / BN + 1, each = down * columns, tiles = batch * each;
    const int lane = threadIdx.x % 32, chunks = (k - 1) / TERMS + 1;
    Place place;
    if (threadIdx.x < 128) {
        give_registers<LEFT>();
        if (threadIdx.x > 0) return;
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const Cell cell = cell_at(number % each, down, columns);
            const int matrix = number / each, row = cell.row * BM, column = cell.column * BN;
            const int of_a = ONE_A ? 0 : matrix, of_b = ONE_B ? 0 : matrix;
            for (int term = 0; term < k; term += TERMS, place.step()) {
                const unsigned barrier = shared_address(full + place.at), to = slots + place.at * SLOT;
                await_phase(shared_address(empty + place.at), place.phase ^ 1);
                arrive_expecting(barrier, SLOT);
                if (!A_ALONG_M) load_box(to, map_a, term, row, of_a, barrier);
                if (!B_ALONG_N) load_box(to + A_BYTES, map_b, term, column, of_b, barrier);
#pragma unroll
                for (int box = 0; box < (A_ALONG_M ? BM / 64 : 0); ++box)
                    load_box(to + box * BOX_BYTES, map_a, row + box * 64, term, of_a, barrier);
#pragma unroll
                for (int box = 0; box < (B_ALONG_N ? BN / 64 : 0); ++box)
                    load_box(to + A_BYTES + box * BOX_BYTES, map_b, column + box * 64, term, of_b, barrier);
            }
        }
        return;
    }

    take_registers<TAKEN>();
    const int turn = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
    const unsigned sheets = slots + STAGES * SLOT + (threadIdx.x / 32 - 4) * 2 * SHEET;
    unsigned sheet = 0, round = turn == 0;
    skip(place, turn * chunks);
    for (int number = blockIdx.x + turn * gridDim.x; number < tiles; number += TURNS * gridDim.x) {
        const Cell cell = cell_at(number % each, down, columns);
        const int matrix = number / each, row = matrix * m + cell.row * BM;
        const Tile tile = {0, row, min(row + BM, (matrix + 1) * m), cell.column * BN};
        float sum[ROWS][SUMS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[r][i] = 0.0f;
        unsigned before = 0;
        await_phase(shared_address(turns + turn), round);
        round ^= 1;
        for (int chunk = 0; chunk < chunks; ++chunk, place.step()) {
            await_phase(shared_address(full + place.at), place.phase);
            multiply_place(sum, slots + place.at * SLOT, 0, chunk == 0);
            if (chunk > 0) {
                await_products<1>();
                if (lane == 0) arrive(shared_address(empty + before));
            }
            before = place.at;
        }
        if (lane == 0) arrive(shared_address(turns + (turn + 1) % TURNS));
        await_products<0>();
        if (lane == 0) arrive(shared_address(empty + before));
        skip(place, (TURNS - 1) * chunks);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) keep_in_place(sum[r]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            store_rows(sum[r], c, tile, row + r * 64, n, sheets, sheet,
                       [&](int column, int line, unsigned from) { store_box(map_c, column, line % m, line / m, from); });
    }
#if STORE == STORE_tma
    if (lane == 0) await_stores_read<0>();  // shared memory is the block's until then
#endif
}
