// grouped, wgmma: tensor cores of sm_90 fed by tensor maps, in 16 bits, sums in FP32.
//
// Idea     What gemm's wgmma_tma does for one product. A box of A begins at a row of its group, of which rows behind the group's last
//          are computed and not stored; B's map has the groups as its third dimension. Blocks stay, and take tiles in turn: each finds
//          its group from the offsets (groups.cuh), while the products of the tile before are under way.
// Memory   STAGES places of 64 terms of both tiles, swizzled by 128 bytes.
// Edges    Boxes bring zeros from beyond the edges; what lies there, or is another group's, is not stored.
// Layout   a: rows x k, b: groups of k x n or n x k, c: rows x n, dense, offsets: where groups end. Rows of a and b are multiples of 16
//          bytes.
// Source   own work, after wgmma_tma of gemm.
// Letters  BM BN        tile of C; CONSUMERS warpgroups share its rows
//          STAGES       places in shared memory
//          BLOCKS       that stay; 0: a block for each tile
//          GROUP ORDER  how blocks walk the tiles (tile_order.cuh)

constexpr int TERMS = 64, ROW_BYTES = 128, BOX_BYTES = TERMS * ROW_BYTES;
constexpr int ROWS = BM / 64 / CONSUMERS, THREADS = 128 * (CONSUMERS + 1);
constexpr int A_BYTES = BM * ROW_BYTES, SLOT = A_BYTES + BN * ROW_BYTES;
constexpr int GIVEN = CONSUMERS == 2 ? 232 : CONSUMERS == 3 ? 160 : 0;  // registers of a consumer's thread
constexpr int KEPT = 65536 / THREADS / 8 * 8 * (CONSUMERS + 1) - CONSUMERS * GIVEN;

__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}

// Where something lies in the ring of places; it flips a phase each time round.
struct Place {
    unsigned at = 0, phase = 0;
    __device__ __forceinline__ void step()
    {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

struct Tile {
    Rows rows;
    int column;
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const int* __restrict__ offsets,
        unsigned short* __restrict__ c, int rows, int n, int k, int groups)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
    const unsigned slots = (shared_address(memory) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        prefetch_map(map_a);
        prefetch_map(map_b);
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared_address(full + s), 1);
            make_barrier(shared_address(empty + s), 4 * CONSUMERS);
        }
        publish_barriers();
    }
    __syncthreads();

    const int numbers = rows / BM + groups, columns = (n - 1) / BN + 1, tiles = numbers * columns, chunks = (k - 1) / TERMS + 1;
    auto tile_at = [&](int tile) -> Tile {
        const Cell cell = cell_at(min(tile, tiles - 1), numbers, columns);
        return {rows_of_tile<BM>(offsets, groups, rows, cell.row), cell.column * BN};
    };
    const int lane = threadIdx.x % 32;
    Place place;
    if (threadIdx.x < 128) {
        if (GIVEN > 0) give_registers<KEPT>();
        if (threadIdx.x >= 32) return;
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            const Tile tile = tile_at(number);
            if (lane != 0 || tile.rows.first >= tile.rows.end) continue;
            for (int chunk = 0; chunk < chunks; ++chunk, place.step()) {
                const unsigned barrier = shared_address(full + place.at), to = slots + place.at * SLOT;
                await_phase(shared_address(empty + place.at), place.phase ^ 1);
                arrive_expecting(barrier, SLOT);
                load_box(to, map_a, chunk * TERMS, tile.rows.first, barrier);
                if (!B_ALONG_N) load_box(to + A_BYTES, map_b, chunk * TERMS, tile.column, tile.rows.group, barrier);
#pragma unroll
                for (int box = 0; box < (B_ALONG_N ? BN / 64 : 0); ++box)
                    load_box(to + A_BYTES + box * BOX_BYTES, map_b, tile.column + box * 64, chunk * TERMS, tile.rows.group, barrier);
            }
        }
        return;
    }

    if (GIVEN > 0) take_registers<GIVEN>();
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
    auto release = [&](unsigned at) {
        if (lane == 0) arrive(shared_address(empty + at));
    };
    Tile tile = tile_at(blockIdx.x), next = tile;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x, tile = next) {
        if (tile.rows.first >= tile.rows.end) {
            next = tile_at(number + gridDim.x);
            continue;
        }
        float sum[ROWS][SUMS];
        unsigned before = 0;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            await_phase(shared_address(full + place.at), place.phase);
            const unsigned at_a = slots + place.at * SLOT + group * ROWS * BOX_BYTES, at_b = slots + place.at * SLOT + A_BYTES;
            const unsigned long long a = along_terms(at_a), b = B_ALONG_N ? across_terms<64>(at_b, TERMS) : along_terms(at_b);
            begin_products();
#pragma unroll
            for (int step = 0; step < TERMS / 16; ++step)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    multiply_async(sum[r], a + step * 2 + r * (BOX_BYTES / 16), b + step * (B_ALONG_N ? 128 : 2), step || chunk);
            close_products();
            if (chunk > 0) {
                await_products<1>();
                release(before);
            }
            before = place.at;
            place.step();
        }
        next = tile_at(number + gridDim.x);
        await_products<0>();
        release(before);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            keep_in_place(sum[r]);
            const int row = tile.rows.first + (group * ROWS + r) * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (row + h * 8 >= tile.rows.end) continue;
#pragma unroll
                for (int j = 0; j < BN / 8; ++j)
                    store_pair(c, row + h * 8, tile.column + j * 8 + lane % 4 * 2, n, sum[r][4 * j + 2 * h], sum[r][4 * j + 2 * h + 1]);
            }
        }
    }
}
