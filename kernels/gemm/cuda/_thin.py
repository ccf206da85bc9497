"""Rules that thin and multivector share: C has few rows or columns, and the wide operand is read once."""

from collections.abc import Callable
from typing import Any

from tuner import Constraint, Problem, Workspace, ceil_div
from tuner.declare.rules import for_speed, larger, select, smaller

from ._operands import ALIGNED, along_k

#: Elements of the wide operand below which there is too little to read for its speed to matter.
WIDE_LEAST = 1 << 20


def by_side(c: Any, of_m: Any, of_n: Any) -> tuple[Any, Any]:
    """The values of the thin and of the wide side of C, from those of m and n."""
    is_m = c.THIN == "m"
    return select(is_m, of_m, of_n), select(is_m, of_n, of_m)


def sides(p: Problem, c: Any) -> tuple[Any, Any]:
    """The thin and the wide side of C."""
    return by_side(c, p.m, p.n)


def sides_along_k(p: Problem, c: Any) -> tuple[Any, Any]:
    """1 for the thin and the wide operand if neighbours in memory are neighbours in k, else 0."""
    return by_side(c, *along_k(p))


def side_lines(p: Problem, c: Any) -> tuple[Any, Any]:
    """Elements of a stored row of the thin and of the wide operand."""
    (thin, wide), (side_t, side_w) = sides_along_k(p, c), sides(p, c)
    return select(thin == 1, p.k, side_t), select(wide == 1, p.k, side_w)


def sums_elements(p: Problem, c: Any, tile: tuple[Any, Any], group: int) -> Any:
    """Elements of shared memory that a block's sums take, in rows of C that are padded.

    Args:
        p: The problem.
        c: The config.
        tile: A block's tile, along the thin and the wide side.
        group: Elements that rows are longer by where the wide side lies along them.
    """
    bt, bw = tile
    return select(c.THIN == "m", bt * (bw + group), bw * (bt + 1))


def counted_workspace(counters: int, sums_bytes: int) -> Workspace:
    """Counters of four bytes, which are zero, followed by the sums of blocks that share tiles."""
    return Workspace(ceil_div(4 * counters, ALIGNED) * ALIGNED + sums_bytes, 4 * counters)


def worth_reading(thin_most: int, side_least: int) -> Constraint:
    """The kernel is meant for the problem.

    Args:
        thin_most: C's thin side at the most.
        side_least: The shorter side of the wide operand at the least.
    """
    return for_speed(
        "C is thin and the wide operand large",
        lambda p, d, c: (
            (smaller(p.m, p.n) <= thin_most)
            & (larger(p.m, p.n) * p.k >= WIDE_LEAST)
            & (smaller(larger(p.m, p.n), p.k) >= side_least)
        ),
    )


def thin_is_shorter() -> Constraint:
    """THIN names the shorter side of C."""
    return for_speed("THIN is the shorter side of C", lambda p, d, c: (c.THIN == "m") == (p.m <= p.n))


def enough_in_flight(bytes_in_flight: Callable[[Problem, Any, Any], Any], least: int) -> Constraint:
    """Enough loads are in flight to read at nearly full speed.

    Args:
        bytes_in_flight: ``(problem, device, config)`` -> bytes in flight to a multiprocessor.
        least: Bytes below which a config is not worth a trial.
    """
    return for_speed(
        "enough bytes of the wide operand are in flight to a multiprocessor",
        lambda p, d, c: bytes_in_flight(p, d, c) >= least,
    )
