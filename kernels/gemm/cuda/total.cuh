// Adds the sums of threads or blocks that share k, in a fixed order. Comes after copies.cuh.

// Adds WIDTH elements of `shares` parts, `apart` elements from each other, in their order. AT_ONCE parts
// are read before any is used: more take less time, and more registers.
template <int WIDTH, int AT_ONCE = 8>
__device__ __forceinline__ Pack<WIDTH> total(int shares, const SCALAR* part, size_t apart)
{
    Pack<WIDTH> sums = *(const Pack<WIDTH>*)part;
#pragma unroll AT_ONCE
    for (int share = 1; share < shares; ++share) {
        const Pack<WIDTH> more = *(const Pack<WIDTH>*)(part + share * apart);
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sums.element[e] += more.element[e];
    }
    return sums;
}
