"""transpose on CUDA: through a square tile in shared memory, so that reads and writes are both coalesced."""

from pathlib import Path

from tuner import Kernel, Launch, Source, choice

from ._tiles import tile, tiles

KERNEL = Kernel(
    operation="transpose",
    name="shared_tile",
    target="cuda",
    source=Source(Path("shared_tile.cu")),
    idea="through a square tile in shared memory, so that reads and writes are both side by side",
    parameters=(choice("TILE", 8, 16, 32),),
    launch=lambda p, c: Launch(grid=(tiles(p, c),), block=(c.TILE, c.TILE)),
    tiles=tile,
    starts=({"TILE": 32},),
)
