// A running sum of products, plain or compensated (Kahan 1965, "Further remarks on reducing truncation errors").
//
// Plain: one fused multiply-add a term. Kahan: the rounding error of an addition is kept and subtracted from the next
// term, for three more additions a term. Each operation is an intrinsic, because the compiler must not fuse or reorder
// any of them: that would make the compensation zero.

#define ACCUMULATE_IS_KAHAN (ACCUMULATE == ACCUMULATE_kahan)

struct Sum {
    SCALAR total = 0;
    SCALAR lost = 0;  // what `total` has too much; unused, and gone, where sums are plain

    __device__ void add(float left, float right)
    {
#if ACCUMULATE_IS_KAHAN
        const float term = __fmaf_rn(left, right, -lost);
        const float grown = __fadd_rn(total, term);
        lost = __fsub_rn(__fsub_rn(grown, total), term);
        total = grown;
#else
        total += left * right;
#endif
    }

    __device__ void add(double left, double right)
    {
#if ACCUMULATE_IS_KAHAN
        const double term = __fma_rn(left, right, -lost);
        const double grown = __dadd_rn(total, term);
        lost = __dsub_rn(__dsub_rn(grown, total), term);
        total = grown;
#else
        total += left * right;
#endif
    }
};

// Elements between the starts of two rows that hold `length` elements, where rows are padded to a multiple of `unit`.
__device__ size_t pitch(int length, int unit)
{
    return ((size_t)length + unit - 1) / unit * unit;
}

