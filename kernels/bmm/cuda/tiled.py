"""bmm on CUDA: tiles in shared memory, TM x TN sums in every thread's registers, the next tile prefetched."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, Source, ceil_div, choice
from tuner.declare.rules import (
    blocks_fit,
    copy_at_most_16_bytes,
    larger,
    registers_fit,
    shared_fits,
    threads_fit,
    whole_accesses,
)

from ._stacks import blocks, few_blocks, fitting_tiles, threads, tiles

#: Registers beside sums, their factors and the tile in flight.
OTHER_REGISTERS = 24


def _words(p: Problem) -> int:
    """Registers of an element."""
    return DTYPE_BYTES[p.dtype] // 4


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Two tiles of each A and each B; packs of one along k lie in rows that are skewed."""
    packs, along = c.BK // c.VECTOR, (p.layout[0] == "n") + (p.layout[1] == "t")
    skew = larger(32 // packs, 4 // _words(p)) * packs * along
    return 8 * _words(p) * c.MATRICES * (c.BK * (c.BM + c.BN) + skew)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: a tile is in flight, with an address for each of its packs."""
    in_flight = ceil_div((c.BM + c.BN) * c.BK * c.MATRICES, threads(p, c))
    sums = c.TM * c.TN + c.TM + c.TN
    return _words(p) * (sums + in_flight) + 2 * ceil_div(in_flight, c.VECTOR) + OTHER_REGISTERS


def _launch(p: Problem, c: Config) -> Launch:
    block = (threads(p, c) // c.MATRICES, c.MATRICES)
    return Launch(grid=(blocks(p, c),), block=block, shared_bytes=_shared_bytes(p, c))


def _start(bm: int, bn: int, bk: int, tm: int, tn: int, matrices: int, vector: int) -> dict[str, int]:
    return {
        "BM": bm, "BN": bn, "BK": bk, "TM": tm, "TN": tn, "LANES_M": 4 if bm < bn else 8, "VECTOR": vector,
        "SWATH": 1, "MATRICES": matrices, "BLOCKS_PER_SM": 1 if matrices * bm * bn > 4096 else 2,
    }  # fmt: skip


GEMM = Path("../../gemm/cuda")
KERNEL = Kernel(
    operation="bmm",
    name="tiled",
    target="cuda",
    source=Source(
        Path("tiled.cu"),
        includes=tuple(
            GEMM / f"{name}.cuh" for name in ("epilogue", "copies", "lanes", "tiles", "prefetched")
        ),
    ),
    idea="tiles in shared memory, TM x TN sums of a product in a thread's registers, the next tile prefetched",
    parameters=(
        choice("BM", 32, 64, 96, 128, 256),
        choice("BN", 32, 64, 96, 128, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 16),
        choice("TN", 4, 8, 16),
        choice("LANES_M", 4, 8),
        choice("VECTOR", 1, 2, 4),
        choice("SWATH", 1, 8),
        choice("MATRICES", 1, 2, 4, 8),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        Constraint(
            "a product's tile is made of whole tiles of warps, LANES_M * TM by 32 / LANES_M * TN",
            lambda p, d, c: (c.BM % (c.LANES_M * c.TM) == 0) & (c.BN % (32 // c.LANES_M * c.TN) == 0),
        ),
        threads_fit(threads, least_warps=2),
        copy_at_most_16_bytes("VECTOR"),
        whole_accesses(),
        few_blocks(),
        *fitting_tiles(32),
        shared_fits("two tiles of all A and B", _shared_bytes),
        blocks_fit(threads, _shared_bytes),
        registers_fit("sums, their factors and the tile in flight", _registers, threads),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        _start(64, 64, 8, 8, 4, 1, 4), _start(128, 64, 8, 8, 8, 1, 4), _start(128, 128, 8, 8, 8, 1, 4),
        _start(32, 32, 16, 4, 8, 4, 4), _start(64, 64, 8, 8, 4, 1, 1), _start(64, 32, 16, 8, 4, 2, 4),
    ),
)  # fmt: skip
