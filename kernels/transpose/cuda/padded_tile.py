"""transpose on CUDA: a tile whose rows are one element longer, so that its columns spread over the banks."""

from pathlib import Path

from tuner import Kernel, Launch, Source, choice

from ._tiles import tile, tiles

KERNEL = Kernel(
    operation="transpose",
    name="padded_tile",
    target="cuda",
    source=Source(Path("padded_tile.cu")),
    idea="a tile whose rows are one element longer, so that its columns spread over the banks",
    parameters=(choice("TILE", 8, 16, 32),),
    launch=lambda p, c: Launch(grid=(tiles(p, c),), block=(c.TILE, c.TILE)),
    tiles=tile,
    starts=({"TILE": 32},),
)
