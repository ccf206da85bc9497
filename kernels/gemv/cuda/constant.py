"""gemv on CUDA: x in constant memory."""

from pathlib import Path

from tuner import (
    DTYPE_BYTES,
    Config,
    Constraint,
    Kernel,
    Launch,
    Pieces,
    Problem,
    Source,
    ceil_div,
    choice,
    powers_of_two,
)

from ._rows import piece_within_x

#: Constant memory of a module (CUDA C++ Programming Guide, compute capabilities).
CONSTANT_BYTES = 64 << 10


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(
        grid=(ceil_div(p.m, c.BLOCK),), block=(c.BLOCK,), pieces=Pieces("piece", "x", elements=c.PIECE)
    )


KERNEL = Kernel(
    operation="gemv",
    name="constant",
    target="cuda",
    source=Source(Path("constant.cu")),
    idea="x in constant memory, in pieces if it has more than 64 KB; a thread per row",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        powers_of_two("PIECE", 256, 16384),
        choice("UNROLL", 1, 4, 8, 16),
    ),
    constraints=(
        Constraint(
            "a piece of x fits into constant memory",
            lambda p, d, c: DTYPE_BYTES[p.dtype] * c.PIECE <= CONSTANT_BYTES,
        ),
        piece_within_x(least=256),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BLOCK},
    starts=({"BLOCK": 256, "PIECE": 4096, "UNROLL": 1},),
)
