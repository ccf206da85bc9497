// Holds the stream until the host has queued all launches, so that times contain no launch overhead (as
// NVBench's blocking kernel does).
extern "C" __global__ void hold(const volatile int* released, long long limit_cycles) {
    const long long start = clock64();
    while (!*released && clock64() - start < limit_cycles) {}
}
