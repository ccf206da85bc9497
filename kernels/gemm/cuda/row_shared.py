"""gemm on CUDA, second step of the ladder: the row of A in shared memory."""

from pathlib import Path

from tuner import DTYPE_BYTES, Config, Kernel, Launch, Problem, Source, ceil_div, choice, powers_of_two
from tuner.declare.rules import below_multiple, static_shared_fits

from ._operands import padded_rows
from ._rules import padded_only_where_needed


def _launch(p: Problem, c: Config) -> Launch:
    blocks = p.m * ceil_div(p.n, c.BLOCK * c.COLUMNS)
    return Launch(grid=(blocks,), block=(c.BLOCK,), padded=padded_rows(p, c))


KERNEL = Kernel(
    operation="gemm",
    name="row_shared",
    target="cuda",
    source=Source(Path("row_shared.cu"), includes=(Path("sum.cuh"),)),
    idea="a block per stretch of a row of C, the row of A in shared memory",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        choice("COLUMNS", 1, 2, 4),
        choice("PIECE", 256, 1024, 4096, 16384),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        static_shared_fits("a piece of the row", lambda p, c: DTYPE_BYTES[p.dtype] * c.PIECE),
        below_multiple(
            "a piece of the row is less than twice as long as the row, or the shortest",
            lambda p, c: c.PIECE, 256, lambda p, c: p.k,
        ),
        below_multiple(
            "a block's stretch is less than twice as long as a row of C, or the shortest",
            lambda p, c: c.BLOCK * c.COLUMNS, 32, lambda p, c: p.n,
        ),
        padded_only_where_needed(),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": 1, "n": c.BLOCK * c.COLUMNS},
    starts=({"BLOCK": 256, "COLUMNS": 1, "PIECE": 1024, "ACCUMULATE": "plain", "PITCH": 1},),
)  # fmt: skip
