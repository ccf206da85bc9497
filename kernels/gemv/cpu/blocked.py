"""gemv on the CPU, second step: bands of rows, vector instructions, several rows or columns at once."""

from pathlib import Path

from tuner import Kernel, Source, ceil_div, choice, powers_of_two
from tuner.declare.rules import at_most_cores, work_for_each_thread

from ._bands import band_within_rows

KERNEL = Kernel(
    operation="gemv",
    name="blocked",
    target="cpu",
    source=Source(Path("blocked.numba.py")),
    idea="bands of rows, read along memory with vector instructions; several rows or columns at once",
    parameters=(
        powers_of_two("BLOCK", 16, 8192),
        choice("AT_ONCE", 1, 2, 4),
        powers_of_two("THREADS", 1, 256),
    ),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a band", lambda p, c: ceil_div(p.m, c.BLOCK)),
        band_within_rows(),
    ),
    threads="THREADS",
    starts=({"BLOCK": 1024, "AT_ONCE": 4, "THREADS": 1},),
)
