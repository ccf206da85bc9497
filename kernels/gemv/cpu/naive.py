"""gemv on the CPU, first step: two nested loops."""

from pathlib import Path

from tuner import Kernel, Source, powers_of_two
from tuner.declare.rules import at_most_cores, work_for_each_thread

KERNEL = Kernel(
    operation="gemv",
    name="naive",
    target="cpu",
    source=Source(Path("naive.numba.py")),
    idea="two nested loops; a thread takes whole rows",
    parameters=(powers_of_two("THREADS", 1, 256),),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a row", lambda p, c: p.m),
    ),
    threads="THREADS",
    starts=({"THREADS": 1},),
)
