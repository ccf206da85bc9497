// 16-bit floating-point numbers as bits: bfloat16 where BFLOAT is 1, else float16. No header of CUDA is needed.

__device__ __forceinline__ float widened(unsigned short x)
{
    float wide;
#if BFLOAT
    wide = __uint_as_float((unsigned)x << 16);
#else
    asm volatile("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
#endif
    return wide;
}

__device__ __forceinline__ unsigned short rounded(float x)
{
    unsigned short bits;
#if BFLOAT
    asm volatile("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
    asm volatile("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#endif
    return bits;
}
