// 16-bit floating-point numbers as bits: bfloat16 where BFLOAT is 1, else float16. No header of CUDA is needed.

__device__ __forceinline__ float widened(unsigned short x)
{
#if BFLOAT
    return __uint_as_float((unsigned)x << 16);
#else
    float wide;
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#endif
}

// To the nearest, ties to even.
__device__ __forceinline__ unsigned short rounded(float x)
{
#if BFLOAT
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;  // NaN
    return (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
#else
    unsigned short half;
    asm volatile("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#endif
}
