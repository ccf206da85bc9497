constexpr int GROUPED = 16 / sizeof(SCALAR);  // elements of a 128-bit access

// Neighbours in memory that one access moves.
template <int WIDTH>
struct alignas(WIDTH * sizeof(SCALAR)) Pack {
    SCALAR element[WIDTH];
};

// A lane's place among DOWN x 32 / DOWN lanes. Bits of its number go along and down in turn: lanes that differ in bit 0
// have the same `down` and lanes that differ in bit 1 the same `along`, which lets the hardware serve half a warp's
// 128-bit reads from shared memory at once.
template <int DOWN>
__device__ __forceinline__ void split_lane(int lane, int& down, int& along)
{
    down = along = 0;
    int weight_down = 1, weight_along = 1;
#pragma unroll
    for (int bit = 0; bit < 5; ++bit) {
        const int value = lane >> bit & 1;
        if (weight_along == 32 / DOWN || (bit % 2 == 1 && weight_down < DOWN)) {
            down += value * weight_down;
            weight_down *= 2;
        } else {
            along += value * weight_along;
            weight_along *= 2;
        }
    }
}

// Starts a copy of BYTES bytes from global to shared memory that passes no register (sm_80 and later); zeros are written
// instead, and nothing is read, where not `valid`.
template <int BYTES>
__device__ __forceinline__ void copy_async(SCALAR* to, const SCALAR* from, bool valid)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    const int count = valid ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(count) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(address), "l"(from), "n"(BYTES), "r"(count) : "memory");
}

__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most LEFT groups of this thread's copies are on their way.
template <int LEFT>
__device__ __forceinline__ void await_group() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
