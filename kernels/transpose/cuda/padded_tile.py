"""transpose on CUDA: a tile whose rows are one element longer, so that its columns spread over the banks."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, ceil_div, choice


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.TILE) * ceil_div(p.m, c.TILE)
    return Launch(grid=(blocks,), block=(c.TILE, c.TILE))


KERNEL = Kernel(
    operation="transpose",
    name="padded_tile",
    target="cuda",
    source=Path("padded_tile.cu"),
    idea="a tile whose rows are one element longer, so that its columns spread over the banks",
    parameters=(choice("TILE", 8, 16, 32),),
    launch=_launch,
    defaults={"TILE": 32},
)
