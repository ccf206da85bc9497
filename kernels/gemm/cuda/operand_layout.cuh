// How 16-bit operands lie in shared memory where tensor maps put them, swizzled by 128 bytes (lines of 64 bytes by 64), and how wgmma is told (its
// matrix descriptors: address / 16 in bits 0-13, leading offset / 16 in 16-29, stride offset / 16 in 32-45, swizzle in 62-63).

// Whether rows of the left operand and columns of the right one are contiguous; else terms are. With SWAP the product is C's
// transpose: the left operand is B's, the right one is A's.
constexpr int A_ALONG_M = SWAP ? !B_TRANSPOSED : A_TRANSPOSED, B_ALONG_N = SWAP ? A_TRANSPOSED : !B_TRANSPOSED;

// Where wgmma finds an operand whose terms are contiguous: rows of 128 bytes, 16-byte chunks swizzled by row, 8 rows a kilobyte.
// The next 16 terms are 32 bytes on.
__device__ __forceinline__ unsigned long long along_terms(unsigned address)
{
    return (unsigned long long)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The same where LINES rows (or columns), 64 or 32, are contiguous: the swizzle is of as many bytes as they are, 8 terms are a pattern
// of it, `depth` terms a box; the next LINES are a box on. The next 16 terms are two patterns on.
template <int LINES> __device__ __forceinline__ unsigned long long across_terms(unsigned address, int depth)
{
    constexpr unsigned long long SWIZZLE = LINES == 64 ? 1 : 2;
    return (unsigned long long)((address & 0x3FFFF) >> 4) | (unsigned long long)(depth * LINES / 8) << 16
           | (unsigned long long)LINES << 32 | SWIZZLE << 62;
}
