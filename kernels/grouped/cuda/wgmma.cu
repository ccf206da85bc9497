// grouped, wgmma: tensor cores of sm_90 fed by tensor maps, in 16 or 8 bits, sums in FP32.
//
// Idea     wgmma_tiles.cuh has the products. A box of A begins at a row of its group, of which rows behind the group's last are computed
//          and not stored; B's map has the groups as its third dimension. Each block finds its group from the offsets (groups.cuh).
// Layout   a: rows x k, b: groups of k x n or n x k, c: rows x n, dense, offsets: where groups end. Rows of a and b are multiples of 16
//          bytes. Scales of 8 bits: of A as gemm's, of B one for each group, or each group's lines or blocks.
// Source   own work, after wgmma_tma of gemm.
// Letters  as in wgmma_tiles.cuh
//          BLOCKS       that stay; 0: a block for each tile
//          GROUP ORDER  how blocks walk the tiles (tile_order.cuh)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
grouped(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
        const int* __restrict__ offsets,
        Result* __restrict__ c, SCALES_TAKEN int rows, int n, int k, int groups)
{
    const int numbers = rows / BM + groups, columns = (n - 1) / BN + 1;
    multiply_tiles(
        map_a, map_b, c, n, k, numbers * columns,
        [&](int number) -> Tile {
            const Cell cell = cell_at(number, numbers, columns);
            const Rows own = rows_of_tile<BM>(offsets, groups, rows, cell.row);
            return {own.group, own.first, min(own.end, own.first + BM), cell.column * BN};
        },
        [&](unsigned to, const Tile& tile, int term, unsigned barrier) { load_box(to, map_a, term, tile.first, barrier); },
        [&](int column, int row, unsigned from) { store_box(map_c, column, row, from); },
        [&](const Tile& tile) { return scales_of_matrix(SCALES_GIVEN, tile.group, rows, n, k); });
}
