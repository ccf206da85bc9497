// Reads a job from standard input, runs it, writes the outputs to standard output in their order.
//
// A job is a line of text
//     gx gy gz bx by bz shared_bytes order seed n pieces
// (order: forward, backward or random; the order in which threads run between barriers, and whether blocks run backward;
// pieces: the number of the input that passes through constant memory, with a launch for each piece, or -1; the last
// argument then becomes the number of elements before the piece),
// then n lines "kind bytes" (kind: input, output, workspace or scalar), then the bytes of each in turn. Exit codes: 0 done,
// 2 no valid job, 3 a fault.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace {

struct Argument {
    std::string kind;
    size_t bytes;
    unsigned char* value;
};

// Aligned to 256 bytes and to no more, as cudaMalloc's pointers are at least.
unsigned char* allocate(size_t bytes) {
    return (unsigned char*)aligned_alloc(512, (bytes + 256 + 511) / 512 * 512) + 256;
}

bool read_arguments(std::vector<Argument>& arguments) {
    for (Argument& argument : arguments) {
        char kind[16];
        if (scanf("%15s %zu", kind, &argument.bytes) != 2) return false;
        argument.kind = kind;
    }
    if (getchar() != '\n') return false;
    for (Argument& argument : arguments) {
        argument.value = allocate(argument.bytes);
        if (fread(argument.value, 1, argument.bytes, stdin) != argument.bytes) return false;
    }
    return true;
}

}  // namespace

int main() {
    using namespace cuda_on_cpu;
    dim3 grid, size;
    size_t shared_bytes = 0, count = 0;
    char order[16];
    unsigned seed = 0;
    int pieces = -1;
    if (scanf("%u %u %u %u %u %u %zu %15s %u %zu %d", &grid.x, &grid.y, &grid.z, &size.x, &size.y, &size.z, &shared_bytes,
              order, &seed, &count, &pieces) != 11)
        return 2;
    std::vector<Argument> arguments(count);
    if (!read_arguments(arguments) || shared_bytes > MAX_SHARED_BYTES) return 2;

    std::vector<void*> addresses;
    for (Argument& argument : arguments) {
        const bool scalar = argument.kind == "scalar";
        addresses.push_back(scalar ? (void*)argument.value : (void*)&argument.value);
        const std::string name = "argument " + std::to_string(addresses.size() - 1);
        if (!scalar) add_array(argument.value, argument.bytes, argument.kind != "input", name);
    }
    add_shared_memory(shared_bytes);
    make_fibres(size);
    const Order turns = !strcmp(order, "backward") ? Order::BACKWARD
                        : !strcmp(order, "random") ? Order::RANDOM
                                                   : Order::FORWARD;
    if (pieces < 0) {
        run_grid(grid, size, turns, seed, addresses.data());
    } else {
        const ConstantArray constant = constant_array();
        const Argument& whole = arguments[pieces];
        for (size_t done = 0; done < whole.bytes; done += constant.bytes) {
            const size_t bytes = whole.bytes - done < constant.bytes ? whole.bytes - done : constant.bytes;
            memset(constant.begin, 0xff, constant.bytes);  // NaN, for what the last piece leaves over
            memcpy(constant.begin, whole.value + done, bytes);
            *(int*)arguments.back().value = int(done / constant.element_bytes);
            run_grid(grid, size, turns, seed, addresses.data());
            forget_accesses();
        }
    }
    for (const Argument& argument : arguments)
        if (argument.kind == "output" || argument.kind == "workspace") fwrite(argument.value, 1, argument.bytes, stdout);
    return fflush(stdout) ? 2 : 0;
}
