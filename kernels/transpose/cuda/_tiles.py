"""Rules that transpose kernels on CUDA share: a block for each square tile of A."""

from typing import Any

from tuner import Problem, ceil_div


def tile(p: Problem, c: Any) -> dict[str, Any]:
    """A block's tile of A."""
    return {"m": c.TILE, "n": c.TILE}


def tiles(p: Problem, c: Any) -> Any:
    """Tiles of A."""
    return ceil_div(p.n, c.TILE) * ceil_div(p.m, c.TILE)
