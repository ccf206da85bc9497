"""C = op(A) op(B): a program computes a tile of BM x BN, from BK terms at a time.

Triton divides a tile among num_warps warps, and loads the next num_stages - 1 steps ahead.
"""

# ruff: noqa: ANN001, ANN201, D103
import triton
import triton.language as tl


@triton.jit
def gemm(
    a, b, c, m, n, k, A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Programs go down GROUP tiles, then to the right: in the cache those that run at once share what they read.
    tile, across, down = tl.program_id(0), (n + BN - 1) // BN, (m + BM - 1) // BM
    band, place = tile // (GROUP * across), tile % (GROUP * across)
    height = tl.minimum(down - band * GROUP, GROUP)
    # 64 bits: an array may have more elements than 32 bits count.
    row = ((band * GROUP + place % height) * BM + tl.arange(0, BM)).to(tl.int64)[:, None]
    column = (place // height * BN + tl.arange(0, BN)).to(tl.int64)[None, :]
    term = tl.arange(0, BK).to(tl.int64)
    a_step = tl.cast(m, tl.int64) if A_TRANSPOSED else 1
    b_step = 1 if B_TRANSPOSED else tl.cast(n, tl.int64)
    a_at = a + row * (1 if A_TRANSPOSED else k) + term[None, :] * a_step
    b_at = b + column * (k if B_TRANSPOSED else 1) + term[:, None] * b_step
    total = tl.full((BM, BN), 0.0, tl.float32)
    for start in range(0, k, BK):
        left = tl.load(a_at, mask=(row < m) & (term[None, :] < k - start), other=0.0)
        right = tl.load(b_at, mask=(term[:, None] < k - start) & (column < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")  # no TF32
        a_at += BK * a_step
        b_at += BK * b_step
    tl.store(c + row * n + column, total.to(c.dtype.element_ty), mask=(row < m) & (column < n))
