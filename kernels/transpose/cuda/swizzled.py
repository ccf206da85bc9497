"""transpose on CUDA, own design: all accesses in packs of up to 128 bits, and a swizzled tile."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, Source, ceil_div, choice
from tuner.declare.rules import (
    access_elements,
    access_holds_an_element,
    below_multiple,
    shared_fits,
    threads_fit,
)

from ._tiles import tile

#: Tiles a side of the squares in which blocks may walk, as in the source.
SIDE_OF_SQUARE = 8
#: Registers beside the micro-tiles: addresses and indices.
OTHER_REGISTERS = 24


def _threads(p: Problem, c: Any) -> Any:
    return (c.TILE // access_elements(p, c)) ** 2 // c.MICRO_TILES


def _shared_bytes(p: Problem, c: Any) -> Any:
    return DTYPE_BYTES[p.dtype] * c.TILE**2


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: its micro-tiles, and addresses."""
    return c.MICRO_TILES * access_elements(p, c) * c.ACCESS_BYTES // 4 + OTHER_REGISTERS


def _launch(p: Problem, c: Config) -> Launch:
    across, down = ceil_div(p.n, c.TILE), ceil_div(p.m, c.TILE)
    if c.WALK == "squares":
        across, down = (ceil_div(each, SIDE_OF_SQUARE) * SIDE_OF_SQUARE for each in (across, down))
    blocks = across * down
    return Launch(grid=(blocks,), block=(_threads(p, c),), shared_bytes=_shared_bytes(p, c))


KERNEL = Kernel(
    operation="transpose",
    name="swizzled",
    target="cuda",
    source=Source(Path("swizzled.cu"), includes=(Path("../../access.cuh"),)),
    idea="128-bit loads and stores, micro-tiles turned in registers, a swizzled tile without padding",
    parameters=(
        choice("TILE", 32, 64, 128),
        choice("MICRO_TILES", 1, 2, 4, 8),
        choice("ACCESS_BYTES", 4, 8, 16),
        choice("WALK", "rows", "columns", "squares"),
        choice("STREAM", False, True),
    ),
    constraints=(
        access_holds_an_element(),
        Constraint(
            "both dims are divisible by the elements of a pack, so that packs are aligned",
            lambda p, d, c: (p.m % access_elements(p, c) == 0) & (p.n % access_elements(p, c) == 0),
        ),
        Constraint("a block has whole warps", lambda p, d, c: _threads(p, c) % d.warp_size == 0),
        threads_fit(_threads, least_warps=1),
        shared_fits("the rows of a tile", _shared_bytes),
        Constraint(
            "the micro-tiles of all threads fit into a block's registers",
            lambda p, d, c: _registers(p, c) * _threads(p, c) <= d.registers_per_block,
        ),
        below_multiple(
            "the tile is less than four times as long as either dim, or the smallest",
            lambda p, c: c.TILE, 32, lambda p, c: min(p.m, p.n), times=4,
        ),
    ),
    launch=_launch,
    tiles=tile,
    starts=(
        {"TILE": 64, "MICRO_TILES": 1, "ACCESS_BYTES": 16, "WALK": "rows", "STREAM": False},
        {"TILE": 64, "MICRO_TILES": 2, "ACCESS_BYTES": 8, "WALK": "rows", "STREAM": False},
        {"TILE": 32, "MICRO_TILES": 4, "ACCESS_BYTES": 4, "WALK": "rows", "STREAM": False},
        {"TILE": 32, "MICRO_TILES": 4, "ACCESS_BYTES": 8, "WALK": "rows", "STREAM": False},
    ),
)  # fmt: skip
