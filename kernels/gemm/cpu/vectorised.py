"""gemm on the CPU, second step: the inner loop in vectors."""

# ruff: noqa: SIM300
from functools import partial
from pathlib import Path

from tuner import DTYPE_BYTES, Constraint, Kernel, choice, powers_of_two

#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)
#: Registers of the CPU that a vector may be made of.
MOST_REGISTERS = 8

KERNEL = Kernel(
    operation="gemm",
    name="vectorised",
    target="cpu",
    source=Path("vectorised.numba.py"),
    includes=(Path("../../vectors.numba.py"), Path("../../threads.numba.py")),
    idea="the inner loop in vectors: a value of A meets a vector of B; no blocks",
    parameters=(choice("WIDTH", 4, 8, 16, 32, 64, 128), powers_of_two("THREADS", 1, 256)),
    constraints=(
        for_speed("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        for_speed("a row of C for each thread", lambda p, d, c: c.THREADS <= p.m),
        for_speed(
            f"a vector takes {MOST_REGISTERS} registers or fewer",
            lambda p, d, c: (
                (c.WIDTH == 4) | (DTYPE_BYTES[p.dtype] * c.WIDTH <= MOST_REGISTERS * max(d.vector_bytes, 16))
            ),
        ),
    ),
    defaults={"WIDTH": 8, "THREADS": 1},
)
