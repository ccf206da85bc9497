// The epilogue of a product: activation(alpha * sum + beta * c_in + bias) + residual, between registers and memory.
//
// Comes before a kernel's source. Macros in front of the text say which parts
// the problem declares: EPILOGUE (1), EPILOGUE_ALPHA, EPILOGUE_BETA, EPILOGUE_BIAS (1 for each row, 2 for each column),
// EPILOGUE_ACTIVATION (1 relu, 2 GELU by erf, 3 GELU by tanh, 4 SiLU), EPILOGUE_RESIDUAL. Without them the sum is the result.
// A kernel takes EPILOGUE_OPERANDS before C, and EPILOGUE_FACTORS behind its other scalars; its functions take
// EPILOGUE_PARAMETER last and are given EPILOGUE_OF_KERNEL, or EPILOGUE_PASSED on; EPILOGUE_RESULT is what is stored for a sum.
// Where there is no epilogue, none of these leaves anything: a kernel's source is then what it was without this file.
//
// Memory   c_in and residual are read once, m x n as C; a bias has an element for each row or column. All are dense.
// Numbers  FP32, rounded once to C's elements.

#ifdef SCALAR
#define EPILOGUE_STORED SCALAR
#else
#define EPILOGUE_STORED unsigned short
#endif
#if EPILOGUE_BETA
#define EPILOGUE_TAKES_C_IN const EPILOGUE_STORED* __restrict__ c_in,
#define EPILOGUE_GIVES_C_IN c_in,
#define EPILOGUE_TAKES_BETA , float beta
#define EPILOGUE_GIVES_BETA beta,
#else
#define EPILOGUE_TAKES_C_IN
#define EPILOGUE_GIVES_C_IN
#define EPILOGUE_TAKES_BETA
#define EPILOGUE_GIVES_BETA
#endif
#if EPILOGUE_BIAS
#define EPILOGUE_TAKES_BIAS const EPILOGUE_STORED* __restrict__ bias,
#define EPILOGUE_GIVES_BIAS bias,
#else
#define EPILOGUE_TAKES_BIAS
#define EPILOGUE_GIVES_BIAS
#endif
#if EPILOGUE_RESIDUAL
#define EPILOGUE_TAKES_RESIDUAL const EPILOGUE_STORED* __restrict__ residual,
#define EPILOGUE_GIVES_RESIDUAL residual,
#else
#define EPILOGUE_TAKES_RESIDUAL
#define EPILOGUE_GIVES_RESIDUAL
#endif
#if EPILOGUE_ALPHA
#define EPILOGUE_TAKES_ALPHA , float alpha
#define EPILOGUE_GIVES_ALPHA alpha,
#else
#define EPILOGUE_TAKES_ALPHA
#define EPILOGUE_GIVES_ALPHA
#endif
#define EPILOGUE_OPERANDS EPILOGUE_TAKES_C_IN EPILOGUE_TAKES_BIAS EPILOGUE_TAKES_RESIDUAL
#define EPILOGUE_FACTORS EPILOGUE_TAKES_ALPHA EPILOGUE_TAKES_BETA
// What a kernel's arguments make of it.
#define EPILOGUE_GIVEN                                                                                                         \
    Epilogue { EPILOGUE_GIVES_C_IN EPILOGUE_GIVES_BIAS EPILOGUE_GIVES_RESIDUAL EPILOGUE_GIVES_ALPHA EPILOGUE_GIVES_BETA }

#if EPILOGUE
#define EPILOGUE_PARAMETER , const Epilogue& epilogue
#define EPILOGUE_PASSED , epilogue
#define EPILOGUE_OF_KERNEL , EPILOGUE_GIVEN
#define EPILOGUE_RESULT(sum, row, column, n) epilogue(sum, row, column, n)

// Two neighbours of a row.
struct EpiloguePair {
    float left, right;
};

__device__ __forceinline__ float epilogue_value(float x) { return x; }
#ifndef SCALAR
__device__ __forceinline__ float epilogue_value(unsigned short x)
{
#if BFLOAT
    return __uint_as_float((unsigned)x << 16);
#else
    float wide;
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#endif
}
#endif

#ifndef SCALAR
// What is rounded to 16 bits afterwards may take the special functions' unit. Its rate is an eighth of the other instructions'.
__device__ __forceinline__ float epilogue_power(float t)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
    return power;
}

__device__ __forceinline__ float epilogue_reciprocal(float x)
{
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

// The denominator of GELU and SiLU, bounded so that a product of two is finite: two results share a reciprocal. A NaN must not
// reach its neighbour by it: fminf leaves it out, and it stays by the quotient.
__device__ __forceinline__ float epilogue_denominator(float x)
{
    constexpr float LOG2_E = 1.44269504f, MOST = 60.0f;
#if EPILOGUE_ACTIVATION == 2
    return 1.0f + 0.3275911f * 0.70710678f * fminf(fabsf(x), MOST);
#elif EPILOGUE_ACTIVATION == 3
    constexpr float LINEAR = -2.0f * LOG2_E * 0.79788456f, CUBIC = LINEAR * 0.044715f;
    return 1.0f + epilogue_power(fminf(x * (LINEAR + CUBIC * x * x), MOST));
#else
    return 1.0f + epilogue_power(fminf(-LOG2_E * x, MOST));
#endif
}

// GELU or SiLU of x, given the reciprocal of its denominator.
__device__ __forceinline__ float epilogue_quotient(float x, float reciprocal)
{
#if EPILOGUE_ACTIVATION == 2
    // Abramowitz and Stegun 7.1.26: the normal distribution's tail beyond |x|, to 8e-8.
    constexpr float HALF_LOG2_E = 0.72134752f;
    float size;  // NaN if x is
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(size) : "f"(fabsf(x)), "f"(60.0f));
    const float t = reciprocal;
    const float tail = t * (0.127414796f + t * (-0.142248368f + t * (0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f))));
    return fmaxf(x, 0.0f) - size * (tail * epilogue_power(-HALF_LOG2_E * size * size));
#else
    return x * reciprocal;
#endif
}
#endif

#if EPILOGUE_ACTIVATION == 3 && !defined(SCALAR) && BFLOAT
#define EPILOGUE_BY_TANH 1
#else
#define EPILOGUE_BY_TANH 0
#endif
#if EPILOGUE_BY_TANH
// GELU by the instruction for tanh, whose error of 2^-11 leaves one of 2^-12 |x|: a quarter of what BF16's rounding of x is.
__device__ __forceinline__ float epilogue_by_tanh(float x)
{
    const float half = 0.5f * x;
    float tanh;
    asm("tanh.approx.f32 %0, %1;" : "=f"(tanh) : "f"(x * (0.79788456f + 0.79788456f * 0.044715f * x * x)));
    return half * tanh + half;
}
#endif

__device__ __forceinline__ float epilogue_activation(float x)
{
#if EPILOGUE_ACTIVATION == 1
    return x < 0.0f ? 0.0f : x;  // NaN stays
#elif EPILOGUE_ACTIVATION == 0
    return x;
#elif EPILOGUE_BY_TANH
    return epilogue_by_tanh(x);
#elif !defined(SCALAR)
    return epilogue_quotient(x, epilogue_reciprocal(epilogue_denominator(x)));
#elif EPILOGUE_ACTIVATION == 2
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#elif EPILOGUE_ACTIVATION == 3
    return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
#else
    return x / (1.0f + expf(-x));
#endif
}

// Of two at once.
__device__ __forceinline__ void epilogue_activation(float& left, float& right)
{
#if EPILOGUE_ACTIVATION >= 2 && !defined(SCALAR) && !EPILOGUE_BY_TANH
    const float of_left = epilogue_denominator(left), of_right = epilogue_denominator(right);
    const float both = epilogue_reciprocal(of_left * of_right);
    left = epilogue_quotient(left, both * of_right), right = epilogue_quotient(right, both * of_left);
#else
    left = epilogue_activation(left), right = epilogue_activation(right);
#endif
}

struct Epilogue {
#if EPILOGUE_BETA
    const EPILOGUE_STORED* c_in;
#endif
#if EPILOGUE_BIAS
    const EPILOGUE_STORED* bias;
#endif
#if EPILOGUE_RESIDUAL
    const EPILOGUE_STORED* residual;
#endif
#if EPILOGUE_ALPHA
    float alpha;
#endif
#if EPILOGUE_BETA
    float beta;
#endif

    // The result of a sum in that row and column of C, whose rows have n elements.
    __device__ __forceinline__ float operator()(float sum, unsigned row, unsigned column, unsigned n) const
    {
        const size_t at = (size_t)row * n + column;
        (void)at;
#if EPILOGUE_ALPHA
        sum *= alpha;
#endif
#if EPILOGUE_BETA
        sum += beta * epilogue_value(c_in[at]);
#endif
#if EPILOGUE_BIAS == 1
        sum += epilogue_value(bias[row]);
#elif EPILOGUE_BIAS == 2
        sum += epilogue_value(bias[column]);
#endif
        sum = epilogue_activation(sum);
#if EPILOGUE_RESIDUAL
        sum += epilogue_value(residual[at]);
#endif
        return sum;
    }

#ifndef SCALAR
    // Two elements of 16 bits at once, where they are aligned to it.
    static __device__ __forceinline__ EpiloguePair split(unsigned both)
    {
        return {epilogue_value((unsigned short)both), epilogue_value((unsigned short)(both >> 16))};
    }
    static __device__ __forceinline__ EpiloguePair pair_at(const unsigned short* from) { return split(*(const unsigned*)from); }

    // The results of two neighbours of a row, whose bias that is; the column is even, and so is n.
    __device__ __forceinline__ void two(float& left, float& right, const EpiloguePair& of_bias, unsigned row, unsigned column,
                                        unsigned n) const
    {
        const size_t at = (size_t)row * n + column;
        (void)at;
#if EPILOGUE_ALPHA
        left *= alpha, right *= alpha;
#endif
#if EPILOGUE_BETA
        const EpiloguePair added = pair_at(c_in + at);
        left += beta * added.left, right += beta * added.right;
#endif
#if EPILOGUE_BIAS
        left += of_bias.left, right += of_bias.right;
#endif
        epilogue_activation(left, right);
#if EPILOGUE_RESIDUAL
        const EpiloguePair last = pair_at(residual + at);
        left += last.left, right += last.right;
#endif
    }
#endif
};

#ifndef SCALAR
// The bias of a warp's rows and columns, asked for while products are under way, so that nobody waits for it: of each column's
// pairs a lane has every 32nd, of the 16 rows its own two.
template <int COUNT> struct BiasAhead {
    unsigned held[EPILOGUE_BIAS == 1 ? 2 : (COUNT + 31) / 32];

    __device__ __forceinline__ void ask(const Epilogue& epilogue, int row, int column, int m, int n)
    {
        (void)epilogue, (void)row, (void)column, (void)m, (void)n;
        const int lane = threadIdx.x % 32;
        (void)lane;
#if EPILOGUE_BIAS == 1
#pragma unroll
        for (int h = 0; h < 2; ++h) held[h] = epilogue.bias[min(row + lane / 4 + h * 8, m - 1)] * 0x10001u;
#elif EPILOGUE_BIAS == 2
        if (n % 2) return;
#pragma unroll
        for (int i = 0; i < (COUNT + 31) / 32; ++i)
            held[i] = *(const unsigned*)(epilogue.bias + min(column + (i * 32 + lane) * 2, n - 2));
#endif
    }

    // That of a thread's two neighbours among the eight columns `j`, in the upper or the lower one of its rows.
    __device__ __forceinline__ EpiloguePair of(int j, int h) const
    {
        (void)j, (void)h;
#if EPILOGUE_BIAS == 1
        return Epilogue::split(held[h]);
#elif EPILOGUE_BIAS == 2
        return Epilogue::split(__shfl_sync(~0u, held[j / 8], j % 8 * 4 + threadIdx.x % 4));
#else
        return {0.0f, 0.0f};
#endif
    }
};

// Finishes what a thread of a warp has of the 16 rows from `row` on and COUNT / 4 times 8 columns from `column` on, as wgmma and
// mma leave it: of each eight columns two neighbours, in rows eight apart.
template <int COUNT>
__device__ __forceinline__ void finish_fragments(float (&s)[COUNT], const Epilogue& epilogue, const BiasAhead<COUNT>& ahead, int row,
                                                 int column, int m, int n)
{
    const int lane = threadIdx.x % 32, first_row = row + lane / 4, first_column = column + lane % 4 * 2;
    if (n % 2 == 0) {
        // Beyond the edges the last elements are read, and what comes of them is not stored: loads need no branches.
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            const EpiloguePair of_columns = ahead.of(j, 0);  // shuffled once
#pragma unroll
            for (int h = 0; h < 2; ++h)
                epilogue.two(s[4 * j + 2 * h], s[4 * j + 2 * h + 1], EPILOGUE_BIAS == 1 ? ahead.of(j, h) : of_columns,
                             min(first_row + h * 8, m - 1), min(first_column + j * 8, n - 2), n);
        }
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int line = first_row + h * 8;
        if (line >= m) continue;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            const int x = first_column + j * 8;
            float &left = s[4 * j + 2 * h], &right = s[4 * j + 2 * h + 1];
            if (x < n) left = epilogue(left, line, x, n);
            if (x + 1 < n) right = epilogue(right, line, x + 1, n);
        }
    }
}
#endif
#else
#define EPILOGUE_PARAMETER
#define EPILOGUE_PASSED
#define EPILOGUE_OF_KERNEL
#define EPILOGUE_RESULT(sum, row, column, n) sum
#endif
