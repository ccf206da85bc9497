"""transpose on CUDA: several elements a thread."""

from pathlib import Path

from tuner import DTYPE_BYTES, Constraint, Kernel, Launch, Source, choice
from tuner.declare.rules import static_shared_fits, threads_fit

from ._tiles import tile, tiles

KERNEL = Kernel(
    operation="transpose",
    name="unrolled",
    target="cuda",
    source=Source(Path("unrolled.cu")),
    idea="a padded tile moved by TILE x ROWS threads, several elements each",
    parameters=(choice("TILE", 16, 32, 64, 128), choice("ROWS", 1, 2, 4, 8, 16, 32)),
    constraints=(
        Constraint("a tile has whole sets of ROWS rows", lambda p, d, c: c.TILE % c.ROWS == 0),
        threads_fit(lambda p, c: c.TILE * c.ROWS),
        static_shared_fits("a padded tile", lambda p, c: DTYPE_BYTES[p.dtype] * c.TILE * (c.TILE + 1)),
    ),
    launch=lambda p, c: Launch(grid=(tiles(p, c),), block=(c.TILE, c.ROWS)),
    tiles=tile,
    starts=({"TILE": 32, "ROWS": 8},),
)
