"""gemm on CUDA, second step of the ladder: the row of A in shared memory."""

from pathlib import Path

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Padded,
    Problem,
    ceil_div,
    choice,
    powers_of_two,
)

#: Static shared memory that a block may have (CUDA C++ Programming Guide, compute capabilities).
STATIC_SHARED_BYTES = 48 << 10


def _launch(p: Problem, c: Config) -> Launch:
    padded = Padded.rows_of(p.tensors, c.PITCH) if c.PITCH > 1 else ()
    return Launch(grid=(p.m * ceil_div(p.n, c.BLOCK * c.COLUMNS),), block=(c.BLOCK,), padded=padded)


KERNEL = Kernel(
    operation="gemm",
    name="row_shared",
    target="cuda",
    source=Path("row_shared.cu"),
    includes=(Path("sum.cuh"),),
    idea="a block per stretch of a row of C, the row of A in shared memory",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        choice("COLUMNS", 1, 2, 4),
        choice("PIECE", 256, 1024, 4096, 16384),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        Constraint(
            "a piece of the row fits into static shared memory",
            lambda p, d, c: DTYPE_BYTES[p.dtype] * c.PIECE <= STATIC_SHARED_BYTES,
        ),
        Constraint(
            "a piece of the row is less than twice as long as the row, or the shortest",
            lambda p, d, c: (c.PIECE == 256) | (2 * p.k > c.PIECE),
            for_speed=True,
        ),
        Constraint(
            "a block's stretch is less than twice as long as a row of C, or the shortest",
            lambda p, d, c: (c.BLOCK * c.COLUMNS == 32) | (2 * p.n > c.BLOCK * c.COLUMNS),
            for_speed=True,
        ),
        Constraint(
            "rows are padded only where some are not of such a length already",
            lambda p, d, c: (c.PITCH == 1) | (sum(each.shape[1] % c.PITCH for each in p.tensors) > 0),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK": 256, "COLUMNS": 1, "PIECE": 1024, "ACCUMULATE": "plain", "PITCH": 1},
)
