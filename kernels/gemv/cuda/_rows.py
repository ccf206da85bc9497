"""Rules that gemv kernels on CUDA share: the rows of A that a block takes, and pieces of x."""

from typing import Any

from tuner import Constraint, Launch, Problem, ceil_div
from tuner.declare.rules import below_multiple


def rows(p: Problem, c: Any) -> dict[str, Any]:
    """Rows of a block: one a thread where A lies by columns, else one a warp."""
    return {"m": c.BLOCK if p.layout == "t" else c.BLOCK // 32}


def launch_of(p: Problem, c: Any, tile: dict[str, Any]) -> Launch:
    """BLOCK threads for each tile of y."""
    return Launch(grid=(ceil_div(p.m, tile["m"]),), block=(c.BLOCK,))


def piece_within_x(least: int) -> Constraint:
    """A piece of x is not far longer than x.

    Args:
        least: Elements of the smallest piece.
    """
    return below_multiple(
        "a piece of x is less than twice as long as x, or the smallest",
        lambda p, c: c.PIECE, least, lambda p, c: p.n,
    )  # fmt: skip
