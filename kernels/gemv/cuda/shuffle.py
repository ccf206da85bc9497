"""gemv on CUDA: x in the registers of a warp."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, ceil_div, choice, powers_of_two


def _launch(p: Problem, c: Config) -> Launch:
    rows = (c.BLOCK if p.layout == "t" else c.BLOCK // 32) * c.ROWS
    return Launch(grid=(ceil_div(p.m, rows),), block=(c.BLOCK,))


KERNEL = Kernel(
    operation="gemv",
    name="shuffle",
    target="cuda",
    source=Path("shuffle.cu"),
    idea="x held by the warp, an element per lane, and handed round by shuffles",
    parameters=(powers_of_two("BLOCK", 32, 1024), choice("ROWS", 1, 2, 4, 8)),
    launch=_launch,
    defaults={"BLOCK": 256, "ROWS": 1},
)
