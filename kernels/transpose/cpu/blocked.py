"""transpose on the CPU, second step: square blocks."""

# ruff: noqa: SIM300
from pathlib import Path

from tuner import Constraint, Kernel, ceil_div, powers_of_two

KERNEL = Kernel(
    operation="transpose",
    name="blocked",
    target="cpu",
    source=Path("blocked.numba.py"),
    idea="square blocks that stay in the cache",
    parameters=(powers_of_two("BLOCK", 4, 512), powers_of_two("THREADS", 1, 256)),
    constraints=(
        Constraint("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1), for_speed=True),
        Constraint(
            "a block for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.m, c.BLOCK) * ceil_div(p.n, c.BLOCK),
            for_speed=True,
        ),
        Constraint(
            "a block is less than twice the larger dim",
            lambda p, d, c: (c.BLOCK == 4) | (c.BLOCK < 2 * max(p.m, p.n)),
            for_speed=True,
        ),
    ),
    defaults={"BLOCK": 32, "THREADS": 1},
)
