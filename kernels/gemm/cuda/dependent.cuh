// Programmatic dependent launch: without its launch attribute both do nothing (sm_90 and later).

// The next launch of the stream may start as soon as multiprocessors have room.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the launch before is complete, and what it stored can be read.
__device__ __forceinline__ void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
