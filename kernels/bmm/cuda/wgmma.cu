// bmm, wgmma: tensor cores of sm_90 fed by tensor maps, in 16 or 8 bits, sums in FP32.
//
// Idea     wgmma_tiles.cuh (of grouped) has the products. Both maps have the batch as their third dimension, so that boxes bring zeros
//          from beyond a matrix, and wgmma reads either dimension of a 16-bit operand as the contiguous one. Blocks that stay take the
//          tiles of one product after the other.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense; of A (ONE_A) or B (ONE_B) maybe one
//          matrix for all. Stored rows of A and B are multiples of 16 bytes. Scales of 8 bits are grouped's, for batch * m rows.
// Source   own work, after wgmma_tma of gemm.
// Letters  as in wgmma_tiles.cuh
//          BLOCKS       that stay; 0: a block for each tile
//          GROUP ORDER  how blocks walk the tiles of a product (tile_order.cuh)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
bmm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_c,
    Result* __restrict__ c, SCALES_TAKEN int batch, int m, int n, int k)
{
    const int down = (m - 1) / BM + 1, columns = (n - 1) / BN + 1, each = down * columns;
    multiply_tiles(
        map_a, map_b, c, n, k, batch * each,
        [&](int number) -> Tile {
            const Cell cell = cell_at(number % each, down, columns);
            const int matrix = number / each, row = cell.row * BM;
            return {ONE_B ? 0 : matrix, matrix * m + row, matrix * m + min(row + BM, m), cell.column * BN};
        },
        [&](unsigned to, const Tile& tile, int term, unsigned barrier) {
            const int matrix = tile.first / m, row = tile.first - matrix * m, of_a = ONE_A ? 0 : matrix;
            if (!A_ALONG_M) load_box(to, map_a, term, row, of_a, barrier);
#pragma unroll
            for (int box = 0; box < (A_ALONG_M ? BM / 64 : 0); ++box)
                load_box(to + box * BOX_BYTES, map_a, row + box * 64, term, of_a, barrier);
        },
        [&](int column, int row, unsigned from) { store_box(map_c, column, row % m, row / m, from); },
        [&](const Tile& tile) { return scales_of_matrix(SCALES_GIVEN, tile.group, batch * m, n, k); });
}
