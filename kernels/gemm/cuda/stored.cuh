// Elements as memory has them (STORED) apart from what is computed with (SCALAR), for kernels that serve all dtypes.
//
// Comes after half.cuh, epilogue.cuh and access.cuh, and before whatever needs SCALAR. Where the problem names SCALAR, both are
// that. Elements of 16 bits are widened as they are used, and a result is rounded once: sums and workspaces are float32.
// Constants are macros: a variable would be one more symbol in what compiles to the same without this file.

#ifdef SCALAR
#define STORED SCALAR
#define IS_HALF 0
__device__ __forceinline__ SCALAR used(STORED x) { return x; }
__device__ __forceinline__ STORED stored(SCALAR x) { return x; }
#else
#define STORED unsigned short
#define SCALAR float
#define IS_HALF 1
template <> struct AccessOf<2> { using Type = unsigned short; };
__device__ __forceinline__ SCALAR used(STORED x) { return widened(x); }
__device__ __forceinline__ STORED stored(SCALAR x) { return rounded(x); }
#endif

#define WIDEST (16 / (int)sizeof(STORED))  // elements of a 128-bit access

// Neighbours in memory that one access moves.
template <int WIDTH>
struct alignas(WIDTH * sizeof(STORED)) Piece {
    STORED element[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ Piece<WIDTH> read_piece(const STORED* from)
{
    Piece<WIDTH> piece;
    using Type = Access<WIDTH * sizeof(STORED)>;
    *(Type*)&piece = *(const Type*)from;
    return piece;
}
