// How 16-bit operands lie in shared memory where tensor maps put them, swizzled by 128 bytes, and how wgmma is told (its
// matrix descriptors: address / 16 in bits 0-13, leading offset / 16 in 16-29, stride offset / 16 in 32-45, swizzle in 62-63).

// Whether rows of A and columns of B are contiguous; else terms are.
constexpr int A_ALONG_M = A_TRANSPOSED, B_ALONG_N = !B_TRANSPOSED;

// Where wgmma finds an operand whose terms are contiguous: rows of 128 bytes, 16-byte chunks swizzled by row, 8 rows a kilobyte.
// The next 16 terms are 32 bytes on.
__device__ __forceinline__ unsigned long long along_terms(unsigned address)
{
    return (unsigned long long)((address & 0x3FFFF) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The same where rows (or columns) are contiguous: 64 of them are 128 bytes, 8 terms a swizzled kilobyte, `depth` terms a box;
// the next 64 rows are a box on. The next 16 terms are two kilobytes on.
__device__ __forceinline__ unsigned long long across_terms(unsigned address, int depth)
{
    return (unsigned long long)((address & 0x3FFFF) >> 4) | (unsigned long long)(depth * 8) << 16 | 64ull << 32 | 1ull << 62;
}
