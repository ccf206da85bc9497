// Copies of boxes by tensor maps (the TMA of sm_90), loads of one block or of several in a cluster, and stores.
// A map comes as a kernel's argument: `const __grid_constant__ TensorMap`. Coordinates begin with the contiguous dimension.

struct __align__(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch_map(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Elements beyond the tensor's edges come as zeros, and count as bytes.
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int x, int y, unsigned barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}

// To the same place in each block of `blocks` (a bit each); completes on the barrier of the same place there.
__device__ __forceinline__ void load_box_to(unsigned to, const TensorMap& map, int x, int y, unsigned barrier,
                                            unsigned short blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks) : "memory");
}

// What lies beyond the tensor's edges is not stored.
__device__ __forceinline__ void store_box(const TensorMap& map, int x, int y, unsigned from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(from) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Shared memory that ordinary instructions wrote may be stored from here on.
__device__ __forceinline__ void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits until all but the last LATER stores of this thread have read their shared memory.
template <int LATER> __device__ __forceinline__ void await_stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LATER) : "memory");
}

// Waits until this thread's stores are complete.
__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
