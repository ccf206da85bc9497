"""gemv on CUDA, second step: neighbouring threads read neighbouring elements."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, ceil_div, choice, powers_of_two


def _launch(p: Problem, c: Config) -> Launch:
    rows = c.BLOCK if p.layout == "t" else c.BLOCK // 32
    return Launch(grid=(ceil_div(p.m, rows),), block=(c.BLOCK,))


KERNEL = Kernel(
    operation="gemv",
    name="coalesced",
    target="cuda",
    source=Path("coalesced.cu"),
    idea="neighbouring threads read neighbouring elements of A: a thread or a warp per row",
    parameters=(powers_of_two("BLOCK", 32, 1024), choice("UNROLL", 1, 4, 8, 16)),
    launch=_launch,
    defaults={"BLOCK": 256, "UNROLL": 1},
)
