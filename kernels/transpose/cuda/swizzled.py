"""transpose on CUDA, our own: packs of up to 128 bits all the way, and a swizzled tile."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, ceil_div, choice

#: Tiles a side of the squares in which blocks may walk, as in the source.
SIDE_OF_SQUARE = 8
#: Registers beside the micro-tiles: addresses and indices.
OTHER_REGISTERS = 24


def _vector(p: Problem, c: Any) -> Any:
    """Elements of a pack; at least one, so that rules can be asked about illegal configs too."""
    return ceil_div(c.ACCESS_BYTES, DTYPE_BYTES[p.dtype])


def _threads(p: Problem, c: Any) -> Any:
    return (c.TILE // _vector(p, c)) ** 2 // c.MICRO_TILES


def _shared_bytes(p: Problem, c: Any) -> Any:
    return DTYPE_BYTES[p.dtype] * c.TILE**2


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: its micro-tiles, and addresses."""
    return c.MICRO_TILES * _vector(p, c) * c.ACCESS_BYTES // 4 + OTHER_REGISTERS


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
    source=Path("swizzled.cu"),
    idea="128-bit loads and stores, micro-tiles turned in registers, a swizzled tile without padding",
    parameters=(
        choice("TILE", 32, 64, 128),
        choice("MICRO_TILES", 1, 2, 4, 8),
        choice("ACCESS_BYTES", 4, 8, 16),
        choice("WALK", "rows", "columns", "squares"),
        choice("STREAM", False, True),
    ),
    constraints=(
        Constraint("a pack has one element or more", lambda p, d, c: DTYPE_BYTES[p.dtype] <= c.ACCESS_BYTES),
        Constraint(
            "both dims are divisible by the elements of a pack, so that packs are aligned",
            lambda p, d, c: (p.m % _vector(p, c) == 0) & (p.n % _vector(p, c) == 0),
        ),
        Constraint(
            "a block has whole warps, and no more threads than the device allows",
            lambda p, d, c: (
                (_threads(p, c) >= 32)
                & (_threads(p, c) % 32 == 0)
                & (_threads(p, c) <= d.max_threads_per_block)
            ),
        ),
        Constraint(
            "the tile fits into the shared memory that a block may have",
            lambda p, d, c: _shared_bytes(p, c) <= d.shared_bytes_per_block,
        ),
        Constraint(
            "the micro-tiles of all threads fit into a block's registers",
            lambda p, d, c: _registers(p, c) * _threads(p, c) <= d.registers_per_block,
        ),
        Constraint(
            "the tile is less than four times as long as either dim, or the smallest",
            lambda p, d, c: (c.TILE == 32) | (4 * min(p.m, p.n) > c.TILE),
            for_speed=True,
        ),
    ),
    launch=_launch,
    defaults={"TILE": 64, "MICRO_TILES": 1, "ACCESS_BYTES": 16, "WALK": "rows", "STREAM": False},
    starts=(
        {"TILE": 64, "MICRO_TILES": 2, "ACCESS_BYTES": 8, "WALK": "rows", "STREAM": False},
        {"TILE": 32, "MICRO_TILES": 4, "ACCESS_BYTES": 4, "WALK": "rows", "STREAM": False},
        {"TILE": 32, "MICRO_TILES": 4, "ACCESS_BYTES": 8, "WALK": "rows", "STREAM": False},
    ),
)
