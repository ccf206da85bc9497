"""grouped on CUDA in 16-bit numbers, on tensor cores by warps: sm_80 and later."""

from pathlib import Path
from typing import Any

from tuner import Config, Constraint, Kernel, Launch, Problem, Scope, Source, choice
from tuner.declare.rules import (
    ASYNCHRONOUS_COPIES_SINCE,
    below_multiple,
    block_registers_fit,
    for_speed,
    shared_fits,
)

from ._groups import GEMM, blocks, countable, order, stored_row, tiles, whole_accesses

#: Registers beside sums and fragments: addresses, loop.
OTHER_REGISTERS = 40


def _threads(p: Problem, c: Any) -> Any:
    """Threads of a block."""
    return 32 * c.WARPS_M * c.WARPS_N


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Stages of both tiles."""
    return 2 * c.STAGES * c.BK * (c.BM + c.BN)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread: a warp's sums, and the fragments of 16 terms."""
    down, across = c.BM // c.WARPS_M, c.BN // c.WARPS_N
    return down * across // 32 + (down + across) // 4 + OTHER_REGISTERS


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(blocks(p, c),), block=(_threads(p, c),), shared_bytes=_shared_bytes(p, c))


def _start(tile: tuple[int, int, int], warps: tuple[int, int], stages: int, vector: int = 8) -> dict[str, Any]:
    names = "BM", "BN", "BK", "WARPS_M", "WARPS_N", "STAGES", "VECTOR", "GROUP", "ORDER"
    return dict(zip(names, (*tile, *warps, stages, vector, 8, "rows"), strict=True))


KERNEL = Kernel(
    operation="grouped",
    name="warp_mma",
    target="cuda",
    source=Source(
        Path("warp_mma.cu"),
        includes=(
            GEMM / "half.cuh", Path("pairs.cuh"), GEMM / "copies.cuh", GEMM / "tile_order.cuh",
            Path("groups.cuh"),
        ),
    ),
    idea="tensor cores by warps, tiles copied ahead; each block finds its group's rows from the offsets",
    scope=Scope(dtypes=("float16", "bfloat16")),
    parameters=(
        choice("BM", 16, 32, 64, 128, 256),
        choice("BN", 32, 64, 128, 256),
        choice("BK", 32, 64, 128),
        choice("WARPS_M", 1, 2, 4),
        choice("WARPS_N", 1, 2, 4, 8),
        choice("STAGES", 2, 3, 4, 5, 6, 8),
        choice("VECTOR", 1, 8),
        *order(),
    ),
    constraints=(
        Constraint(
            "mma.sync of 16 terms and copies past registers need compute capability 8.0",
            lambda p, d, c: d.compute_capability >= ASYNCHRONOUS_COPIES_SINCE,
        ),
        whole_accesses(),
        for_speed(
            "copies are of 16 bytes where rows allow it",
            lambda p, d, c: (c.VECTOR == 8) | (p.k % 8 != 0) | (stored_row(p) % 8 != 0),
        ),
        for_speed(
            "a block has two to sixteen warps",
            lambda p, d, c: (_threads(p, c) >= 64) & (_threads(p, c) <= 512),
        ),
        Constraint(
            "a warp's tile is made of pieces of 16 x 16",
            lambda p, d, c: (c.BM % (16 * c.WARPS_M) == 0) & (c.BN % (16 * c.WARPS_N) == 0),
        ),
        countable(),
        shared_fits("stages of both tiles", _shared_bytes),
        block_registers_fit("sums and fragments", _registers, _threads),
        for_speed(
            "no more stages than K has, or two",
            lambda p, d, c: (c.STAGES == 2) | (p.k > (c.STAGES - 1) * c.BK),
        ),
        below_multiple(
            "a tile is less than four times as high as a usual group", lambda p, c: c.BM, 16,
            lambda p, c: p.rows / p.groups, 4,
        ),
        below_multiple("a tile is less than twice as wide as B", lambda p, c: c.BN, 32, lambda p, c: p.n),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        _start((64, 64, 32), (2, 2), 4), _start((128, 128, 32), (2, 2), 4), _start((128, 128, 64), (2, 4), 3),
        _start((128, 256, 32), (2, 4), 4), _start((16, 64, 64), (1, 4), 6), _start((16, 128, 64), (1, 4), 4),
        _start((32, 64, 64), (1, 4), 6), _start((16, 32, 32), (1, 2), 2),
        _start((64, 64, 32), (2, 2), 2, 1), _start((16, 32, 32), (1, 2), 2, 1),
    ),
)  # fmt: skip
