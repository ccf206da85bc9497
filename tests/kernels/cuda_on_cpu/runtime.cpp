// Runs one launch of a kernel on the CPU and watches every access to memory.
//
// Reads a job from standard input, writes the arrays that came as outputs to standard output. On a fault: one line
// "KIND: what happened" on standard error and exit code 3. Job: a line of text
//     gx gy gz bx by bz shared_bytes order seed n
// (order: forward, backward or random; the order in which threads run between barriers and blocks one after another),
// then n lines "kind bytes" (kind: input, output or scalar), then the bytes of each in turn.
//
// Faults: BOUNDS (outside of every array, or a store to an input), RACE (two threads touch the same byte, one of them
// storing, with no barrier between), UNSET (shared memory read before anything was stored there), ALIGNMENT, INDEX
// (outside of the declared size of an array, even where that stays within another), BARRIER
// (threads wait at different barriers, or for one that never comes).
//
// Threads are fibres of one system thread, so a fault is found the same way on every run. A barrier orders a block, a
// __syncwarp or shuffle orders its lanes; any two accesses not so ordered count as concurrent in whichever order
// they ran. Blocks are never ordered.
#include "cuda_on_cpu.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

void call_kernel(void** arguments);  // made by the harness for the kernel's signature
extern unsigned char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));
extern unsigned char __start_cuda_constant[] __attribute__((weak)), __stop_cuda_constant[] __attribute__((weak));

namespace cuda_on_cpu {
namespace {

constexpr size_t STACK_BYTES = 256 << 10;
enum class State { READY, AT_BARRIER, AT_WARP, DONE };

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int bytes, valid;
};

struct Fibre {
    Thread thread;
    ucontext_t context;
    unsigned char* stack;
    State state;
    int number, line;       // line: of the barrier it waits at
    unsigned mask;          // lanes it waits for
    unsigned warp_epoch;    // warp-wide synchronisations passed
    unsigned char slot[16]; // what it offers in an exchange or vote
    std::vector<std::vector<Copy>> copies;  // groups on their way; the last one is still open
};

// Who touched a byte last. A fibre's number, or MANY where several threads have read.
constexpr int NOBODY = -1, MANY = -2;
struct Access { int fibre = NOBODY, warp = NOBODY; unsigned block = 0, epoch = 0, warp_epoch = 0; };
struct Shadow { Access store, load; };

struct Region {
    unsigned char* begin;
    size_t bytes;
    bool writable, shared;
    std::string name;
    std::vector<Shadow> shadow;
};

std::vector<Region> regions;
std::vector<Fibre> fibres;
ucontext_t scheduler;
Fibre* running = nullptr;
unsigned epoch = 0;     // barriers passed by the block
unsigned block_number = 0;
bool atomic = false;
void** kernel_arguments = nullptr;

[[noreturn]] void fault(const char* kind, const char* format, ...) {
    fprintf(stderr, "%s: ", kind);
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    if (running) {
        const uint3 t = running->thread.thread_index, b = running->thread.block_index;
        fprintf(stderr, " by thread (%u,%u,%u) of block (%u,%u,%u)", t.x, t.y, t.z, b.x, b.y, b.z);
    }
    fprintf(stderr, "\n");
    fflush(stderr);
    _exit(3);
}

bool ordered(const Access& before) {
    if (before.fibre == NOBODY || before.fibre == running->number) return true;
    if (before.block != block_number) return false;
    if (before.epoch != epoch) return true;
    return before.warp == running->number / 32 && before.warp_epoch < running->warp_epoch;
}

void check_byte(Region& region, size_t at, bool store) {
    Shadow& shadow = region.shadow[at];
    const Access now{running->number, running->number / 32, block_number, epoch, running->warp_epoch};
    const bool stale = region.shared && shadow.store.block != block_number;
    if (region.shared && !store && (shadow.store.fibre == NOBODY || stale))
        fault("UNSET", "byte %zu of %s is read before it was written", at, region.name.c_str());
    if (region.shared && stale) shadow = Shadow{};
    if (!atomic) {
        if (!ordered(shadow.store))
            fault("RACE", "byte %zu of %s is %s while thread %d writes it", at, region.name.c_str(),
                  store ? "written" : "read", shadow.store.fibre);
        if (store && shadow.load.fibre != NOBODY && !ordered(shadow.load))
            fault("RACE", "byte %zu of %s is written while thread %d reads it", at, region.name.c_str(),
                  shadow.load.fibre);
    }
    if (store) {
        shadow = Shadow{now, Access{}};
        return;
    }
    Access& load = shadow.load;
    const bool same_time = load.fibre != NOBODY && load.block == block_number && load.epoch == epoch;
    const Access previous = load;
    load = now;
    if (same_time && previous.fibre != now.fibre) {
        load.fibre = MANY;
        if (previous.warp != now.warp) load.warp = MANY;
    }
}

void check(const void* address, size_t bytes, bool store) {
    if (!running || !bytes) return;
    unsigned char* at = (unsigned char*)address;
    if (at >= running->stack && at < running->stack + STACK_BYTES) return;
    if (at == (unsigned char*)&current || at == (unsigned char*)&dynamic_shared) return;
    if (at >= (unsigned char*)fibres.data() && at < (unsigned char*)(fibres.data() + fibres.size())) return;
    for (Region& region : regions) {
        if (at < region.begin || at >= region.begin + region.bytes) continue;
        if (at + bytes > region.begin + region.bytes)
            fault("BOUNDS", "%zu bytes %s at byte %zu of %s, which has %zu,", bytes, store ? "written" : "read",
                  size_t(at - region.begin), region.name.c_str(), region.bytes);
        if (store && !region.writable) fault("BOUNDS", "%s is an input and is written", region.name.c_str());
        if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && (uintptr_t)at % bytes)
            fault("ALIGNMENT", "%zu bytes at byte %zu of %s", bytes, size_t(at - region.begin), region.name.c_str());
        if (region.writable)
            for (size_t byte = 0; byte < bytes; ++byte) check_byte(region, size_t(at - region.begin) + byte, store);
        return;
    }
    for (const Region& region : regions) {
        const ptrdiff_t off = at - region.begin;
        if (off > -(64 << 10) && off < ptrdiff_t(region.bytes) + (64 << 10))
            fault("BOUNDS", "%zu bytes %s at byte %td of %s, which has %zu,", bytes, store ? "written" : "read", off,
                  region.name.c_str(), region.bytes);
    }
    fault("BOUNDS", "%zu bytes %s outside of every array", bytes, store ? "written" : "read");
}

void yield(State state) {
    running->state = state;
    swapcontext(&running->context, &scheduler);
}

void enter() {
    call_kernel(kernel_arguments);
    for (const auto& group : running->copies)
        if (!group.empty()) fault("UNSET", "a copy was started and not waited for");
    yield(State::DONE);
}

void start_block(uint3 block, dim3 grid, dim3 size) {
    ++block_number;
    epoch = 0;
    for (Region& region : regions)
        if (region.shared) memset(region.begin, 0xff, region.bytes);
    for (Fibre& fibre : fibres) {
        const unsigned n = fibre.number;
        fibre.thread = {{n % size.x, n / size.x % size.y, n / size.x / size.y}, block, size, grid};
        fibre.state = State::READY;
        fibre.warp_epoch = 0;
        fibre.copies.assign(1, {});
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack;
        fibre.context.uc_stack.ss_size = STACK_BYTES;
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, enter, 0);
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
                swapcontext(&scheduler, &running->context);
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

const Thread* current = nullptr;
unsigned char* dynamic_shared = nullptr;
alignas(512) unsigned char shared_origin[1 << 19];  // dynamic shared memory lies in it, behind the first 1024 bytes

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

// Counts as a store both when it starts and when it arrives: it may happen at any time between.
void start_copy(unsigned to, const void* from, int bytes, int valid) {
    if (bytes != 4 && bytes != 8 && bytes != 16) fault("ALIGNMENT", "a copy of %d bytes", bytes);
    unsigned char* target = shared_origin + (int)to;  // static shared arrays may lie before the origin
    check(target, bytes, true);
    check(from, valid, false);
    if ((uintptr_t)from % bytes) fault("ALIGNMENT", "a copy of %d bytes from an address that is no multiple", bytes);
    running->copies.back().push_back({target, (const unsigned char*)from, bytes, valid});
}

void commit_copies() { running->copies.emplace_back(); }

void await_copies(int groups_left) {
    auto& copies = running->copies;
    while ((int)copies.size() - 1 > groups_left) {
        for (const Copy& copy : copies.front()) {
            check(copy.to, copy.bytes, true);
            memset(copy.to, 0, copy.bytes);
            memcpy(copy.to, copy.from, copy.valid);
        }
        copies.erase(copies.begin());
    }
}

void begin_atomic() { atomic = true; }
void end_atomic() { atomic = false; }

namespace {

// Aligned to 256 bytes and to no more, as cudaMalloc's pointers are at least.
unsigned char* allocate(size_t bytes) {
    return (unsigned char*)aligned_alloc(512, (bytes + 256 + 511) / 512 * 512) + 256;
}

void add_region(unsigned char* begin, size_t bytes, bool writable, bool shared, const std::string& name) {
    regions.push_back({begin, bytes, writable, shared, name, {}});
    if (writable) regions.back().shadow.resize(bytes);
}

void read_exactly(void* to, size_t bytes) {
    if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(2);
}

}  // namespace

int run() {
    dim3 grid, size;
    size_t shared_bytes = 0;
    char order_name[16];
    unsigned seed = 0;
    int count = 0;
    if (scanf("%u %u %u %u %u %u %zu %15s %u %d", &grid.x, &grid.y, &grid.z, &size.x, &size.y, &size.z, &shared_bytes,
              order_name, &seed, &count) != 10)
        return 2;
    std::vector<std::pair<std::string, size_t>> described(count);
    for (auto& [kind, bytes] : described) {
        char text[16];
        if (scanf("%15s %zu", text, &bytes) != 2) return 2;
        kind = text;
    }
    if (getchar() != '\n') return 2;

    std::vector<unsigned char*> values;
    std::vector<void*> arguments;
    values.reserve(count);
    for (int i = 0; i < count; ++i) {
        const auto& [kind, bytes] = described[i];
        values.push_back(allocate(bytes));
        read_exactly(values.back(), bytes);
        arguments.push_back(kind == "scalar" ? (void*)values.back() : (void*)&values.back());
        if (kind != "scalar") add_region(values.back(), bytes, kind == "output", false, "argument " + std::to_string(i));
    }
    dynamic_shared = shared_origin + 1024;
    if (shared_bytes > sizeof shared_origin - 2048) return 2;
    add_region(dynamic_shared, shared_bytes, true, true, "dynamic shared memory");
    add_region(__start_cuda_shared, __stop_cuda_shared - __start_cuda_shared, true, true, "shared memory");
    add_region(__start_cuda_constant, __stop_cuda_constant - __start_cuda_constant, false, false, "constant memory");
    kernel_arguments = arguments.data();

    fibres.resize(size.x * size.y * size.z);
    for (size_t i = 0; i < fibres.size(); ++i) {
        fibres[i].number = int(i);
        fibres[i].stack = (unsigned char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    std::vector<int> order(fibres.size());
    std::iota(order.begin(), order.end(), 0);
    const bool backward = !strcmp(order_name, "backward"), shuffled = !strcmp(order_name, "random");
    if (backward) std::reverse(order.begin(), order.end());
    std::mt19937 random(seed);
    const size_t blocks = size_t(grid.x) * grid.y * grid.z;
    for (size_t i = 0; i < blocks; ++i) {
        const size_t n = backward ? blocks - 1 - i : i;
        start_block({unsigned(n % grid.x), unsigned(n / grid.x % grid.y), unsigned(n / grid.x / grid.y)}, grid, size);
        run_block(order, shuffled, random);
    }
    for (int i = 0; i < count; ++i)
        if (described[i].first == "output") fwrite(values[i], 1, described[i].second, stdout);
    return fflush(stdout) ? 2 : 0;
}

// What -fsanitize=bounds and alignment say of a place in the source.
struct Place { const char* file; uint32_t line, column; };
void index_fault(const Place* place, uintptr_t index) {
    fault("INDEX", "line %u: index %td lies outside of its array", place->line, (ptrdiff_t)index);
}
void alignment_fault(const Place* place, uintptr_t address) {
    fault("ALIGNMENT", "line %u: address ...%03x is not a multiple of its type's alignment", place->line,
          unsigned(address & 0xfff));
}

void check_access(const void* address, size_t bytes, bool store) { check(address, bytes, store); }

}  // namespace cuda_on_cpu

// The calls that -fsanitize=thread puts before every access.
#define WATCH(BYTES)                                                                                       \
    extern "C" void __tsan_read##BYTES(void* at) { cuda_on_cpu::check_access(at, BYTES, false); }          \
    extern "C" void __tsan_write##BYTES(void* at) { cuda_on_cpu::check_access(at, BYTES, true); }          \
    extern "C" void __tsan_unaligned_read##BYTES(void* at) { cuda_on_cpu::check_access(at, BYTES, false); } \
    extern "C" void __tsan_unaligned_write##BYTES(void* at) { cuda_on_cpu::check_access(at, BYTES, true); }
WATCH(1) WATCH(2) WATCH(4) WATCH(8) WATCH(16)
extern "C" void __tsan_read_range(void* at, size_t bytes) { cuda_on_cpu::check_access(at, bytes, false); }
extern "C" void __tsan_write_range(void* at, size_t bytes) { cuda_on_cpu::check_access(at, bytes, true); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
extern "C" void __tsan_vptr_update(void**, void*) {}

// The calls of the other sanitizers.
extern "C" void __ubsan_handle_out_of_bounds_abort(void* data, uintptr_t index) {
    cuda_on_cpu::index_fault((const cuda_on_cpu::Place*)data, index);
}
extern "C" void __ubsan_handle_type_mismatch_v1_abort(void* data, uintptr_t address) {
    cuda_on_cpu::alignment_fault((const cuda_on_cpu::Place*)data, address);
}

int main() { return cuda_on_cpu::run(); }
