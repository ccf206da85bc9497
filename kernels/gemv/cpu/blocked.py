"""gemv on the CPU, second step: bands of rows, vector instructions, several rows or columns at once."""

# ruff: noqa: SIM300
from pathlib import Path

from tuner import Constraint, Kernel, ceil_div, choice, powers_of_two

KERNEL = Kernel(
    operation="gemv",
    name="blocked",
    target="cpu",
    source=Path("blocked.numba.py"),
    idea="bands of rows, read along memory with vector instructions; several rows or columns at once",
    parameters=(
        powers_of_two("BLOCK", 16, 8192),
        choice("AT_ONCE", 1, 2, 4),
        powers_of_two("THREADS", 1, 256),
    ),
    constraints=(
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1), for_speed=True),
        Constraint(
            "a band for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.m, c.BLOCK),
            for_speed=True,
        ),
        Constraint(
            "a band has less than twice the rows of A, or the fewest",
            lambda p, d, c: (c.BLOCK == 16) | (c.BLOCK < 2 * p.m),
            for_speed=True,
        ),
    ),
    defaults={"BLOCK": 1024, "AT_ONCE": 4, "THREADS": 1},
)
