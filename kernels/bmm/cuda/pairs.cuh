// Elements of 16 bits as copies.cuh has them, and stores of two neighbours. Comes after half.cuh, and before copies.cuh.
#define SCALAR unsigned short

// Neighbours of a row of C, `column` even; as one access where rows begin at even elements.
__device__ __forceinline__ void store_pair(SCALAR* __restrict__ c, int row, int column, int n, float left, float right)
{
    SCALAR* const to = c + (size_t)row * n + column;
    if (n % 2 == 0) {
        if (column < n) *(unsigned*)to = rounded(left) | (unsigned)rounded(right) << 16;
    } else {
        if (column < n) to[0] = rounded(left);
        if (column + 1 < n) to[1] = rounded(right);
    }
}
