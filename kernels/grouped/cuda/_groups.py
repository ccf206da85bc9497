"""What kernels of groups share: a block has BM rows of one group, and BN columns."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Problem, ceil_div, choice

#: Folders of the texts that are gemm's and bmm's, too.
GEMM, BMM = Path("../../gemm/cuda"), Path("../../bmm/cuda")


def numbers(p: Problem, c: Any) -> Any:
    """Numbers of tiles of rows, of which at most one a group has none (groups.cuh)."""
    return p.rows // c.BM + p.groups


def blocks(p: Problem, c: Any) -> Any:
    """Blocks of a launch."""
    return numbers(p, c) * ceil_div(p.n, c.BN)


def countable() -> Constraint:
    """A grid has one dimension."""
    return Constraint("blocks can be counted in 31 bits", lambda p, d, c: blocks(p, c) < 2**31)


def tiles(p: Problem, c: Any) -> dict[str, Any]:
    """What of each dim a block takes; of rows those of one group."""
    return {"rows": c.BM, "n": c.BN}


def order() -> tuple[Any, ...]:
    """How blocks walk the tiles (tile_order.cuh)."""
    return choice("GROUP", 4, 8, 16), choice("ORDER", "rows", "snake", "hilbert")
