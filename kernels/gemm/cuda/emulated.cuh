// What packing and product of the emulated gemm share: the packed form of an operand, and the verdict on both.
//
// Packed form of an operand of `rows` rows (m of A, n of B) by k terms, whatever its layout was:
//   Header                       what its elements look like
//   factors [chunk][group]       float: a power of two by which the CHUNK terms of a group of rows are to be multiplied;
//                                0 if all are zero. A's groups are single rows, B's are of SHARE neighbours
//   data [k / 32][row]           128 bytes: 32 high parts, then 32 low parts, FP16, 16-byte chunk c at c ^ (row % 8)
// Rows are padded to 8, terms to CHUNK, with zeros. Any tile of rows is contiguous, so that one bulk copy fetches it.
//
// An element x is scaled by 1 / factor, so that the largest of its group's chunk lies in [2^14, 2^15), then split:
// high = fp16(scaled), low = fp16((scaled - high) * 2^LOW_SHIFT). With LOW_SHIFT = 11 the error is at most
// 2^-23 of x if x is at least 2^-28 of that largest, else 2^-50 of that largest (docs/kernels/gemm-emulated.md).

constexpr int ROW_BYTES = 128, ROW_TERMS = 32, ROWS_PADDED = 8;
constexpr int BLOCKS_OF_CHUNK = CHUNK / ROW_TERMS;
constexpr int TOP = 14;  // exponent of the largest scaled element

// Counts of a row's chunk, the largest over all chunks of an operand that are not all zero. "Largest" is the group's.
struct Spread {
    unsigned small_8;   // elements below 2^-7 of the largest: all that are not above 2^-8 of it, and a few more
    unsigned small_18;  // the same for 2^-17 and 2^-18. Zeros count
    unsigned harmful;   // elements but zeros below 2^-29 of the largest: their error may exceed 2^-21 of themselves
    unsigned highest;   // biased exponent of the largest element; 255 for Inf and NaN, 0 if all are zero
    unsigned lowest;    // 255 - biased exponent of the group's chunk whose largest is least
};
constexpr int SPREAD_FIELDS = 5;

// Chunks of CHUNK terms, and the last one if it has fewer.
struct Header { Spread spread[2]; };
constexpr int HEADER_BYTES = 256;

// In the workspace. All but the last field is zero before and after each run.
struct Control {
    unsigned arrived;        // blocks that have packed
    Spread running[2][2];    // of A and B
    unsigned padding[11];
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
