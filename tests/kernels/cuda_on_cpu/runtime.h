// What the parts of the runtime share. job.cpp reads a job and runs it, fibres.cpp runs the threads of a block and
// lets them wait for each other, memory.cpp watches what they access.
//
// Faults: BOUNDS (outside of every array, or a store to an input), RACE (two threads touch the same byte, one of them
// storing, with no barrier between), UNSET (shared memory read before anything was stored there, or a copy that nothing
// waits for), ALIGNMENT, INDEX (outside of the declared size of an array, even where that stays within another) and
// BARRIER (threads wait at different barriers, or for one that never comes). The harness adds WORKSPACE.
#pragma once

#include <setjmp.h>
#include <stdio.h>

#include <string>
#include <vector>

#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

constexpr size_t STACK_BYTES = 256 << 10;
enum class State { READY, AT_BARRIER, AT_WARP, DONE };

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int bytes, valid;
};

struct Fibre {
    Thread thread;
    jmp_buf place;  // where it goes on
    bool begun = false;
    unsigned char* stack;
    State state;
    int number, line;        // line: of the barrier it waits at
    unsigned mask;           // lanes it waits for
    unsigned warp_epoch;     // warp-wide synchronisations passed
    unsigned char slot[16];  // what it offers in an exchange or vote
    std::vector<std::vector<Copy>> copies;  // groups on their way; the last one is still open
};

extern std::vector<Fibre> fibres;
extern Fibre* running;         // null between threads
extern unsigned epoch;         // barriers that the block has passed
extern unsigned block_number;  // blocks started

// Ends the process with "KIND: what happened" on standard error.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fault(const char* kind, const char* format, ...);

void make_fibres(dim3 size);
enum class Order { FORWARD, BACKWARD, RANDOM };
void run_grid(dim3 grid, dim3 size, Order order, unsigned seed, void** arguments);

constexpr size_t MAX_SHARED_BYTES = 512 << 10;
void add_array(unsigned char* begin, size_t bytes, bool writable, const std::string& name);
void add_shared_memory(size_t dynamic_bytes);
void forget_shared_memory();  // at the start of a block
void forget_accesses();       // between launches, which are in order
void assert_copies_arrived();

}  // namespace cuda_on_cpu

// Made by the harness for the kernel.
void call_kernel(void** arguments);
cuda_on_cpu::ConstantArray constant_array();
