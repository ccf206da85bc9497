constexpr int GROUPED = 16 / sizeof(SCALAR);  // elements of a 128-bit access

// Neighbours in memory that one access moves.
template <int WIDTH>
struct alignas(WIDTH * sizeof(SCALAR)) Pack {
    SCALAR element[WIDTH];
};

// Starts a copy of BYTES bytes from global to shared memory that passes no register (sm_80 and later). If not `valid`,
// it writes zeros and reads nothing.
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

// Waits until at most LEFT groups of this thread's copies are in flight.
template <int LEFT>
__device__ __forceinline__ void await_group() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
