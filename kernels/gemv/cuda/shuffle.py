"""gemv on CUDA: x in the registers of a warp."""

from pathlib import Path
from typing import Any

from tuner import Kernel, Problem, Source, choice, powers_of_two

from ._rows import launch_of, rows


def _tile(p: Problem, c: Any) -> dict[str, Any]:
    return {"m": rows(p, c)["m"] * c.ROWS}


KERNEL = Kernel(
    operation="gemv",
    name="shuffle",
    target="cuda",
    source=Source(Path("shuffle.cu")),
    idea="x held by the warp, an element per lane, and passed around by shuffles",
    parameters=(powers_of_two("BLOCK", 32, 1024), choice("ROWS", 1, 2, 4, 8)),
    launch=lambda p, c: launch_of(p, c, _tile(p, c)),
    tiles=_tile,
    starts=({"BLOCK": 256, "ROWS": 1},),
)
