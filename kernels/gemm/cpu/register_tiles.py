"""gemm on the CPU with a tile of C in vector registers: two kernels.

`packed` works as the best libraries do. `direct` reads A and B in place, which is better for small matrices and
for long and thin ones, because packing them costs more than it gains.
"""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Kernel, Problem, Source, Value, choice, powers_of_two
from tuner.declare.rules import THREAD_COUNTS, at_most_cores, for_speed, register_tile_rules

#: Good tiles (WIDTH, MR, NR) for each width of vectors and dtype: of `packed`, which may have any height, and
#: of `direct`, which has an address in a register for each row.
TALL = (
    (16, 6, 64), (16, 14, 32), (16, 8, 48), (8, 6, 32), (8, 14, 16), (8, 8, 24), (8, 6, 16), (8, 4, 24),
    (4, 6, 8), (4, 4, 12), (2, 6, 4), (2, 4, 6),
)  # fmt: skip
FLAT = (
    (16, 6, 64), (16, 8, 32), (16, 8, 48), (8, 6, 32), (8, 8, 16), (8, 8, 24), (8, 6, 16), (8, 4, 24),
    (4, 6, 8), (4, 4, 12), (2, 6, 4), (2, 4, 6),
)  # fmt: skip
#: Of these, what does most multiply-adds for a load.
LARGE = tuple(tile for tile in FLAT if tile not in ((16, 8, 32), (8, 8, 16)))
#: For a C of few columns: a vector a row.
NARROW = ((16, 8, 16), (8, 8, 8), (4, 8, 4), (2, 8, 4))


def _tile(p: Problem, c: Any) -> dict[str, Any]:
    """The tile of C in registers."""
    return {"m": c.MR, "n": c.NR}


TILE_PARAMETERS = (
    choice("WIDTH", 2, 4, 8, 16),
    choice("MR", 2, 4, 6, 8, 10, 12, 14),
    choice("NR", 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96),
)
TILE_RULES = register_tile_rules()
THREAD_RULES = (
    at_most_cores(),
    for_speed(
        "from 128^3 products a core on, half of the cores work, or two: the other half may be the same ones",
        lambda p, d, c: (
            (min(max(d.cores, 1), max(2, d.cores // 2)) <= c.THREADS)
            | (p.m * p.n * p.k < 128**3 * max(d.cores, 1))
        ),
    ),
    for_speed(
        "a tile for each thread", lambda p, d, c: (c.THREADS == 1) | (p.m * p.n >= c.THREADS * c.MR * c.NR)
    ),
)
#: Sources that both are made of, in front of their own.
PARTS = tuple(
    Path(name)
    for name in ("../../vectors.numba.py", "../../threads.numba.py", "tile.numba.py", "panels.numba.py")
)

#: Blocks (MC, KC, NC) of `packed`, from N = 512 on; below, `direct` is the first to try. With larger MC panels
#: of B are read less often; with a smaller one there are jobs for many threads.
BLOCKS, LARGE_BLOCKS, SMALL_BLOCKS = (96, 512, 2048), (192, 512, 2048), (48, 384, 2048)
#: Threads of first configs, more before fewer; no more are legal than the CPU has cores.
MANY = (64, 32, 16, 8, 4, 2)


def _packed(
    tile: tuple[int, int, int], threads: int = 1, blocks: tuple[int, int, int] = BLOCKS
) -> dict[str, Value]:
    slabs = 1 if threads == 1 else max(2, threads // 2)
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "MC": blocks[0], "KC": blocks[1], "NC": blocks[2],
        "UNROLL": 1, "PREFETCH": 8, "THREADS": threads, "SHARE": "B" if slabs == 1 else "both", "SLABS": slabs,
    }  # fmt: skip


def _direct(tile: tuple[int, int, int], threads: int = 1, **others: Value) -> dict[str, Value]:
    return {
        "WIDTH": tile[0], "MR": tile[1], "NR": tile[2], "KC": 64, "PACK_A": False, "PACK_B": False,
        "STREAM": False, "UNROLL": 1, "PREFETCH": 0, "THREADS": threads,
        "SPLIT": "rows" if threads == 1 else "both",
    } | others  # fmt: skip


PACKED = Kernel(
    operation="gemm",
    name="packed",
    target="cpu",
    source=Source(Path("packed.numba.py"), includes=PARTS, finishing=Path("epilogue.numba.py")),
    idea="five loops round a tile of C in vector registers; A and B packed into panels that the caches hold",
    parameters=(
        *TILE_PARAMETERS,
        choice("MC", 24, 48, 96, 192, 384, 768),
        choice("KC", 64, 128, 192, 256, 384, 512, 768, 1024),
        choice("NC", 256, 512, 1024, 2048, 4096, 8192),
        choice("UNROLL", 1, 2, 4),
        choice("PREFETCH", 0, 8, 16, 32),
        choice("THREADS", *THREAD_COUNTS),
        choice("SHARE", "B", "both"),
        powers_of_two("SLABS", 1, 64),
    ),
    constraints=(
        *TILE_RULES,
        for_speed(
            "a panel of A fits into the first-level cache",
            lambda p, d, c: c.MR * c.KC * DTYPE_BYTES[p.dtype] <= (d.l1_bytes or 32 << 10),
        ),
        for_speed("MC is at most twice M", lambda p, d, c: (c.MC == 24) | (2 * p.m >= c.MC)),
        for_speed(
            "KC is at most twice K, and not far below it if K is small",
            lambda p, d, c: ((c.KC == 64) | (2 * p.k >= c.KC)) & (min(p.k, 128) <= c.KC),
        ),
        for_speed(
            "NC is at most four times N, and not below it if N is small",
            lambda p, d, c: ((c.NC == 256) | (4 * p.n >= c.NC)) & (min(p.n, 2048) <= c.NC),
        ),
        for_speed(
            "C has several tiles in each direction, else packing is not worth its time",
            lambda p, d, c: ((p.m >= 4 * c.MR) & (p.n >= 2 * c.NR)) | ((c.MR == 8) & (c.NR == c.WIDTH)),
        ),
        *THREAD_RULES,
        for_speed(
            "A is packed once for all only if several threads multiply by the same rows",
            lambda p, d, c: (c.SHARE == "B") | ((c.THREADS > 1) & (c.SLABS > 1)),
        ),
        for_speed(
            "slabs are a panel or more",
            lambda p, d, c: (c.SLABS == 1) | ((c.SLABS * c.NR <= c.NC) & (p.n >= c.SLABS * c.NR)),
        ),
        for_speed(
            "a step has a job for each thread, and a single thread shares nothing",
            lambda p, d, c: ((c.THREADS > 1) | (c.SLABS == 1)) & ((p.m + c.MC) * c.SLABS >= c.THREADS * c.MC),
        ),
    ),
    tiles=_tile,
    threads="THREADS",
    starts=(
        _packed((8, 6, 16), 2),
        *(
            _packed(tile, threads, blocks)
            for threads in (*MANY, 1)
            for tile in TALL
            for blocks in (BLOCKS, SMALL_BLOCKS if threads > 2 else LARGE_BLOCKS)
        ),
    ),
)

DIRECT = Kernel(
    operation="gemm",
    name="direct",
    target="cpu",
    source=Source(Path("direct.numba.py"), includes=PARTS, finishing=Path("epilogue.numba.py")),
    idea="a tile of C in vector registers, A and B read in place: for small and for long and thin shapes",
    parameters=(
        *TILE_PARAMETERS,
        choice("KC", 64, 256, 512, 1024, 4096, 16384),
        choice("PACK_A", False, True),
        choice("PACK_B", False, True),
        choice("STREAM", False, True),
        choice("UNROLL", 1, 2, 4),
        choice("PREFETCH", 0, 1, 2),
        choice("THREADS", *THREAD_COUNTS),
        choice("SPLIT", "rows", "columns", "both"),
    ),
    constraints=(
        *TILE_RULES,
        for_speed(
            "the addresses of at most 8 rows of A fit into the general registers",
            lambda p, d, c: c.PACK_A | (c.MR <= 8) | (p.layout[0] == "t"),
        ),
        for_speed("a tile is at most as wide as C", lambda p, d, c: (c.NR == c.WIDTH) | (p.n >= c.NR)),
        for_speed(
            "a tile is one vector wide only if C has few columns",
            lambda p, d, c: (c.NR > c.WIDTH) | (p.n <= 4 * c.WIDTH),
        ),
        for_speed("KC is at most twice K", lambda p, d, c: (c.KC == 64) | (2 * p.k >= c.KC)),
        for_speed(
            "C is streamed past the caches only if it is written once and does not fit into them",
            lambda p, d, c: (
                (c.STREAM ^ True)
                | ((p.k <= c.KC) & (2 * p.m * p.n * DTYPE_BYTES[p.dtype] > (d.l2_bytes or 32 << 20)))
            ),
        ),
        for_speed(
            "B that is stored transposed is packed in any case",
            lambda p, d, c: (c.PACK_B ^ True) | (p.layout[1] == "n"),
        ),
        for_speed(
            "strips of B are prefetched only if B is read in place",
            lambda p, d, c: (c.PREFETCH == 0) | ((c.PACK_B ^ True) & (p.layout[1] == "n")),
        ),
        *THREAD_RULES,
        for_speed(
            "the split of C is a choice only with several threads",
            lambda p, d, c: (c.THREADS > 1) | (c.SPLIT == "rows"),
        ),
        for_speed(
            "the side that is split is not much shorter than the other",
            lambda p, d, c: (
                (c.THREADS == 1)
                | (((c.SPLIT != "rows") | (p.n <= 8 * p.m)) & ((c.SPLIT != "columns") | (p.m <= 8 * p.n)))
            ),
        ),
    ),
    tiles=_tile,
    threads="THREADS",
    starts=(
        _direct((8, 6, 16), 2),
        # In the order of what few shapes allow: few columns; a short K; a K that is worth a copy of A; any.
        *(_direct(tile, threads, KC=4096, UNROLL=4) for threads in (*MANY, 1) for tile in NARROW),
        *(_direct(tile, threads, PACK_B=True, STREAM=True) for threads in (*MANY, 1) for tile in LARGE),
        *(_direct(tile, threads, KC=512, PACK_A=True, PREFETCH=2) for threads in (*MANY, 1) for tile in LARGE),
        *(_direct(tile, threads, KC=depth) for threads in (*MANY, 1) for depth in (256, 64) for tile in FLAT),
    ),
)
