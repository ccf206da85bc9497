"""gemm on the CPU, first step: three nested loops, as in the definition."""

from pathlib import Path

from tuner import Kernel, Source, powers_of_two
from tuner.declare.rules import at_most_cores, work_for_each_thread

KERNEL = Kernel(
    operation="gemm",
    name="naive",
    target="cpu",
    source=Source(Path("naive.numba.py"), finishing=Path("epilogue.numba.py")),
    idea="three nested loops; a thread takes whole rows of C",
    parameters=(powers_of_two("THREADS", 1, 256),),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a row of C", lambda p, c: p.m),
    ),
    threads="THREADS",
    starts=({"THREADS": 1},),
)
