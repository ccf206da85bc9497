"""gemm on the CPU, third step: packed panels and a tile of C in vector registers, as the best libraries do."""

# ruff: noqa: SIM300
from functools import partial
from pathlib import Path
from typing import Any

from tuner.kernel import Kernel
from tuner.problem import DTYPE_BYTES
from tuner.space import Constraint, Value, choice, powers_of_two


def _registers(device: Any) -> int:
    """Vector registers of the CPU: AVX-512 has 32, what is narrower is taken to have 16."""
    return 32 if device.vector_bytes >= 64 else 16


#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)

#: A good tile (WIDTH, MR, NR) for each width of vectors and dtype.
TILES = ((8, 4, 24), (16, 6, 64), (16, 8, 48), (8, 8, 24), (4, 4, 12), (4, 6, 8), (2, 4, 6), (2, 6, 4))
#: Blocks (MC, KC, NC) for large problems, and for small ones.
LARGE, SMALL = (48, 1024, 2048), (48, 64, 256)


def _start(tile: tuple[int, ...], blocks: tuple[int, ...], threads: int = 1) -> dict[str, Value]:
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "MC": blocks[0], "KC": blocks[1], "NC": blocks[2],
        "UNROLL": 1, "PREFETCH": 8, "THREADS": threads, "SPLIT": "rows" if threads == 1 else "both",
    }  # fmt: skip


KERNEL = Kernel(
    operation="gemm",
    name="packed",
    target="cpu",
    source=Path("packed.numba.py"),
    includes=(
        Path("../../vectors.numba.py"),
        Path("../../threads.numba.py"),
        Path("tile.numba.py"),
        Path("panels.numba.py"),
        Path("sharing.numba.py"),
    ),
    idea="five loops round a tile of C in vector registers; A and B packed into panels that the caches hold",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("MR", 2, 4, 6, 8, 10, 12, 14),
        choice("NR", 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96),
        choice("MC", 48, 96, 192, 384, 768),
        choice("KC", 64, 128, 192, 256, 384, 512, 768, 1024),
        choice("NC", 256, 512, 1024, 2048, 4096),
        choice("UNROLL", 1, 2, 4),
        choice("PREFETCH", 0, 8, 16, 32),
        powers_of_two("THREADS", 1, 256),
        choice("SPLIT", "rows", "columns", "both"),
    ),
    constraints=(
        for_speed(
            "vectors are as wide as the CPU's",
            lambda p, d, c: c.WIDTH * DTYPE_BYTES[p.dtype] == min(max(d.vector_bytes, 16), 64),
        ),
        Constraint("NR is a multiple of WIDTH", lambda p, d, c: c.NR % c.WIDTH == 0),
        for_speed(
            "the tile, a row of B and a factor fit into the vector registers, else they spill",
            lambda p, d, c: c.MR * (c.NR // c.WIDTH) + c.NR // c.WIDTH + 1 <= _registers(d),
        ),
        for_speed(
            "a tile has 8 vectors, else each multiply-add waits for the one before it",
            lambda p, d, c: c.MR * (c.NR // c.WIDTH) >= 8,
        ),
        for_speed(
            "a panel of A fits into the first-level cache",
            lambda p, d, c: c.MR * c.KC * DTYPE_BYTES[p.dtype] <= (d.l1_bytes or 32 << 10),
        ),
        for_speed("MC is at most twice M", lambda p, d, c: (c.MC == 48) | (c.MC <= 2 * p.m)),
        for_speed("KC is at most twice K", lambda p, d, c: (c.KC == 64) | (c.KC <= 2 * p.k)),
        for_speed("NC is at most twice N", lambda p, d, c: (c.NC == 256) | (c.NC <= 2 * p.n)),
        for_speed("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        for_speed(
            "a tile for each thread", lambda p, d, c: (c.THREADS == 1) | (c.THREADS * c.MR * c.NR <= p.m * p.n)
        ),
        for_speed(
            "how C is split is a choice only where there are threads",
            lambda p, d, c: (c.THREADS > 1) | (c.SPLIT == "rows"),
        ),
    ),
    defaults=_start(TILES[0], LARGE),
    starts=(
        *(_start(tile, LARGE) for tile in TILES[1:]),
        *(_start(tile, LARGE, threads) for threads in (2, 4, 16, 64) for tile in TILES[:2]),
        *(_start(tile, SMALL) for tile in TILES),
    ),
)
