"""gemm on the CPU, second step: square blocks that stay in the cache, and an inner loop for the vector unit."""

# ruff: noqa: SIM300
from functools import partial
from pathlib import Path

from tuner import DTYPE_BYTES, Constraint, Kernel, ceil_div, choice, powers_of_two

#: Rules that leave out what is not worth trying; what breaks them is right all the same.
for_speed = partial(Constraint, for_speed=True)

KERNEL = Kernel(
    operation="gemm",
    name="blocked",
    target="cpu",
    source=Path("blocked.numba.py"),
    idea="cache blocks; a vectorised inner loop; each block of C accumulated apart and written once",
    parameters=(
        powers_of_two("BLOCK", 8, 1024),
        choice("TRANSPOSE_B", False, True),
        powers_of_two("THREADS", 1, 256),
    ),
    constraints=(
        for_speed("no more threads than cores", lambda p, d, c: c.THREADS <= max(d.cores, 1)),
        for_speed(
            "a block of C for each thread",
            lambda p, d, c: c.THREADS <= ceil_div(p.m, c.BLOCK) * ceil_div(p.n, c.BLOCK),
        ),
        for_speed(
            "a block is less than twice the largest dim",
            lambda p, d, c: (c.BLOCK == 8) | (c.BLOCK < 2 * max(p.m, p.n, p.k)),
        ),
        for_speed(
            "the blocks of A, B and C of all threads fit into the last-level cache",
            lambda p, d, c: (
                (d.l2_bytes == 0) | (3 * c.BLOCK**2 * DTYPE_BYTES[p.dtype] * c.THREADS <= d.l2_bytes)
            ),
        ),
    ),
    defaults={"BLOCK": 128, "TRANSPOSE_B": False, "THREADS": 1},
)
