// Instructions of sm_90 that CUDA C++ has no names for: barriers in shared memory, bulk copies, clusters.
// An address of shared memory is an `unsigned`, as PTX wants it.

__device__ __forceinline__ unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// ---- barriers: they count arrivals and bytes, and have a phase that flips when both are complete

__device__ __forceinline__ void make_barrier(unsigned barrier, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes barriers visible to bulk copies and to the other block of the cluster.
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives, and says how many bytes copies will bring in this phase.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the barrier of that place in block `rank` of the cluster.
__device__ __forceinline__ void arrive_at(unsigned barrier, unsigned rank)
{
    asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [r]; }"
                 ::"r"(barrier), "r"(rank) : "memory");
}

__device__ __forceinline__ void await_phase(unsigned barrier, unsigned parity)
{
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
                 ::"r"(barrier), "r"(parity) : "memory");
}

// Whether that phase is over; does not wait.
__device__ __forceinline__ bool is_over(unsigned barrier, unsigned parity)
{
    unsigned over;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    return over;
}

// The same, if the compiler is likely to put arithmetic that should come before after the first look: that one does not block.
__device__ __forceinline__ void await_phase_late(unsigned barrier, unsigned parity)
{
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE;"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra AGAIN; DONE: }"
                 ::"r"(barrier), "r"(parity) : "memory");
}

// ---- bulk copies: 16 bytes and multiples, by the copy engine

__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// To the same place in each block of `blocks` (a bit each); completes on the barrier of the same place there.
__device__ __forceinline__ void copy_bulk_to(unsigned to, const void* from, unsigned bytes, unsigned barrier,
                                             unsigned short blocks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "h"(blocks) : "memory");
}

// ---- blocks and clusters

__device__ __forceinline__ unsigned rank_in_cluster()
{
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void sync_cluster()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Named barriers: `threads` in all arrive or wait at it.
__device__ __forceinline__ void wait_named(int name, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

template <int COUNT> __device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Where wgmma finds an operand: rows of 128 bytes, 16-byte chunks swizzled by row, 8 rows a kilobyte.
__device__ __forceinline__ unsigned long long operand_at(unsigned address)
{
    return (unsigned long long)((address & 0x3FFFF) >> 4) | (unsigned long long)1 << 16 | (unsigned long long)64 << 32
           | (unsigned long long)1 << 62;
}
