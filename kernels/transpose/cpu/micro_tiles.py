"""transpose on the CPU, our own: micro-tiles turned in vector registers, and threads."""

# ruff: noqa: SIM300
from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Constraint, Kernel, ceil_div, choice, powers_of_two


def _vector_bytes(p: Any, c: Any) -> Any:
    return DTYPE_BYTES[p.dtype] * c.WIDTH


#: Threads: also as many as CPUs have cores that are no power of two.
COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)

KERNEL = Kernel(
    operation="transpose",
    name="micro_tiles",
    target="cpu",
    source=Path("micro_tiles.numba.py"),
    includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
    idea="micro-tiles turned in vector registers, inside blocks that stay in the cache",
    parameters=(
        choice("WIDTH", 4, 8, 16),
        powers_of_two("ROWS", 16, 512),
        powers_of_two("COLUMNS", 16, 4096),
        choice("STREAM", False, True),
        choice("PREFETCH", 0, 32, 64, 128),
        choice("THREADS", *COUNTS),
    ),
    constraints=(
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1), for_speed=True),
        Constraint(
            "a row of a micro-tile fits into a vector register",
            lambda p, d, c: (c.WIDTH == 4) | (_vector_bytes(p, c) <= d.vector_bytes),
            for_speed=True,
        ),
        Constraint(
            "stores that go round the cache are aligned in every row of B: M is divisible by WIDTH",
            lambda p, d, c: (c.STREAM < 1) | (p.m % c.WIDTH == 0),
        ),
        Constraint(
            "a block for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.m, c.ROWS) * ceil_div(p.n, c.COLUMNS),
            for_speed=True,
        ),
        Constraint(
            "a block is less than twice as long as A in either direction, or the smallest",
            lambda p, d, c: ((c.ROWS == 16) | (c.ROWS < 2 * p.m)) & ((c.COLUMNS == 16) | (c.COLUMNS < 2 * p.n)),
            for_speed=True,
        ),
    ),
    defaults={"WIDTH": 4, "ROWS": 64, "COLUMNS": 64, "STREAM": False, "PREFETCH": 0, "THREADS": 1},
    starts=tuple(
        {"WIDTH": width, "ROWS": 16, "COLUMNS": columns, "STREAM": True, "PREFETCH": ahead, "THREADS": threads}
        for width in (16, 8)
        for threads in (64, 32, 16, 8, 4, 2, 1)
        for columns, ahead in ((4096, 64), (512, 64), (512, 0))
    ),
)
