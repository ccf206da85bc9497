// wgmma for operands that both lie in shared memory: 64 rows by WIDTH columns by the terms in 32 bytes, FP32 sums in registers. sm_90a.
// Operands of 8 bits (EIGHT) are e4m3, one may be e5m2 (A_E5M2, B_E5M2), and their terms are contiguous; of 16 bits either dimension is.
//
// PTX names each register of the sums, so that every WIDTH is a statement of its own.

constexpr int SUMS = WIDTH / 2;  // registers that hold a thread's share of 64 x WIDTH sums

#if EIGHT
#if SWAP ? B_E5M2 : A_E5M2
#define WGMMA_TYPES "k32.f32.e5m2.e4m3"
#elif A_E5M2 || B_E5M2
#define WGMMA_TYPES "k32.f32.e4m3.e5m2"
#else
#define WGMMA_TYPES "k32.f32.e4m3.e4m3"
#endif
#define WGMMA_ALONG(a, b)
#elif BFLOAT
#define WGMMA_TYPES "k16.f32.bf16.bf16"
#define WGMMA_ALONG(a, b) ", %" #a ", %" #b
#else
#define WGMMA_TYPES "k16.f32.f16.f16"
#define WGMMA_ALONG(a, b) ", %" #a ", %" #b
#endif

#define NAMED_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMED_1 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMED_2 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMED_3 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMED_4 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMED_5 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMED_6 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define NAMED_7 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define HELD_8(t, i) "+f"(t[i + 0]), "+f"(t[i + 1]), "+f"(t[i + 2]), "+f"(t[i + 3]), "+f"(t[i + 4]), "+f"(t[i + 5]), "+f"(t[i + 6]), "+f"(t[i + 7])
#define HELD(t, i) HELD_8(t, i), HELD_8(t, i + 8)

// Starts t = a * b, or t += a * b if `add`. Valid between begin_products and await_products.
__device__ __forceinline__ void multiply_async(float (&t)[SUMS], unsigned long long a, unsigned long long b, int add)
{
#if WIDTH == 32
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32" WGMMA_TYPES " {"
                 NAMED_0
                 "}, %16, %17, p, 1, 1" WGMMA_ALONG(19, 20) "; }"
                 : HELD(t, 0)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 64
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1
                 "}, %32, %33, p, 1, 1" WGMMA_ALONG(35, 36) "; }"
                 : HELD(t, 0), HELD(t, 16)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 96
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2
                 "}, %48, %49, p, 1, 1" WGMMA_ALONG(51, 52) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 128
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3
                 "}, %64, %65, p, 1, 1" WGMMA_ALONG(67, 68) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 144
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3 ",%64,%65,%66,%67,%68,%69,%70,%71"
                 "}, %72, %73, p, 1, 1" WGMMA_ALONG(75, 76) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48), HELD_8(t, 64)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 160
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3 "," NAMED_4
                 "}, %80, %81, p, 1, 1" WGMMA_ALONG(83, 84) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48), HELD(t, 64)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 192
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3 "," NAMED_4 "," NAMED_5
                 "}, %96, %97, p, 1, 1" WGMMA_ALONG(99, 100) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48), HELD(t, 64), HELD(t, 80)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 224
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3 "," NAMED_4 "," NAMED_5 "," NAMED_6
                 "}, %112, %113, p, 1, 1" WGMMA_ALONG(115, 116) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48), HELD(t, 64), HELD(t, 80), HELD(t, 96)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#elif WIDTH == 256
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256" WGMMA_TYPES " {"
                 NAMED_0 "," NAMED_1 "," NAMED_2 "," NAMED_3 "," NAMED_4 "," NAMED_5 "," NAMED_6 "," NAMED_7
                 "}, %128, %129, p, 1, 1" WGMMA_ALONG(131, 132) "; }"
                 : HELD(t, 0), HELD(t, 16), HELD(t, 32), HELD(t, 48), HELD(t, 64), HELD(t, 80), HELD(t, 96), HELD(t, 112)
                 : "l"(a), "l"(b), "r"(add), "n"(A_ALONG_M), "n"(B_ALONG_N));
#else
#error "WIDTH is a multiple of 32 up to 256, or 144"
#endif
}

// Sums were touched by ordinary instructions: wgmma may use them from here on.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LATER groups of products are under way.
template <int LATER> __device__ __forceinline__ void await_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

// What is done to `t` stays before what follows, or after what came before.
__device__ __forceinline__ void keep_in_place(float (&t)[SUMS])
{
#pragma unroll
    for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(t[i])::"memory");
}
