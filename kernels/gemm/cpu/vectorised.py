"""gemm on the CPU, second step: the inner loop in vectors."""

from pathlib import Path

from tuner import DTYPE_BYTES, Kernel, Source, choice, powers_of_two
from tuner.declare.rules import at_most_cores, for_speed, work_for_each_thread

#: Registers of the CPU that a vector may be made of.
MOST_REGISTERS = 8

KERNEL = Kernel(
    operation="gemm",
    name="vectorised",
    target="cpu",
    source=Source(
        Path("vectorised.numba.py"),
        includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
        finishing=Path("epilogue.numba.py"),
    ),
    idea="the inner loop in vectors: a value of A times a vector of B; no blocks",
    parameters=(choice("WIDTH", 4, 8, 16, 32, 64, 128), powers_of_two("THREADS", 1, 256)),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a row of C", lambda p, c: p.m),
        for_speed(
            f"a vector takes {MOST_REGISTERS} registers or fewer",
            lambda p, d, c: (
                (c.WIDTH == 4) | (DTYPE_BYTES[p.dtype] * c.WIDTH <= MOST_REGISTERS * max(d.vector_bytes, 16))
            ),
        ),
    ),
    threads="THREADS",
    starts=({"WIDTH": 8, "THREADS": 1},),
)
