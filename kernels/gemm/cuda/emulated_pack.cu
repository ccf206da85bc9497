// gemm, emulated: packing. FP32 operands become FP16 pairs that the product's bulk copies and wgmma take as they lie.
//
// Floor    Read 4 bytes an element, write 4: 8 (m + n) k bytes at 4.15 TB/s; 0.26 ms at 8192 x 8192 x 8192.
// Idea     Scales belong to a row and CHUNK terms, so that one pass finds and applies them. CHUNK / 8 lanes share a row's
//          chunk, 8 terms each: the largest and the counts of the check cost a few shuffles. Both operands in one launch.
//          Operands whose rows are contiguous in memory pass through shared memory to be turned.
// Check    Blocks collect what the elements look like (Spread). The last block to arrive decides whether the product may be
//          emulated, and leaves the verdict for the product and for the plain kernel that is launched after it.
// Layout   A is stored m x k, or k x m when A_TRANSPOSED; B is stored k x n, or n x k when B_TRANSPOSED. Dense.
// Source   own work.
// Letters  CHUNK           terms that share a scale

// a or b null: it was packed before. packed_a or packed_b null: the other operand is packed for later products. fallbacks
// counts verdicts against; null: nobody counts.
extern "C" __global__ void __launch_bounds__(PACK_THREADS, BLOCKS_PER_SM)
pack(const float* __restrict__ a, const float* __restrict__ b, unsigned char* packed_a, unsigned char* packed_b,
     unsigned* fallbacks, int m, int n, int k, Control* control)
{
    __shared__ float staged[!A_TRANSPOSED && B_TRANSPOSED ? 1 : STAGED];
    __shared__ bool last;
    let_next_start();
    if (threadIdx.x < 4 * SPREAD_FIELDS) seen_by_block[threadIdx.x / SPREAD_FIELDS][threadIdx.x % SPREAD_FIELDS] = 0;
    __syncthreads();
    const Packed to_a = packed_at(packed_a, m, k, 1), to_b = packed_at(packed_b, n, k, SHARE);
    const unsigned tiles_a = a ? ((to_a.rows - 1) / TILE + 1) * to_a.chunks : 0;
    const unsigned tiles = tiles_a + (b ? ((to_b.rows - 1) / TILE + 1) * to_b.chunks : 0);
    Seen seen;
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (tile < tiles_a) pack_tile<!A_TRANSPOSED, 1>(a, m, k, tile, to_a, 0, staged, seen);
        else pack_tile<B_TRANSPOSED, SHARE>(b, n, k, tile - tiles_a, to_b, 1, staged, seen);
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
    if (last) decide(a, b, packed_a, packed_b, k, control, fallbacks);
}
