"""gemm on the CPU, first step: three nested loops, as the definition says."""

# ruff: noqa: SIM300
from functools import partial
from pathlib import Path

from tuner import Constraint, Kernel, powers_of_two

#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)

KERNEL = Kernel(
    operation="gemm",
    name="naive",
    target="cpu",
    source=Path("naive.numba.py"),
    idea="three nested loops; a thread takes whole rows of C",
    parameters=(powers_of_two("THREADS", 1, 256),),
    constraints=(
        for_speed("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        for_speed("a row of C for each thread", lambda p, d, c: c.THREADS <= p.m),
    ),
    defaults={"THREADS": 1},
)
