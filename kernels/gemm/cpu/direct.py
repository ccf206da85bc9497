"""gemm on the CPU for small and for long and thin matrices: the register tile, and little or no packing."""

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


def _start(tile: tuple[int, int, int], **others: Value) -> dict[str, Value]:
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "KC": 64, "PACK_A": False, "PACK_B": False,
        "STREAM": False, "UNROLL": 1, "PREFETCH": 0, "THREADS": 1, "SPLIT": "rows",
    } | others  # fmt: skip


KERNEL = Kernel(
    operation="gemm",
    name="direct",
    target="cpu",
    source=Path("direct.numba.py"),
    includes=(
        Path("../../vectors.numba.py"),
        Path("../../threads.numba.py"),
        Path("tile.numba.py"),
        Path("panels.numba.py"),
        Path("sharing.numba.py"),
    ),
    idea="a tile of C in vector registers, A and B read where they are: for small and for long and thin shapes",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("MR", 2, 4, 6, 8, 10, 12, 14),
        choice("NR", 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96),
        choice("KC", 64, 256, 512, 1024, 4096, 16384),
        choice("PACK_A", False, True),
        choice("PACK_B", False, True),
        choice("STREAM", False, True),
        choice("UNROLL", 1, 2, 4),
        choice("PREFETCH", 0, 1, 2),
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
            "the addresses of at most 8 rows of A fit into the general registers",
            lambda p, d, c: c.PACK_A | (c.MR <= 8) | (p.layout[0] == "t"),
        ),
        for_speed(
            "a tile is less than twice as wide as C", lambda p, d, c: (c.NR == c.WIDTH) | (c.NR < 2 * p.n)
        ),
        for_speed("KC is less than twice K", lambda p, d, c: (c.KC == 64) | (c.KC < 2 * p.k)),
        for_speed(
            "what is streamed past the caches is written once, and would not fit into them",
            lambda p, d, c: (
                (c.STREAM ^ True)
                | ((c.KC >= p.k) & (2 * p.m * p.n * DTYPE_BYTES[p.dtype] > (d.l2_bytes or 32 << 20)))
            ),
        ),
        for_speed(
            "B that is stored transposed is packed in any case",
            lambda p, d, c: (c.PACK_B ^ True) | (p.layout[1] == "n"),
        ),
        for_speed(
            "strips of B are asked for ahead where B is read as it lies",
            lambda p, d, c: (c.PREFETCH == 0) | ((c.PACK_B ^ True) & (p.layout[1] == "n")),
        ),
        for_speed("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        for_speed(
            "a tile for each thread", lambda p, d, c: (c.THREADS == 1) | (c.THREADS * c.MR * c.NR <= p.m * p.n)
        ),
        for_speed(
            "how C is split is a choice only where there are threads",
            lambda p, d, c: (c.THREADS > 1) | (c.SPLIT == "rows"),
        ),
    ),
    defaults=_start(TILES[0]),
    # For small problems, then for a long and thin B, then for a large C and a short K.
    starts=(
        *(_start(tile) for tile in TILES[1:]),
        *(_start(tile, KC=512) for tile in TILES),
        *(_start(tile, PACK_A=True, PREFETCH=2) for tile in TILES),
        *(_start(tile, PACK_B=True, STREAM=True) for tile in TILES),
    ),
)
