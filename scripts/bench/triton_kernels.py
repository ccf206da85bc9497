"""Kernels of Triton's that are measured by `scripts/bench/triton`, and one that is told to fail."""

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
def grouped(a, b, rows, c, M, N, K, E, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """So many rows of A in turn have a B of their own; the last of E has what is left."""
    tile, across = tl.program_id(0) // ((N + BN - 1) // BN), tl.program_id(0) % ((N + BN - 1) // BN)
    first, end, expert, begin, before = M, M, 0, 0, 0
    for e in range(0, E):
        stop = tl.where(e == E - 1, M, tl.minimum(begin + tl.load(rows + e), M))
        behind = before + (stop - begin + BM - 1) // BM
        is_here = (before <= tile) & (tile < behind)
        first = tl.where(is_here, begin + (tile - before) * BM, first)
        end, expert = tl.where(is_here, stop, end), tl.where(is_here, e, expert)
        begin, before = stop, behind
    m, n = first + tl.arange(0, BM)[:, None], across * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        left = tl.load(a + m * K + k[None, :], mask=(m < end) & (k[None, :] < K), other=0.0)
        right = tl.load(b + (expert * K + k[:, None]) * N + n, mask=(k[:, None] < K) & (n < N), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + m * N + n, total.to(tl.float16), mask=(m < end) & (n < N))


@triton.jit
def softmax(x, out, rows, columns, WIDTH: tl.constexpr, PROGRAMS: tl.constexpr):
    at = tl.arange(0, WIDTH)
    for row in range(tl.program_id(0), rows, PROGRAMS):
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


@triton.jit
def twice(x, out, n, BLOCK: tl.constexpr, FAULT: tl.constexpr = 0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULT == 1:  # crashes: far behind the array
        tl.store(out + at + (1 << 44), 0.0)
    value = 0.0
    while (FAULT == 2) & (value != 0.5):  # hangs
        value = tl.atomic_add(out, 0.0) * 0.0
    wrong = tl.where(FAULT == 3, 1.0, 0.0)  # 3 computes something else, 4 leaves out the last block
    written = (at < n) & ((FAULT != 4) | (tl.program_id(0) + 1 < tl.num_programs(0)))
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n) + wrong, mask=written)
