// Lets a CUDA source compile as host C++: the language's additions, and the built-ins our kernels use.
//
// Test-only. The threads of a block run one at a time as fibres (runtime.cpp); each barrier, shuffle and vote hands over
// to the next. Shared arrays are static objects of one section, so that the runtime knows every byte of them. The
// source is compiled with -fsanitize=thread but without its library: the calls that the compiler then puts before
// each memory access go to the runtime, which checks bounds, alignment and races.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Without C++17's special functions, which are half of what g++ then reads for each kernel.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <math.h>

#include <utility>

#define CUDA_ON_CPU_VECTORS(T, NAME)                            \
    struct alignas(2 * sizeof(T)) NAME##2 { T x, y; };          \
    struct NAME##3 { T x, y, z; };                              \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME##4 { T x, y, z, w; }; \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }  \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_ON_CPU_VECTORS(float, float)
CUDA_ON_CPU_VECTORS(double, double)
CUDA_ON_CPU_VECTORS(int, int)
CUDA_ON_CPU_VECTORS(unsigned, uint)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ static __attribute__((section("cuda_shared")))
#define __constant__ static __attribute__((section("cuda_constant")))

namespace cuda_on_cpu {
struct Thread {
    uint3 thread_index, block_index;
    dim3 block_size, grid_size;
};
extern const Thread* current;          // the thread that runs
extern unsigned char* dynamic_shared;  // exactly as long as the launch says
extern unsigned char shared_origin[];  // addresses of shared memory are counted from here
void sync_block(int line);
void sync_warp(unsigned mask);
// Every lane of `mask` gives `bytes` of `value` and gets those of lane `from` (its own where that is not in the mask).
void exchange(unsigned mask, void* value, int bytes, int from);
unsigned vote(unsigned mask, bool predicate);
int lane();
void begin_atomic(const void* at);  // accesses until end_atomic are not races
void end_atomic();
void fence();  // what the thread did before is seen by those who see what it does next

// cp.async: `valid` bytes of `bytes` are copied, zeros follow. They arrive when they are waited for, not before.
void start_copy(unsigned to, const void* from, int bytes, int valid);
inline void start_copy(unsigned to, const void* from, int bytes) { start_copy(to, from, bytes, bytes); }
void commit_copies();
void await_copies(int groups_left);

// FP16 as bits, rounded to the nearest.
inline void to_half(unsigned short& half, float x) {
    const _Float16 rounded = (_Float16)x;
    __builtin_memcpy(&half, &rounded, sizeof half);
}
inline void to_halves(unsigned& halves, float upper, float lower) {
    unsigned short high, low;
    to_half(high, upper), to_half(low, lower);
    halves = (unsigned)high << 16 | low;
}
inline unsigned to_bfloat(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void to_bfloats(unsigned& both, float upper, float lower) { both = to_bfloat(upper) << 16 | to_bfloat(lower); }
inline void from_half(float& x, unsigned short half) {
    _Float16 value;
    __builtin_memcpy(&value, &half, sizeof half);
    x = value;
}
inline void power_of_two(float& power, float x) { power = __builtin_exp2f(x); }
inline void reciprocal(float& of, float x) { of = 1.0f / x; }
// As exact as the instruction: 2^-11 of the result, at the most.
inline void rough_tanh(float& of, float x) { of = __builtin_tanhf(x) * (1.0f - 0x1p-11f); }
inline void least_or_nan(float& least, float x, float y) { least = x != x || y != y ? x + y : y < x ? y : x; }
inline void no_dependents() {}  // launches come one after the other here

template <class T>
T shuffle(unsigned mask, T value, int from, int width) {
    const int first = lane() / width * width;
    if (from < first || from >= first + width) from = lane();
    exchange(mask, &value, sizeof value, from);
    return value;
}

// A warp's FP64 product of 8 x 4 by 4 x 8: lane l has a(l / 4, l % 4), b(l % 4, l / 4), and d(l / 4, l % 4 * 2) and its neighbour.
inline void multiply_8x8x4(double& left, double& right, double a, double b, double c, double d) {
    const int row = lane() / 4 * 4, column = lane() % 4 * 2 * 4;
    for (int term = 0; term < 4; ++term) {
        const double of_a = shuffle(~0u, a, row + term, 32);
        c = __builtin_fma(of_a, shuffle(~0u, b, column + term, 32), c);
        d = __builtin_fma(of_a, shuffle(~0u, b, column + 4 + term, 32), d);
    }
    left = c, right = d;
}

// 16 x 16 by 16 x 8: lane l has rows l / 4 and l / 4 + 8 of a and d, and terms l % 4 + 4 q, the rows' in turn.
inline void multiply_16x8x16(double& d0, double& d1, double& d2, double& d3, double a0, double a1, double a2, double a3,
                             double a4, double a5, double a6, double a7, double b0, double b1, double b2, double b3,
                             double c0, double c1, double c2, double c3) {
    const double upper[4] = {a0, a2, a4, a6}, lower[4] = {a1, a3, a5, a7}, b[4] = {b0, b1, b2, b3};
    for (int q = 0; q < 4; ++q) {
        multiply_8x8x4(c0, c1, upper[q], b[q], c0, c1);
        multiply_8x8x4(c2, c3, lower[q], b[q], c2, c3);
    }
    d0 = c0, d1 = c1, d2 = c2, d3 = c3;
}

// Four 8 x 8 matrices of 16 bits: lane 8 i + r gives where row r of matrix i lies, lane l gets two neighbours of its row l / 4, or
// of its column l / 4.
inline void load_matrices(unsigned& d0, unsigned& d1, unsigned& d2, unsigned& d3, unsigned from, bool turned = false) {
    unsigned* const to[4] = {&d0, &d1, &d2, &d3};
    for (int i = 0; i < 4; ++i) {
        unsigned short pair[2];
        for (int e = 0; e < 2; ++e) {
            const int row = turned ? lane() % 4 * 2 + e : lane() / 4, column = turned ? lane() / 4 : lane() % 4 * 2 + e;
            pair[e] = ((const unsigned short*)(shared_origin + (int)shuffle(~0u, from, 8 * i + row, 32)))[column];
        }
        *to[i] = pair[0] | (unsigned)pair[1] << 16;
    }
}
inline void load_matrices_turned(unsigned& d0, unsigned& d1, unsigned& d2, unsigned& d3, unsigned from) {
    load_matrices(d0, d1, d2, d3, from, true);
}

inline float half_of(unsigned pair, int upper, bool is_bfloat) {
    unsigned short half = (unsigned short)(pair >> 16 * upper);
    const unsigned bits = (unsigned)half << 16;
    float x;
    if (is_bfloat) __builtin_memcpy(&x, &bits, sizeof x);
    else from_half(x, half);
    return x;
}

// A warp's product of 16 x 16 by 16 x 8, FP32 sums: lane l has rows l / 4 and l / 4 + 8 in turn and terms l % 4 * 2 on, then 8 terms on.
template <bool BFLOAT_PAIRS>
inline void multiply_pairs(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                           unsigned b0, unsigned b1, float, float, float, float) {
    struct Left { unsigned upper[2], lower[2]; };
    struct Right { unsigned part[2]; };
    const int row = lane() / 4 * 4, column = lane() % 4 * 2 * 4;
    Left a[4];
    Right b[2][4];
    for (int from = 0; from < 4; ++from) {
        a[from] = shuffle(~0u, Left{{a0, a2}, {a1, a3}}, row + from, 32);
        for (int c = 0; c < 2; ++c) b[c][from] = shuffle(~0u, Right{{b0, b1}}, column + 4 * c + from, 32);
    }
    float* const sums[4] = {&d0, &d1, &d2, &d3};
    for (int i = 0; i < 4; ++i)
        for (int term = 0; term < 16; ++term) {
            const unsigned* const left = i < 2 ? a[term % 8 / 2].upper : a[term % 8 / 2].lower;
            *sums[i] += half_of(left[term / 8], term % 2, BFLOAT_PAIRS) * half_of(b[i % 2][term % 8 / 2].part[term / 8], term % 2, BFLOAT_PAIRS);
        }
}
inline constexpr auto multiply_halves = multiply_pairs<false>, multiply_bfloats = multiply_pairs<true>;

template <class T, class F>
T atomically(T* at, F change) {
    begin_atomic(at);
    const T old = *at;
    *at = change(old);
    end_atomic();
    return old;
}

// The array in constant memory that an input passes through; of no bytes where there is none.
struct ConstantArray {
    unsigned char* begin;
    size_t bytes, element_bytes;
};

// Calls a kernel whose arguments lie at the addresses given; the runtime does not watch this.
template <class... Parameters, size_t... Index>
__attribute__((no_sanitize_thread)) void call(void (*kernel)(Parameters...), void** arguments,
                                              std::index_sequence<Index...>) {
    kernel(*(Parameters*)arguments[Index]...);
}

template <class... Parameters>
__attribute__((no_sanitize_thread)) void call(void (*kernel)(Parameters...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<Parameters...>{});
}
}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::current->thread_index)
#define blockIdx (cuda_on_cpu::current->block_index)
#define blockDim (cuda_on_cpu::current->block_size)
#define gridDim (cuda_on_cpu::current->grid_size)
constexpr int warpSize = 32;

#define __syncthreads() cuda_on_cpu::sync_block(__LINE__)
inline void __syncwarp(unsigned mask = 0xffffffffu) { cuda_on_cpu::sync_warp(mask); }
inline void __threadfence() { cuda_on_cpu::fence(); }
inline void __threadfence_block() {}

inline size_t __cvta_generic_to_shared(const void* at) {
    return (const unsigned char*)at - cuda_on_cpu::shared_origin;
}

template <class T> T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, cuda_on_cpu::lane() / width * width + (from & (width - 1)), width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, cuda_on_cpu::lane() ^ bits, width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, cuda_on_cpu::lane() + (int)by, width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    return cuda_on_cpu::shuffle(mask, value, cuda_on_cpu::lane() - (int)by, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return cuda_on_cpu::vote(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return cuda_on_cpu::vote(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return cuda_on_cpu::vote(mask, !predicate) == 0; }

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> void __stcs(T* at, T value) { *at = value; }

template <class T, class U> T atomicAdd(T* at, U by) {
    return cuda_on_cpu::atomically(at, [=](T old) { return T(old + by); });
}
template <class T, class U> T atomicMax(T* at, U other) {
    return cuda_on_cpu::atomically(at, [=](T old) { return old < T(other) ? T(other) : old; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
    return cuda_on_cpu::atomically(at, [=](unsigned old) { return old >= last ? 0u : old + 1; });
}
template <class T, class U> T atomicExch(T* at, U other) {
    return cuda_on_cpu::atomically(at, [=](T) { return T(other); });
}

inline unsigned __float_as_uint(float x) { unsigned bits; __builtin_memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
constexpr unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
constexpr unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
constexpr unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
constexpr unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
