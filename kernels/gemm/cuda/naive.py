"""gemm on CUDA, first step of the ladder: a thread per element of C."""

from pathlib import Path

from tuner.kernel import Kernel, Launch, ceil_div
from tuner.problem import Problem
from tuner.space import Config, Constraint, choice


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.BLOCK_X) * ceil_div(p.m, c.BLOCK_Y)
    return Launch(grid=(blocks,), block=(c.BLOCK_X, c.BLOCK_Y))


KERNEL = Kernel(
    operation="gemm",
    name="naive",
    target="cuda",
    source=Path("naive.cu"),
    idea="a thread per element of C, operands read from global memory",
    parameters=(
        choice("BLOCK_X", 4, 8, 16, 32, 64, 128, 256),
        choice("BLOCK_Y", 1, 2, 4, 8, 16, 32),
    ),
    constraints=(
        Constraint(
            "a block has no more threads than the device allows",
            lambda p, d, c: d.max_threads_per_block >= c.BLOCK_X * c.BLOCK_Y,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK_X": 32, "BLOCK_Y": 8},
)
