"""gemv on CUDA: x through shared memory."""

from pathlib import Path

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, ceil_div, choice, powers_of_two

#: Static shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities).
STATIC_SHARED_BYTES = 48 << 10


def _launch(p: Problem, c: Config) -> Launch:
    rows = c.BLOCK if p.layout == "t" else c.BLOCK // 32
    return Launch(grid=(ceil_div(p.m, rows),), block=(c.BLOCK,))


KERNEL = Kernel(
    operation="gemv",
    name="shared",
    target="cuda",
    source=Path("shared.cu"),
    idea="x through shared memory, piece by piece; the inner loop unrolled",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        powers_of_two("PIECE", 64, 16384),
        choice("UNROLL", 1, 4, 8, 16, 32),
    ),
    constraints=(
        Constraint(
            "a piece of x fits into static shared memory",
            lambda p, d, c: DTYPE_BYTES[p.dtype] * c.PIECE <= STATIC_SHARED_BYTES,
        ),
        Constraint(
            "a piece of x is less than twice as long as x, or the smallest",
            lambda p, d, c: (c.PIECE == 64) | (2 * p.n > c.PIECE),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK": 256, "PIECE": 256, "UNROLL": 8},
)
