"""What both kernels share: a block has BM x BN elements of MATRICES products, a thread TM x TN."""

from typing import Any

from tuner import Constraint, Problem, ceil_div
from tuner.declare.rules import Quantity, for_speed


def threads(p: Problem, c: Any) -> Any:
    """Threads of a block."""
    return c.MATRICES * (c.BM // c.TM) * (c.BN // c.TN)


def blocks(p: Problem, c: Any) -> Any:
    """Blocks of a launch: one for each tile of C of so many matrices."""
    return ceil_div(p.batch, c.MATRICES) * ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


def few_blocks(count: Quantity = blocks) -> Constraint:
    """A grid has one dimension, which the blocks of large batches may fill."""
    return Constraint(
        "the blocks of all products can be counted in 31 bits", lambda p, d, c: count(p, c) < 2**31
    )


def fitting_tiles(least: int) -> tuple[Constraint, ...]:
    """Tiles that do not compute much more than there is.

    Args:
        least: Rows and columns of the smallest tile.
    """
    return (
        for_speed(
            "a tile is less than twice as long as each C, or one of the smallest",
            lambda p, d, c: (
                ((2 * p.m > c.BM) | (least >= c.BM)) & ((2 * p.n > c.BN) | (least >= c.BN))
            ),
        ),
        for_speed(
            "a block takes several matrices only where a tile holds each C, and no more than there are",
            lambda p, d, c: (
                (c.MATRICES == 1) | ((p.m <= c.BM) & (p.n <= c.BN) & (p.batch >= c.MATRICES))
            ),
        ),
    )  # fmt: skip


def tiles(p: Problem, c: Any) -> dict[str, Any]:
    """What of each dim a block takes."""
    return {"batch": c.MATRICES, "m": c.BM, "n": c.BN}
