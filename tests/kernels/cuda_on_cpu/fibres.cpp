// Runs the threads of a block as fibres of one system thread, so that every run finds the same.
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime.h"

namespace cuda_on_cpu {

const Thread* current = nullptr;
std::vector<Fibre> fibres;
Fibre* running = nullptr;
unsigned epoch = 0, block_number = 0;

namespace {

// Where those who yield go on. A jump leaves the signal mask alone: swapcontext sets it, with two calls of the system each
// time, which took longer than what the fibres do.
jmp_buf scheduler;
void** kernel_arguments = nullptr;

void yield(State state) {
    running->state = state;
    if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}

// A fibre that is done stays here until a block begins.
void live() {
    for (;;) {
        call_kernel(kernel_arguments);
        assert_copies_arrived();
        yield(State::DONE);
    }
}

// Runs a fibre until it yields.
void resume(Fibre& fibre) {
    if (_setjmp(scheduler)) return;
    if (fibre.begun) _longjmp(fibre.place, 1);
    fibre.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fibre.stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, live, 0);
    setcontext(&context);
}

void start_block(uint3 block, dim3 grid, dim3 size) {
    ++block_number;
    epoch = 0;
    forget_shared_memory();
    for (Fibre& fibre : fibres) {
        const unsigned n = fibre.number;
        fibre.thread = {{n % size.x, n / size.x % size.y, n / size.x / size.y}, block, size, grid};
        fibre.state = State::READY;
        fibre.warp_epoch = 0;
        fibre.copies.assign(1, {});
    }
}

// Lets the lanes that wait for each other go on, once all of them wait (lanes that have ended do not count).
bool release_warps() {
    bool released = false;
    for (size_t first = 0; first < fibres.size(); first += 32) {
        const size_t lanes = std::min<size_t>(32, fibres.size() - first);
        for (size_t lane = 0; lane < lanes; ++lane) {
            Fibre& fibre = fibres[first + lane];
            if (fibre.state != State::AT_WARP) continue;
            const unsigned mask = fibre.mask;
            bool complete = true;
            for (size_t other = 0; other < lanes; ++other) {
                const Fibre& peer = fibres[first + other];
                if (mask >> other & 1 && peer.state != State::DONE)
                    complete &= peer.state == State::AT_WARP && peer.mask == mask;
            }
            if (!complete) continue;
            for (size_t other = 0; other < lanes; ++other) {
                Fibre& peer = fibres[first + other];
                if (!(mask >> other & 1) || peer.state == State::DONE) continue;
                peer.state = State::READY;
                ++peer.warp_epoch;
            }
            released = true;
        }
    }
    return released;
}

bool release_block() {
    const Fibre* first = nullptr;
    for (const Fibre& fibre : fibres) {
        if (fibre.state == State::DONE) continue;
        if (fibre.state != State::AT_BARRIER) return false;
        if (!first) first = &fibre;
        if (fibre.line != first->line)
            fault("BARRIER", "threads wait at the barriers of lines %d and %d", first->line, fibre.line);
    }
    if (!first) return false;
    for (Fibre& fibre : fibres)
        if (fibre.state == State::AT_BARRIER) fibre.state = State::READY;
    ++epoch;
    return true;
}

void run_block(std::vector<int>& order, bool shuffled, std::mt19937& random) {
    for (;;) {
        if (shuffled) std::shuffle(order.begin(), order.end(), random);
        bool all_done = true;
        for (int number : order) {
            running = &fibres[number];
            if (running->state == State::READY) {
                current = &running->thread;
                resume(*running);
            }
            all_done &= fibres[number].state == State::DONE;
        }
        running = nullptr;
        if (all_done) return;
        if (!release_warps() && !release_block())
            fault("BARRIER", "some threads wait for others that wait elsewhere");
    }
}

}  // namespace

void make_fibres(dim3 size) {
    fibres.resize(size.x * size.y * size.z);
    for (size_t i = 0; i < fibres.size(); ++i) {
        fibres[i].number = int(i);
        fibres[i].stack = (unsigned char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
}

void run_grid(dim3 grid, dim3 size, Order order, unsigned seed, void** arguments) {
    kernel_arguments = arguments;
    std::vector<int> turns(fibres.size());
    std::iota(turns.begin(), turns.end(), 0);
    if (order == Order::BACKWARD) std::reverse(turns.begin(), turns.end());
    std::mt19937 random(seed);
    const size_t blocks = size_t(grid.x) * grid.y * grid.z;
    for (size_t i = 0; i < blocks; ++i) {
        const size_t n = order == Order::BACKWARD ? blocks - 1 - i : i;
        start_block({unsigned(n % grid.x), unsigned(n / grid.x % grid.y), unsigned(n / grid.x / grid.y)}, grid, size);
        run_block(turns, order == Order::RANDOM, random);
    }
}

void sync_block(int line) {
    running->line = line;
    yield(State::AT_BARRIER);
}

void sync_warp(unsigned mask) {
    running->mask = mask;
    yield(State::AT_WARP);
}

int lane() { return running->number % 32; }

void exchange(unsigned mask, void* value, int bytes, int from) {
    Fibre* self = running;
    if (!(mask >> lane() & 1)) fault("BARRIER", "a lane is not in the mask that it gives");
    memcpy(self->slot, value, bytes);
    sync_warp(mask);
    const size_t other = self->number / 32 * 32 + from;
    if (mask >> from & 1 && other < fibres.size()) memcpy(value, fibres[other].slot, bytes);
    sync_warp(mask);
}

unsigned vote(unsigned mask, bool predicate) {
    Fibre* self = running;
    self->slot[0] = predicate;
    sync_warp(mask);
    unsigned result = 0;
    for (unsigned other = 0; other < 32 && self->number / 32 * 32 + other < fibres.size(); ++other)
        if (mask >> other & 1) result |= unsigned(fibres[self->number / 32 * 32 + other].slot[0]) << other;
    sync_warp(mask);
    return result;
}

}  // namespace cuda_on_cpu
