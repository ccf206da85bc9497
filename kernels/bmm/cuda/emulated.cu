// bmm, emulated: FP32 products of two stacks from three FP16 products on tensor cores.
//
// Floor    Bytes: A and B are read, written as pairs of FP16 numbers and read again, C is written: 12 (m + n) k + 4 m n a product,
//          at 4.15 TB/s. Operations: 6 m n k at about 790 TFLOPS. cuBLAS's float32: 2 m n k at 50 TFLOPS. So it pays where k and
//          both sides are some hundreds.
// Idea     What gemm's emulated does for one product. Each matrix is packed by itself, one behind the other, so that its rows are
//          padded to 8 and its columns share factors with none of another matrix. Blocks that stay take tiles of all products.
// Verdict  One for the whole stack: what packing has seen of all matrices is judged as if it were of one pair. If that says no,
//          nothing is done: the plain kernel, launched after this, computes all products.
// Layout   as in tiled; packed operands: emulated.cuh.
// Source   own work.
// Letters  as in gemm's emulated

// A packed matrix of a stack.
__device__ __forceinline__ Packed packed_of_stack(const unsigned char* packed, unsigned matrix, int rows, int k, unsigned share)
{
    const Packed first = packed_at(packed, rows, k, share);
    const size_t of_data = (size_t)first.chunks * BLOCKS_OF_CHUNK * first.rows * ROW_BYTES;
    return packed_at(packed + matrix * (first.data - packed + of_data), rows, k, share);
}

// `tiles` tiles of a matrix: packs one of the stack's.
template <bool ALONG_K, int SHARED>
__device__ __forceinline__ void pack_of_stack(const float* x, unsigned char* packed, int rows, int k, unsigned tile, unsigned tiles,
                                              int operand, float* staged, Seen& seen)
{
    const Packed to = packed_of_stack(packed, tile / tiles, rows, k, SHARED);
    pack_tile<ALONG_K, SHARED>(x + (size_t)(tile / tiles) * rows * k, rows, k, tile % tiles, to, operand, staged, seen);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS, BLOCKS_PER_SM)
pack(const float* __restrict__ a, const float* __restrict__ b, unsigned char* packed_a, unsigned char* packed_b,
     unsigned* fallbacks, int batch, int m, int n, int k, Control* control)
{
    __shared__ float staged[!A_TRANSPOSED && B_TRANSPOSED ? 1 : STAGED];
    __shared__ bool last;
    let_next_start();
    if (threadIdx.x < 4 * SPREAD_FIELDS) seen_by_block[threadIdx.x / SPREAD_FIELDS][threadIdx.x % SPREAD_FIELDS] = 0;
    __syncthreads();
    const Packed one_a = packed_at(packed_a, m, k, 1), one_b = packed_at(packed_b, n, k, SHARE);
    const unsigned tiles_a = ((one_a.rows - 1) / TILE + 1) * one_a.chunks, tiles_b = ((one_b.rows - 1) / TILE + 1) * one_b.chunks;
    const unsigned all_a = tiles_a * (ONE_A ? 1 : batch), tiles = all_a + tiles_b * (ONE_B ? 1 : batch);
    Seen seen;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (tile < all_a) pack_of_stack<!A_TRANSPOSED, 1>(a, packed_a, m, k, tile, tiles_a, 0, staged, seen);
        else pack_of_stack<B_TRANSPOSED, SHARE>(b, packed_b, n, k, tile - all_a, tiles_b, 1, staged, seen);
    }
    leave(seen, -1);
    __syncthreads();
    if (threadIdx.x < 4 * SPREAD_FIELDS) {
        const unsigned key = threadIdx.x / SPREAD_FIELDS, field = threadIdx.x % SPREAD_FIELDS;
        if (seen_by_block[key][field])
            atomicMax(&control->running[key / 2][key % 2].small_8 + field, seen_by_block[key][field]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicInc(&control->arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last) decide(true, true, packed_a, packed_b, k, control, fallbacks);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
bmm(const unsigned char* __restrict__ packed_a, const unsigned char* __restrict__ packed_b, float* __restrict__ c, int batch, int m,
    int n, int k, const Control* control)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
    unsigned char* const slots = memory + (1024 - shared_address(memory) % 1024) % 1024;
    const Shared shared = {shared_address(slots), shared_address(slots + STAGES * SLOT), shared_address(full),
                           shared_address(empty), 0};
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            make_barrier(shared.full + 8 * s, 1);
            make_barrier(shared.empty + 8 * s, WARPS * CLUSTER);
        }
        publish_barriers();
    }
    const unsigned rank = CLUSTER > 1 ? rank_in_cluster() : 0;
    if (CLUSTER > 1) sync_cluster();
    else __syncthreads();
    await_previous();
    const bool is_mine = __ldcg(&control->fall_back) == 0;

    const unsigned tiles_m = (m - 1) / (BM * CLUSTER) + 1, tiles_n = (n - 1) / BN + 1, tiles = tiles_m * tiles_n;
    const unsigned items = is_mine ? tiles * batch : 0, step = gridDim.x / CLUSTER, chunks = (k - 1) / CHUNK + 1;
    Place<STAGES> place;
    unsigned factor_slot = 0;
    if (threadIdx.x < 128) {
        if (GIVEN > 0) give_registers<KEPT>();
        if (threadIdx.x == 0) {
            for (unsigned item = blockIdx.x / CLUSTER; item < items; item += step) {
                const Packed of_a = packed_of_stack(packed_a, ONE_A ? 0 : item / tiles, m, k, 1);
                const Packed of_b = packed_of_stack(packed_b, ONE_B ? 0 : item / tiles, n, k, SHARE);
                produce(of_a, of_b, item_at(item % tiles, rank, tiles_m, tiles_n, chunks), rank, shared, place, factor_slot);
            }
        }
        __syncwarp();
    } else {
        if (GIVEN > 0) take_registers<GIVEN>();
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0) - 1;  // the same for all of a warp: the compiler sees it
        Turn turn = {};
        for (unsigned at = blockIdx.x / CLUSTER; at < items; at += step) {
            const Item item = item_at(at % tiles, rank, tiles_m, tiles_n, chunks);
            float sum[PARTS][SUMS], lost[PARTS][LOST];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[0][i] = 0.0f, lost[0][COMPENSATED ? i : 0] = 0.0f;
            const Edges edges = {rows_in(item.row + group * 64, m, 64), (rows_in(item.column, n, BN) - 1) / SHARE + 1};
            consume(sum, lost, item, shared, (const float*)(slots + STAGES * SLOT), group, edges, place, factor_slot, turn);
            store(sum, c + (size_t)(at / tiles) * m * n, item, group, m, n);
        }
    }
    if (CLUSTER > 1) sync_cluster();  // the other block may still arrive here
}
