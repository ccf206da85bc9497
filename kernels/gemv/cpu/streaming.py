"""gemv on the CPU, own design: rows or columns side by side in vector registers, read by several threads."""

from pathlib import Path

from tuner import Kernel, Source, ceil_div, choice, powers_of_two
from tuner.declare.rules import (
    THREAD_COUNTS,
    at_most_cores,
    for_speed,
    vectors_as_wide_as_the_cpu,
    work_for_each_thread,
)

from ._bands import band_within_rows

KERNEL = Kernel(
    operation="gemv",
    name="streaming",
    target="cpu",
    source=Source(
        Path("streaming.numba.py"),
        includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
    ),
    idea="A read once by threads, several rows or columns side by side; what sums up stays in registers",
    parameters=(
        choice("WIDTH", 2, 4, 8, 16),
        choice("AT_ONCE", 1, 2, 4, 8),
        choice("UNROLL", 1, 2, 4),
        powers_of_two("BLOCK", 16, 16384),
        powers_of_two("PARTS", 1, 64),
        choice("PREFETCH", 0, 256, 512, 1024),
        choice("THREADS", *THREAD_COUNTS),
    ),
    constraints=(
        vectors_as_wide_as_the_cpu(),
        for_speed(
            "4 to 16 vectors are read side by side",
            lambda p, d, c: (c.AT_ONCE * c.UNROLL >= 4) & (c.AT_ONCE * c.UNROLL <= 16),
        ),
        for_speed(
            "only columns are cut into parts, each of 8 columns or more, and only for threads",
            lambda p, d, c: (
                (c.PARTS == 1) | ((c.PARTS <= 4 * c.THREADS) & (p.n >= 8 * c.PARTS) & (p.layout == "t"))
            ),
        ),
        at_most_cores(),
        work_for_each_thread("a band, or a part of one,", lambda p, c: ceil_div(p.m, c.BLOCK) * c.PARTS),
        band_within_rows(),
    ),
    threads="THREADS",
    # Lines are not asked for ahead at first: the CPU sees by itself that rows are read from front to back, and
    # what is asked for beyond the end of a row or band is fetched twice.
    starts=(
        {"WIDTH": 8, "AT_ONCE": 4, "UNROLL": 1, "BLOCK": 64, "PARTS": 1, "PREFETCH": 0, "THREADS": 1},
        *({
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
        )),
    ),
)  # fmt: skip
