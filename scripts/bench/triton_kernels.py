"""Kernels of Triton's that are measured by `scripts/bench/triton`: a product, softmax, layer norm."""

# ruff: noqa: ANN001, ANN201, D103
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m * K + k[None, :], mask=(m < M) & (k[None, :] < K), other=0.0)
        right = tl.load(b + k[:, None] * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + m * N + n, total.to(tl.float16), mask=(m < M) & (n < N))


@triton.jit
def softmax(x, out, rows, columns, WIDTH: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, WIDTH)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), mask=at < columns)


@triton.jit
def layer_norm(x, out, rows, columns, BLOCK: tl.constexpr):
    row, total, squares = tl.program_id(0), 0.0, 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        total += tl.sum(values, 0)
        squares += tl.sum(values * values, 0)
    mean = total / columns
    scale = 1.0 / tl.sqrt(squares / columns - mean * mean + 1e-5)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        tl.store(out + row * columns + at, (values - mean) * scale, mask=at < columns)
