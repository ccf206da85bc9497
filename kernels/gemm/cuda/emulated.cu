// gemm, emulated: FP32 products from FP16 tensor cores. This is the product of operands that emulated_pack.cu has packed.
//
// Floor    Three FP16 products for one: 6 m n k operations at about 790 TFLOPS (what cuBLAS reaches on random FP16 numbers,
//          bound by power); 4.2 ms at 8192 x 8192 x 8192, where cuBLAS's SGEMM takes 21.5 ms.
// Idea     Elements are high + low parts: a b = high high + high low + low high, but for 2^-22. wgmma cuts its sums off at 25
//          bits, toward zero, so no chunk of CHUNK terms is summed in it for longer than that chunk: the sum is then
//          multiplied by the chunk's two factors and added in FP32 registers. While one warpgroup adds, another multiplies.
//          Low products come first. Where low parts are scaled up (rare), they are scaled down in registers before others
//          join them: each such step empties the tensor cores.
// Tile     A consumer warpgroup has 64 rows by WIDTH x PARTS columns: PARTS parts one after the other, so that the sums of
//          wgmma take registers for WIDTH columns only, while the operands in shared memory serve all.
// Memory   One producer thread fetches 32 terms of a tile by a bulk copy for each operand. In a cluster of two blocks, one
//          below the other, each fetches half of B's tile for both.
// Blocks   stay, and take tiles in turn: the next tile's operands are fetched while sums are stored. Swaths of GROUP tiles
//          keep what is read at the same time in L2. K may be split: the block that arrives last adds the shares up, in a
//          fixed order.
// Verdict  If the check of the packing kernel said so, nothing is done: the plain kernel, launched after this, computes.
// Edges    Rows past an edge are fetched as far as they are padded; what is beyond is stale, and not stored.
// Layout   C is m x n, row-major. Packed operands: emulated.cuh.
// Source   own work.
// Letters  CONSUMERS       warpgroups that multiply, 64 rows each
//          WIDTH PARTS     columns of a wgmma; how many of them a warpgroup's columns take
//          CHUNK           terms that share a scale, and are summed in wgmma
//          STAGES          places in shared memory for 32 terms of both tiles
//          CLUSTER         blocks that share B's tiles
//          GROUP ORDER     rows of tiles in a swath; whether each second swath goes backward (snake)
//          TURNS           free, or taken: consumers issue their products in turn; early: the turn passes before the last
//          PROMOTION       how sums of chunks are added: plain, or compensated, so that the number of chunks adds no error
//          SPLIT_K         blocks that share K
//          GIVEN           registers of a consumer's thread; 0: as many as the producer's
//          BLOCKS          blocks that stay, one for each multiprocessor; BLOCKS_PER_SM of them pack
//          PLAIN           how the plain kernel behind reads: four elements at a time (aligned), or one (any)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
gemm(const unsigned char* __restrict__ packed_a, const unsigned char* __restrict__ packed_b, EPILOGUE_OPERANDS float* __restrict__ c,
     int m, int n, int k, const Control* control, unsigned* counters, float* parts EPILOGUE_FACTORS)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES], turns[2];
#if SPLIT_K > 1
    __shared__ unsigned arrived[CONSUMERS];
#endif
    unsigned char* const slots = memory + (1024 - shared_address(memory) % 1024) % 1024;
    const Shared shared = {shared_address(slots), shared_address(slots + STAGES * SLOT), shared_address(full),
                           shared_address(empty), shared_address(turns)};
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared.full + 8 * s, 1);
            make_barrier(shared.empty + 8 * s, WARPS * CLUSTER);
        }
        for (int group = 0; group < 2; ++group) make_barrier(shared.turns + 8 * group, 4);
        publish_barriers();
    }
    const unsigned rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    if (CLUSTER > 1) sync_cluster();
    else __syncthreads();
    await_previous();
    const bool is_mine = __ldcg(&control->fall_back) == 0;

    const Packed a = packed_at(packed_a, m, k, 1), b = packed_at(packed_b, n, k, SHARE);
    const unsigned tiles_m = (m - 1) / (BM * CLUSTER) + 1, tiles_n = (n - 1) / BN + 1;
    const unsigned items = is_mine ? tiles_m * tiles_n * SPLIT_K : 0, step = gridDim.x / CLUSTER;
    Place<STAGES> place;
    unsigned factor_slot = 0;
    if (threadIdx.x < 128) {
        if (GIVEN > 0) give_registers<KEPT>();
        if (threadIdx.x == 0) {
            for (unsigned item = blockIdx.x / CLUSTER; item < items; item += step)
                produce(a, b, item_at(item, rank, tiles_m, tiles_n, a.chunks), rank, shared, place, factor_slot);
        }
        __syncwarp();
    } else {
        if (GIVEN > 0) take_registers<GIVEN>();
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
        Turn turn = {shared.turns + 8 * group, shared.turns + 8 * (1 - group), group == 0 ? 1u : 0u};
        for (unsigned at = blockIdx.x / CLUSTER; at < items; at += step) {
            const Item item = item_at(at, rank, tiles_m, tiles_n, a.chunks);
            float sum[PARTS][SUMS], lost[PARTS][LOST];
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sum[part][i] = 0.0f, lost[part][COMPENSATED ? i : 0] = 0.0f;
            const Edges edges = {rows_in(item.row + group * 64, m, 64), (rows_in(item.column, n, BN) - 1) / SHARE + 1};
            consume(sum, lost, item, shared, (const float*)(slots + STAGES * SLOT), group, edges, place, factor_slot, turn);
#if SPLIT_K > 1
            if (!add_shares(sum, lost, item, group, counters, parts, arrived)) continue;
#endif
            store(sum, c, item, group, m, n EPILOGUE_OF_KERNEL);
        }
    }
    if (CLUSTER > 1) sync_cluster();  // the other block may still arrive here
}
