"""gemm on CUDA, first step of the ladder: a thread per element of C."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, Scope, Source, ceil_div, choice
from tuner.declare.rules import threads_fit

from ._operands import finished_as_they_lie, padded_rows
from ._rules import padded_only_where_needed


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.BLOCK_X) * ceil_div(p.m, c.BLOCK_Y)
    return Launch(grid=(blocks,), block=(c.BLOCK_X, c.BLOCK_Y), padded=padded_rows(p, c))


KERNEL = Kernel(
    operation="gemm",
    name="naive",
    target="cuda",
    source=Source(Path("naive.cu"), includes=(Path("sum.cuh"), Path("epilogue.cuh"))),
    idea="a thread per element of C, operands read from global memory",
    parameters=(
        choice("BLOCK_X", 4, 8, 16, 32, 64, 128, 256),
        choice("BLOCK_Y", 1, 2, 4, 8, 16, 32),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        threads_fit(lambda p, c: c.BLOCK_X * c.BLOCK_Y),
        padded_only_where_needed(),
        finished_as_they_lie(),
    ),
    scope=Scope(epilogues=True),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BLOCK_Y, "n": c.BLOCK_X},
    starts=({"BLOCK_X": 32, "BLOCK_Y": 8, "ACCUMULATE": "plain", "PITCH": 1},),
)
