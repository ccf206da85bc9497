"""gemv on the CPU, our own: rows or columns side by side in vector registers, read by several threads."""

# ruff: noqa: SIM300
from pathlib import Path

from tuner import DTYPE_BYTES, Constraint, Kernel, ceil_div, choice, powers_of_two

#: Threads: also as many as CPUs have cores that are no power of two.
COUNTS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)

KERNEL = Kernel(
    operation="gemv",
    name="streaming",
    target="cpu",
    source=Path("streaming.numba.py"),
    includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
    idea="A read once by threads, several rows or columns side by side; what sums up stays in registers",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("AT_ONCE", 1, 2, 4, 8),
        choice("UNROLL", 1, 2, 4),
        powers_of_two("BLOCK", 16, 16384),
        powers_of_two("PARTS", 1, 64),
        choice("PREFETCH", 0, 256, 512, 1024),
        choice("THREADS", *COUNTS),
    ),
    constraints=(
        Constraint(
            "vectors are as wide as the CPU's",
            lambda p, d, c: c.WIDTH * DTYPE_BYTES[p.dtype] == min(max(d.vector_bytes, 16), 64),
            for_speed=True,
        ),
        Constraint(
            "4 to 16 vectors are read side by side",
            lambda p, d, c: (c.AT_ONCE * c.UNROLL >= 4) & (c.AT_ONCE * c.UNROLL <= 16),
            for_speed=True,
        ),
        Constraint(
            "only columns are cut into parts, each of 8 columns or more, and only for threads",
            lambda p, d, c: (
                (c.PARTS == 1) | ((c.PARTS <= 4 * c.THREADS) & (8 * c.PARTS <= p.n) & (p.layout == "t"))
            ),
            for_speed=True,
        ),
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1), for_speed=True),
        Constraint(
            "a band, or a part of one, for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.m, c.BLOCK) * c.PARTS,
            for_speed=True,
        ),
        Constraint(
            "a band has less than twice the rows of A, or the fewest",
            lambda p, d, c: (c.BLOCK == 16) | (c.BLOCK < 2 * p.m),
            for_speed=True,
        ),
    ),
    defaults={
        "WIDTH": 8, "AT_ONCE": 4, "UNROLL": 1, "BLOCK": 64, "PARTS": 1, "PREFETCH": 0, "THREADS": 1,
    },
    # Lines are not asked for ahead at first: the CPU sees by itself that rows are read from front to back, and
    # what is asked for beyond the end of a row or band is fetched twice.
    starts=tuple(
        {
            "WIDTH": width, "AT_ONCE": at_once, "UNROLL": unroll, "BLOCK": block, "PARTS": parts,
            "PREFETCH": ahead, "THREADS": threads,
        }
        for width in (2, 4, 8, 16)
        for threads in (64, 32, 16, 8, 4, 2, 1)
        for at_once, unroll, ahead in ((8, 2, 0), (8, 1, 0), (4, 4, 0), (4, 2, 512))
        # Columns in full length, some parts of them for each thread; rows, few or many in a band.
        for block, parts in (
            *((rows, min(64, 2 * threads if threads > 1 else 1)) for rows in (16384, 8192, 4096)),
            (64, 1), (2048, 1),
        )
    ),
)  # fmt: skip
