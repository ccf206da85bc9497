"""gemm on CUDA, third step of the ladder: square tiles in shared memory, a thread per element."""

from pathlib import Path

from tuner import Config, Constraint, Kernel, Launch, Padded, Problem, Scope, Source, ceil_div, choice

from ._operands import finished_as_they_lie, padded_rows
from ._rules import padded_only_where_needed


def _launch(p: Problem, c: Config) -> Launch:
    padded = padded_rows(p, c)
    if c.BORDER == "pad":
        padded = Padded.rows_of(p.tensors, max(c.BLOCK, c.PITCH), c.BLOCK)
    blocks = ceil_div(p.n, c.BLOCK) * ceil_div(p.m, c.BLOCK)
    return Launch(grid=(blocks,), block=(c.BLOCK, c.BLOCK), padded=padded)


KERNEL = Kernel(
    operation="gemm",
    name="tiled",
    target="cuda",
    source=Source(Path("tiled.cu"), includes=(Path("sum.cuh"), Path("epilogue.cuh"))),
    idea="square tiles of A and B in shared memory, a thread per element of C",
    parameters=(
        choice("BLOCK", 4, 8, 16, 32),
        choice("BORDER", "check", "pad"),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        padded_only_where_needed(),
        finished_as_they_lie(),
        Constraint(
            "an epilogue's operands are not copied to whole tiles",
            lambda p, d, c: (p.epilogue == "") | (c.BORDER == "check"),
        ),
    ),
    scope=Scope(epilogues=True),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BLOCK, "n": c.BLOCK},
    starts=({"BLOCK": 32, "BORDER": "check", "ACCUMULATE": "plain", "PITCH": 1},),
)
