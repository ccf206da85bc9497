// What packing and product of the emulated gemm share: the packed form of an operand, and the verdict on both.
//
// Packed form of an operand of `rows` rows (m of A, n of B) by k terms, whatever its layout was:
//   Header                       what its elements look like
//   factors [chunk][group]       float: a power of two by which the CHUNK terms of a group of rows are to be multiplied;
//                                0 if all are zero. A's groups are single rows, B's are of SHARE neighbours
//   data [k / 32][row]           128 bytes: 32 high parts, then 32 low parts, FP16, 16-byte chunk c at c ^ (row % 8)
// Rows are padded to 8, terms to CHUNK, with zeros. Any tile of rows is contiguous, so that one bulk copy fetches it.
//
// An element x is scaled by 1 / |factor|, so that the largest of its group's chunk lies in [2^15, 2^16), or a hair below where
// FP16 would round it up to infinity, then split:
// high = fp16(scaled), low = fp16(scaled - high). Low parts end at 2^-24, so that elements below 2^-5 would lose more than
// 2^-20 of themselves. Groups that have such elements keep low * 2^LOW_SHIFT instead, and a negative factor says so; what is
// below 2^-15 even then may lose more than 2^-21 and is counted as harmful (docs/log/kernels/gemm-emulated.md).

// SHOWN, which ladders alone have: 1 for one FP16 product, 3 for all three; without scales, check or sums outside of wgmma.

#ifndef SHOWN
#define SHOWN 0
#endif

constexpr int ROW_BYTES = 128, ROW_TERMS = 32, ROWS_PADDED = 8;
constexpr int BLOCKS_OF_CHUNK = CHUNK / ROW_TERMS;
constexpr int TOP = 15;        // exponent of the largest scaled element
constexpr int LOW_SHIFT = 11;
constexpr int SHARE = 8;       // columns of B that share a factor: one factor serves a wgmma's eight columns of all lanes

// Counts of a row's chunk, the largest over all chunks of an operand that are not all zero. "Largest" is the group's.
struct Spread {
    unsigned small_8;   // elements that may be below 2^-8 of the largest; zeros count
    unsigned small_18;  // the same for 2^-18
    unsigned harmful;   // elements but zeros that may be below 2^-30 of the largest
    unsigned filled;    // elements but zeros
    unsigned highest;   // biased exponent of the largest element; 255 for Inf and NaN, 0 if all are zero
    unsigned lowest;    // 255 - biased exponent of the group's chunk whose largest is least
};
constexpr int SPREAD_FIELDS = 6;

// Chunks of CHUNK terms, and the last one if it has fewer.
struct Header { Spread spread[2]; };
constexpr int HEADER_BYTES = 256;

// In the workspace. All but the last field is zero before and after each run.
struct Control {
    unsigned arrived;        // blocks that have packed
    Spread running[2][2];    // of A and B
    unsigned padding[7]; 
    unsigned fall_back;      // 1: the product is the plain kernel's to compute; 0: the emulated one's
};

__host__ __device__ constexpr size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }

struct Packed {
    Header* header;
    float* factors;
    unsigned char* data;
    unsigned rows;    // padded
    unsigned chunks;
    unsigned groups;  // factors of a chunk, padded to 16 bytes
};

// Rows of B that share a factor; those of A have one each.
__device__ __forceinline__ Packed packed_at(const void* memory, int rows, int k, unsigned share)
{
    unsigned char* const at = (unsigned char*)memory;
    const unsigned padded = (unsigned)round_up(rows, ROWS_PADDED), chunks = (k - 1) / CHUNK + 1;
    const unsigned groups = (unsigned)round_up(padded / share, 4);
    const size_t factors = round_up((size_t)chunks * groups * sizeof(float), HEADER_BYTES);
    return {(Header*)at, (float*)(at + HEADER_BYTES), at + HEADER_BYTES + factors, padded, chunks, groups};
}
