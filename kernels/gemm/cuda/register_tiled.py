"""gemm on CUDA: tiles in shared memory, a piece of C in every thread's registers, the next tile prefetched."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Config, Constraint, Kernel, Launch, Problem, Scope, Source, ceil_div, choice
from tuner.declare.rules import blocks_fit, larger, registers_fit, shared_fits, threads_fit

from ._operands import along_k, grouped, lines, tile_within_c
from ._rules import residency_limits_registers
from ._tiles import registers, threads, tile, tiles, whole_warp_tiles


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Two stages of a tile of A and a tile of B; packs of one along k lie in rows that are skewed."""
    lanes = c.BK // c.VECTOR
    skewed = larger(32 // lanes, grouped(p)) * lanes * sum(along_k(p))
    return 2 * DTYPE_BYTES[p.dtype] * (c.BK * (c.BM + c.BN) + skewed)


def _registers(p: Problem, c: Any) -> Any:
    """Registers of a thread, estimated: a tile is in flight, with an address for each of its packs."""
    in_flight = ceil_div(c.BM * c.BK, threads(p, c)) + ceil_div(c.BN * c.BK, threads(p, c))
    return registers(p, c, in_flight, 2 * ceil_div(in_flight, c.VECTOR))


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(tiles(p, c),), block=(threads(p, c),), shared_bytes=_shared_bytes(p, c))


KERNEL = Kernel(
    operation="gemm",
    name="register_tiled",
    target="cuda",
    source=Source(
        Path("register_tiled.cu"),
        includes=tuple(
            Path(f"{name}.cuh") for name in ("epilogue", "copies", "lanes", "tiles", "prefetched")
        ),
    ),
    scope=Scope(epilogues=True),
    idea="tiles in shared memory, TM x TN elements of C in a thread's registers, the next tile prefetched",
    parameters=(
        choice("BM", 32, 64, 96, 128, 192, 256),
        choice("BN", 32, 64, 96, 128, 192, 256),
        choice("BK", 8, 16, 32),
        choice("TM", 4, 8, 12, 16),
        choice("TN", 4, 8, 12, 16),
        choice("LANES_M", 4, 8),
        choice("VECTOR", 1, 2, 4),
        choice("SWATH", 1, 8, 16),
        choice("BLOCKS_PER_SM", 1, 2, 3, 4),
    ),
    constraints=(
        whole_warp_tiles(),
        threads_fit(threads, least_warps=2),
        Constraint(
            "every thread loads the same number of VECTOR-wide pieces of both tiles",
            lambda p, d, c: (
                (c.BM * c.BK % (c.VECTOR * threads(p, c)) == 0)
                & (c.BN * c.BK % (c.VECTOR * threads(p, c)) == 0)
            ),
        ),
        Constraint(
            "the rows of A and B are divisible by VECTOR, so that wide reads are aligned",
            lambda p, d, c: sum(line % c.VECTOR for line in lines(p)) == 0,
        ),
        tile_within_c(tile),
        shared_fits("two stages of both tiles", _shared_bytes),
        blocks_fit(threads, _shared_bytes),
        registers_fit("sums, fragments and the tile in flight", _registers, threads),
        residency_limits_registers(threads),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BM, "n": c.BN},
    starts=(
        {
            "BM": 128, "BN": 128, "BK": 8, "TM": 8, "TN": 8,
            "LANES_M": 4, "VECTOR": 4, "SWATH": 8, "BLOCKS_PER_SM": 2,
        },
    ),
)  # fmt: skip
