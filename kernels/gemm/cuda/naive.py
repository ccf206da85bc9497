"""gemm on CUDA, first step of the ladder: a thread per element of C."""

from pathlib import Path

from tuner import Config, Constraint, Kernel, Launch, Padded, Problem, ceil_div, choice


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.BLOCK_X) * ceil_div(p.m, c.BLOCK_Y)
    padded = Padded.rows_of(p.tensors, c.PITCH) if c.PITCH > 1 else ()
    return Launch(grid=(blocks,), block=(c.BLOCK_X, c.BLOCK_Y), padded=padded)


KERNEL = Kernel(
    operation="gemm",
    name="naive",
    target="cuda",
    source=Path("naive.cu"),
    includes=(Path("sum.cuh"),),
    idea="a thread per element of C, operands read from global memory",
    parameters=(
        choice("BLOCK_X", 4, 8, 16, 32, 64, 128, 256),
        choice("BLOCK_Y", 1, 2, 4, 8, 16, 32),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        Constraint(
            "a block has no more threads than the device allows",
            lambda p, d, c: d.max_threads_per_block >= c.BLOCK_X * c.BLOCK_Y,
        ),
        Constraint(
            "rows are padded only where some are not of such a length already",
            lambda p, d, c: (c.PITCH == 1) | (sum(each.shape[1] % c.PITCH for each in p.tensors) > 0),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK_X": 32, "BLOCK_Y": 8, "ACCUMULATE": "plain", "PITCH": 1},
)
