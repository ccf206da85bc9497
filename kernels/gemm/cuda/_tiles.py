"""Rules of register_tiled and warp_tiled: a block has BM x BN elements, a thread TM x TN (tiles.cuh)."""

from typing import Any

from tuner import DTYPE_BYTES, Constraint, Problem, ceil_div

#: Registers beside sums, fragments and the tile in flight: addresses, loop, what the compiler moves ahead.
OTHER_REGISTERS = 20


def tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return c.BM, c.BN


def threads(p: Problem, c: Any) -> Any:
    """Threads of a block."""
    return (c.BM // c.TM) * (c.BN // c.TN)


def tiles(p: Problem, c: Any) -> Any:
    """Tiles of C."""
    return ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


def registers(p: Problem, c: Any, in_flight: Any, addresses: Any) -> Any:
    """Registers of a thread, estimated: sums, two fragments, elements in flight, addresses."""
    values = c.TM * c.TN + 2 * (c.TM + c.TN) + in_flight
    return DTYPE_BYTES[p.dtype] // 4 * values + addresses + OTHER_REGISTERS


def whole_warp_tiles() -> Constraint:
    """Warps cut a block's tile without remainder."""
    return Constraint(
        "a block's tile is made of whole warp tiles of LANES_M * TM by 32 / LANES_M * TN",
        lambda p, d, c: (c.BM % (c.LANES_M * c.TM) == 0) & (c.BN % (32 // c.LANES_M * c.TN) == 0),
    )
