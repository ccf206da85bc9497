// Watches accesses to memory: bounds, alignment, races, values that nobody stored.
//
// A barrier orders a block, a __syncwarp or shuffle orders its lanes (warps are taken to synchronise as a whole); any two
// accesses not so ordered count as concurrent in whichever order they ran. Blocks are ordered by atomics alone: what a
// thread did before its fence, and its block before a barrier before an atomic, comes before what another block does
// after an atomic on the same address that ran later, and a barrier (the thread itself needs none).
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <map>

#include "runtime.h"

extern unsigned char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));
extern unsigned char __start_cuda_constant[] __attribute__((weak)), __stop_cuda_constant[] __attribute__((weak));

namespace cuda_on_cpu {

unsigned char* dynamic_shared = nullptr;
alignas(512) unsigned char shared_origin[MAX_SHARED_BYTES + 1024];  // dynamic shared memory follows the first 512 bytes

void fault(const char* kind, const char* format, ...) {
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

namespace {

// Who touched a byte last: a fibre's number, or MANY where several threads have read.
constexpr int NOBODY = -1, MANY = -2;
struct Access {
    short fibre = NOBODY, warp = NOBODY;
    unsigned block = 0, epoch = 0, warp_epoch = 0;
    size_t number = 0;  // accesses before it
};
struct Shadow { Access store, load; };

struct Region {
    unsigned char* begin;
    size_t bytes;
    bool writable, shared;
    std::string name;
    std::vector<Shadow> shadow;
};

std::vector<Region> regions;
bool atomic = false;
size_t accesses = 0;

// What a block had done when one of its threads used an atomic.
struct Release {
    unsigned block, epoch;
    int fibre;
    std::vector<size_t> fenced;  // of each fibre: accesses before its last fence
};
// A release that the present block has seen, and who saw it when.
struct Acquired {
    Release release;
    int fibre;
    unsigned epoch;
};
std::map<const void*, std::vector<Release>> releases;
std::map<unsigned, std::vector<Acquired>> acquired;
std::vector<size_t> fenced;
unsigned acquiring_block = 0;

bool seen_through_atomic(const Access& before) {
    if (acquiring_block != block_number || before.fibre < 0) return false;
    for (const Acquired& seen : acquired[before.block]) {
        const Release& release = seen.release;
        const bool released = before.number < release.fenced[before.fibre] &&
                              (before.fibre == release.fibre || before.epoch < release.epoch);
        if (released && (running->number == seen.fibre || epoch > seen.epoch)) return true;
    }
    return false;
}

void add_region(unsigned char* begin, size_t bytes, bool writable, bool shared, const std::string& name) {
    regions.push_back({begin, bytes, writable, shared, name, {}});
    if (writable) regions.back().shadow.resize(bytes);
}

bool ordered(const Access& before) {
    if (before.fibre == NOBODY || before.fibre == running->number) return true;
    if (before.block != block_number) return seen_through_atomic(before);
    if (before.epoch != epoch) return true;
    return before.warp == running->number / 32 && before.warp_epoch < running->warp_epoch;
}

void check_byte(Region& region, size_t at, bool store) {
    Shadow& shadow = region.shadow[at];
    const short fibre = short(running->number);
    const Access now{fibre, short(fibre / 32), block_number, epoch, running->warp_epoch, accesses++};
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

}  // namespace

void add_array(unsigned char* begin, size_t bytes, bool writable, const std::string& name) {
    add_region(begin, bytes, writable, false, name);
}

void add_shared_memory(size_t dynamic_bytes) {
    dynamic_shared = shared_origin + 512;
    add_region(dynamic_shared, dynamic_bytes, true, true, "dynamic shared memory");
    add_region(__start_cuda_shared, __stop_cuda_shared - __start_cuda_shared, true, true, "shared memory");
    add_region(__start_cuda_constant, __stop_cuda_constant - __start_cuda_constant, false, false, "constant memory");
}

void forget_shared_memory() {
    for (Region& region : regions)
        if (region.shared) memset(region.begin, 0xff, region.bytes);
}

void forget_accesses() {
    releases.clear();
    for (Region& region : regions) region.shadow.assign(region.shadow.size(), Shadow{});
}

void assert_copies_arrived() {
    for (const auto& group : running->copies)
        if (!group.empty()) fault("UNSET", "a copy was started and not waited for");
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

void fence() {
    fenced.resize(fibres.size());
    fenced[running->number] = accesses;
}

void begin_atomic(const void* at) {
    if (acquiring_block != block_number) {
        acquiring_block = block_number;
        acquired.clear();
    }
    fenced.resize(fibres.size());
    auto& here = releases[at];
    for (const Release& release : here)
        if (release.block != block_number) acquired[release.block].push_back({release, running->number, epoch});
    here.push_back({block_number, epoch, running->number, fenced});
    atomic = true;
}

void end_atomic() { atomic = false; }

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
