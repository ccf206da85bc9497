"""grouped on the CPU: threads share pieces of groups, each product with a tile of C in vector registers."""

from pathlib import Path

from tuner import Kernel, Source, Value, choice
from tuner.declare.rules import (
    THREAD_COUNTS,
    at_most_cores,
    for_speed,
    register_tile_rules,
    work_for_each_thread,
)

#: Sources of gemm's `direct`, which multiplies each piece.
DIRECT = tuple(
    Path("../../gemm/cpu") / name for name in ("tile.numba.py", "panels.numba.py", "direct.numba.py")
)
#: Tiles of C for each width of vectors: WIDTH, MR, NR.
TILES = ((16, 8, 32), (16, 4, 48), (8, 6, 16), (8, 8, 8), (4, 6, 8), (4, 8, 4), (2, 6, 4))


def _start(tile: tuple[int, int, int], threads: int, rows: int, pack: bool) -> dict[str, Value]:
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "KC": 512, "PACK_B": pack, "UNROLL": 4, "ROWS": rows,
        "THREADS": threads,
    }  # fmt: skip


KERNEL = Kernel(
    operation="grouped",
    name="stacked",
    target="cpu",
    source=Source(
        Path("stacked.numba.py"),
        includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py"), *DIRECT),
    ),
    idea="threads share pieces of ROWS rows of a group; a tile of C in vector registers",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("MR", 1, 2, 4, 6, 8),
        choice("NR", 4, 8, 12, 16, 24, 32, 48, 64),
        choice("KC", 64, 512, 4096),
        choice("PACK_B", False, True),
        choice("UNROLL", 1, 2, 4),
        choice("ROWS", 8, 32, 128, 512),
        choice("THREADS", *THREAD_COUNTS),
    ),
    constraints=(
        *register_tile_rules(),
        for_speed("a tile is no wider than B, or a vector", lambda p, d, c: (c.NR == c.WIDTH) | (p.n >= c.NR)),
        for_speed("a part of a long K is no longer than K", lambda p, d, c: (c.KC == 64) | (8 * p.k > c.KC)),
        for_speed(
            "a B that is read along K is packed anyway",
            lambda p, d, c: (p.layout[1] == "n") | (c.PACK_B ^ True),
        ),
        at_most_cores(),
        work_for_each_thread("a piece", lambda p, c: p.rows // c.ROWS + p.groups),
    ),
    tiles=lambda p, c: {"rows": c.MR, "n": c.NR},
    threads="THREADS",
    starts=tuple(
        _start(tile, threads, rows, pack)
        for threads in (2, 64, 32, 16, 8, 4, 1)
        for tile in TILES
        for rows, pack in ((128, False), (8, False), (128, True))
    ),
)
