"""transpose on the CPU, own design: micro-tiles turned in vector registers, and threads."""

from pathlib import Path
from typing import Any

from tuner import DTYPE_BYTES, Constraint, Kernel, Source, ceil_div, choice, powers_of_two
from tuner.declare.rules import THREAD_COUNTS, at_most_cores, below_multiple, for_speed, work_for_each_thread


def _vector_bytes(p: Any, c: Any) -> Any:
    return DTYPE_BYTES[p.dtype] * c.WIDTH


KERNEL = Kernel(
    operation="transpose",
    name="micro_tiles",
    target="cpu",
    source=Source(
        Path("micro_tiles.numba.py"),
        includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
    ),
    idea="micro-tiles turned in vector registers, inside blocks that stay in the cache",
    parameters=(
        choice("WIDTH", 4, 8, 16),
        powers_of_two("ROWS", 16, 512),
        powers_of_two("COLUMNS", 16, 4096),
        choice("STREAM", False, True),
        choice("PREFETCH", 0, 32, 64, 128),
        choice("THREADS", *THREAD_COUNTS),
    ),
    constraints=(
        at_most_cores(),
        for_speed(
            "a row of a micro-tile fits into a vector register",
            lambda p, d, c: (c.WIDTH == 4) | (_vector_bytes(p, c) <= d.vector_bytes),
        ),
        Constraint(
            "stores that bypass the cache are aligned in every row of B: M is divisible by WIDTH",
            lambda p, d, c: (c.STREAM < 1) | (p.m % c.WIDTH == 0),
        ),
        work_for_each_thread("a block", lambda p, c: ceil_div(p.m, c.ROWS) * ceil_div(p.n, c.COLUMNS)),
        below_multiple(
            "a block is less than twice as high as A, or the lowest",
            lambda p, c: c.ROWS, 16, lambda p, c: p.m,
        ),
        below_multiple(
            "a block is less than twice as wide as A, or the narrowest",
            lambda p, c: c.COLUMNS, 16, lambda p, c: p.n,
        ),
    ),
    threads="THREADS",
    starts=(
        {"WIDTH": 4, "ROWS": 64, "COLUMNS": 64, "STREAM": False, "PREFETCH": 0, "THREADS": 1},
        *(
            {
                "WIDTH": width, "ROWS": 16, "COLUMNS": columns, "STREAM": True, "PREFETCH": ahead,
                "THREADS": threads,
            }
            for width in (16, 8)
            for threads in (64, 32, 16, 8, 4, 2, 1)
            for columns, ahead in ((4096, 64), (512, 64), (512, 0))
        ),
    ),
)  # fmt: skip
