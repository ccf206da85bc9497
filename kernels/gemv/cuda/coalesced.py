"""gemv on CUDA, second step: neighbouring threads read neighbouring elements."""

from pathlib import Path

from tuner import Kernel, Source, choice, powers_of_two

from ._rows import launch_of, rows

KERNEL = Kernel(
    operation="gemv",
    name="coalesced",
    target="cuda",
    source=Source(Path("coalesced.cu")),
    idea="neighbouring threads read neighbouring elements of A: a thread or a warp per row",
    parameters=(powers_of_two("BLOCK", 32, 1024), choice("UNROLL", 1, 4, 8, 16)),
    launch=lambda p, c: launch_of(p, c, rows(p, c)),
    tiles=rows,
    starts=({"BLOCK": 256, "UNROLL": 1},),
)
