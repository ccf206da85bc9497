"""gemm on CUDA, third step of the ladder: square tiles in shared memory, a thread per element."""

from pathlib import Path

from tuner import Config, Constraint, Kernel, Launch, Padded, Problem, ceil_div, choice


def _launch(p: Problem, c: Config) -> Launch:
    padded: tuple[Padded, ...] = ()
    if c.BORDER == "pad":
        padded = Padded.rows_of(p.tensors, max(c.BLOCK, c.PITCH), c.BLOCK)
    elif c.PITCH > 1:
        padded = Padded.rows_of(p.tensors, c.PITCH)
    blocks = ceil_div(p.n, c.BLOCK) * ceil_div(p.m, c.BLOCK)
    return Launch(grid=(blocks,), block=(c.BLOCK, c.BLOCK), padded=padded)


KERNEL = Kernel(
    operation="gemm",
    name="tiled",
    target="cuda",
    source=Path("tiled.cu"),
    includes=(Path("sum.cuh"),),
    idea="square tiles of A and B in shared memory, a thread per element of C",
    parameters=(
        choice("BLOCK", 4, 8, 16, 32),
        choice("BORDER", "check", "pad"),
        choice("ACCUMULATE", "plain", "kahan"),
        choice("PITCH", 1, 32, 128),
    ),
    constraints=(
        Constraint(
            "rows are padded only where some are not of such a length already",
            lambda p, d, c: (c.PITCH == 1) | (sum(each.shape[1] % c.PITCH for each in p.tensors) > 0),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"BLOCK": 32, "BORDER": "check", "ACCUMULATE": "plain", "PITCH": 1},
)
