"""transpose on the CPU, first step: two nested loops."""

# ruff: noqa: SIM300
from pathlib import Path

from tuner import Constraint, Kernel, powers_of_two

KERNEL = Kernel(
    operation="transpose",
    name="naive",
    target="cpu",
    source=Path("naive.numba.py"),
    idea="two nested loops; a thread takes whole rows of A",
    parameters=(powers_of_two("THREADS", 1, 256),),
    constraints=(
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1), for_speed=True),
        Constraint("a row of A for each thread", lambda p, d, c: c.THREADS <= p.m, for_speed=True),
    ),
    defaults={"THREADS": 1},
)
