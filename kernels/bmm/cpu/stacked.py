"""bmm on the CPU: threads share the matrices, each product with a tile of C in vector registers."""

from pathlib import Path

from tuner import Kernel, Source, Value, ceil_div, choice, powers_of_two
from tuner.declare.rules import (
    THREAD_COUNTS,
    at_most_cores,
    for_speed,
    register_tile_rules,
    work_for_each_thread,
)

#: Sources of gemm's `direct`, which multiplies each matrix.
DIRECT = tuple(
    Path("../../gemm/cpu") / name for name in ("tile.numba.py", "panels.numba.py", "direct.numba.py")
)
#: Tiles of C for each width of vectors and dtype: WIDTH, MR, NR.
TILES = (
    (16, 8, 32),
    (16, 8, 16),
    (8, 8, 16),
    (8, 8, 24),
    (8, 8, 8),
    (8, 6, 16),
    (4, 6, 8),
    (4, 8, 4),
    (2, 6, 4),
)


def _start(tile: tuple[int, int, int], threads: int, depth: int, chunk: int, prefetch: int) -> dict[str, Value]:
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "KC": depth, "PACK_A": False, "PACK_B": False,
        "STREAM": False, "UNROLL": 4, "PREFETCH": prefetch, "CHUNK": chunk, "THREADS": threads,
    }  # fmt: skip


KERNEL = Kernel(
    operation="bmm",
    name="stacked",
    target="cpu",
    source=Source(
        Path("stacked.numba.py"),
        includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py"), *DIRECT),
    ),
    idea="threads share the matrices; a tile of each C in vector registers, A and B read in place",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("MR", 2, 4, 6, 8),
        choice("NR", 4, 6, 8, 12, 16, 24, 32, 48, 64),
        choice("KC", 64, 512, 4096),
        choice("PACK_A", False, True),
        choice("PACK_B", False, True),
        choice("STREAM", False, True),
        choice("UNROLL", 1, 2, 4),
        choice("PREFETCH", 0, 1),
        powers_of_two("CHUNK", 1, 64),
        choice("THREADS", *THREAD_COUNTS),
    ),
    constraints=(
        *register_tile_rules(),
        for_speed("a tile is no wider than C, or a vector", lambda p, d, c: (c.NR == c.WIDTH) | (p.n >= c.NR)),
        for_speed("a part of K is less than eight times K", lambda p, d, c: (c.KC == 64) | (8 * p.k > c.KC)),
        for_speed(
            "a sum that is streamed past the caches is complete",
            lambda p, d, c: (c.STREAM ^ True) | (p.k <= c.KC),
        ),
        for_speed(
            "packing and prefetching B is for a B that is read in place otherwise",
            lambda p, d, c: (
                ((c.PACK_B ^ True) & (c.PREFETCH == 0))
                | ((p.layout[1] == "n") & (c.PACK_B ^ (c.PREFETCH > 0)))
            ),
        ),
        at_most_cores(),
        work_for_each_thread("some matrices", lambda p, c: ceil_div(p.batch, c.CHUNK)),
    ),
    tiles=lambda p, c: {"m": c.MR, "n": c.NR},
    threads="THREADS",
    starts=tuple(
        _start(tile, threads, *others)
        for threads in (2, 64, 32, 16, 8, 4, 1)
        for tile in TILES
        for others in ((64, 16, 0), (64, 64, 1), (512, 1, 0))
    ),
)  # fmt: skip
