// bmm, whole: MATRICES neighbouring products pass through a block as the one piece of memory that their operands, and results, are.
//
// Floor    the bytes of A, B and C.
// Idea     Rows of small matrices begin anywhere, and whoever reads them one by one asks for parts of sectors. But matrices of a stack
//          follow each other without gaps: a block copies all of its A and B in wide accesses, whatever the shape, multiplies in shared
//          memory, and stores all of its C in wide accesses. Many blocks on a multiprocessor hide each other's waiting.
// Layout   a: batch of m x k or k x m, b: batch of k x n or n x k, c: batch of m x n, dense; of A (ONE_A) or B (ONE_B) maybe one
//          matrix for all. With VECTOR above 1, MATRICES matrices of each begin at multiples of 16 bytes.
// Source   own work.
// Letters  MATRICES   products of a block
//          TM TN      elements of a thread at a time, of rows and columns a part of the matrix apart
//          THREADS    of a block
//          VECTOR     elements of one global access: 16 bytes, or 1

// Copies neighbours; those of threads are neighbours, too.
__device__ __forceinline__ void bring(STORED* to, const STORED* __restrict__ from, int count)
{
    const int wide = VECTOR > 1 ? count / VECTOR : 0;
    for (int i = threadIdx.x; i < wide; i += THREADS) copy_async<16>((SCALAR*)(to + i * VECTOR), (const SCALAR*)(from + i * VECTOR), true);
    for (int i = wide * VECTOR + threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}

// As many elements as whole pieces of 16 bytes have.
__device__ __forceinline__ int padded(int count) { return (count + WIDEST - 1) / WIDEST * WIDEST; }

extern "C" __global__ void __launch_bounds__(THREADS)
bmm(const STORED* __restrict__ a, const STORED* __restrict__ b, STORED* __restrict__ c, int batch, int m, int n, int k)
{
    extern __shared__ __align__(16) unsigned char memory[];
    const int of_a = m * k, of_b = k * n, of_c = m * n;
    STORED* const left = (STORED*)memory;
    STORED* const right = left + padded(of_a * (ONE_A ? 1 : MATRICES));
    STORED* const result = right + padded(of_b * (ONE_B ? 1 : MATRICES));
    const size_t first = (size_t)blockIdx.x * MATRICES;
    const int count = min((size_t)MATRICES, batch - first);

    bring(left, a + (ONE_A ? 0 : first * of_a), of_a * (ONE_A ? 1 : count));
    bring(right, b + (ONE_B ? 0 : first * of_b), of_b * (ONE_B ? 1 : count));
    close_group();
    await_group<0>();
    __syncthreads();

    const int down = (m - 1) / TM + 1, across = (n - 1) / TN + 1, each = down * across;
    const int next_a = A_TRANSPOSED ? m : 1, next_b = B_TRANSPOSED ? 1 : n;
    for (int item = threadIdx.x; item < count * each; item += THREADS) {
        const int matrix = item / each, y = (item - matrix * each) / across, x = item - matrix * each - y * across;
        const STORED* const of_left = left + (ONE_A ? 0 : matrix * of_a);
        const STORED* const of_right = right + (ONE_B ? 0 : matrix * of_b);
        int at_a[TM], at_b[TN];
#pragma unroll
        for (int i = 0; i < TM; ++i) at_a[i] = min(y + i * down, m - 1) * (A_TRANSPOSED ? 1 : k);
#pragma unroll
        for (int j = 0; j < TN; ++j) at_b[j] = min(x + j * across, n - 1) * (B_TRANSPOSED ? k : 1);
        SCALAR sum[TM][TN] = {};
#pragma unroll 4
        for (int p = 0; p < k; ++p) {
            SCALAR rows[TM], columns[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) rows[i] = used(of_left[at_a[i] + p * next_a]);
#pragma unroll
            for (int j = 0; j < TN; ++j) columns[j] = used(of_right[at_b[j] + p * next_b]);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sum[i][j] += rows[i] * columns[j];
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int row = y + i * down, column = x + j * across;
                if (row < m && column < n) result[matrix * of_c + row * n + column] = stored(sum[i][j]);
            }
    }
    __syncthreads();

    STORED* const to = c + first * of_c;
    const int wide = VECTOR > 1 ? count * of_c / VECTOR : 0;
    for (int i = threadIdx.x; i < wide; i += THREADS) ((uint4*)to)[i] = ((const uint4*)result)[i];
    for (int i = wide * VECTOR + threadIdx.x; i < count * of_c; i += THREADS) to[i] = result[i];
}
