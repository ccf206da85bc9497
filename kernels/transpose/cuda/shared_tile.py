"""transpose on CUDA: through a square tile in shared memory, so that reads and writes are both side by side."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, ceil_div, choice


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.TILE) * ceil_div(p.m, c.TILE)
    return Launch(grid=(blocks,), block=(c.TILE, c.TILE))


KERNEL = Kernel(
    operation="transpose",
    name="shared_tile",
    target="cuda",
    source=Path("shared_tile.cu"),
    idea="through a square tile in shared memory, so that reads and writes are both side by side",
    parameters=(choice("TILE", 8, 16, 32),),
    launch=_launch,
    defaults={"TILE": 32},
)
