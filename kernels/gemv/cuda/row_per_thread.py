"""gemv on CUDA, first step of the ladder: a thread per row."""

from pathlib import Path

from tuner import Kernel, Launch, Source, ceil_div, powers_of_two

KERNEL = Kernel(
    operation="gemv",
    name="row_per_thread",
    target="cuda",
    source=Source(Path("row_per_thread.cu")),
    idea="a thread per row of A, everything read from global memory",
    parameters=(powers_of_two("BLOCK", 32, 1024),),
    launch=lambda p, c: Launch(grid=(ceil_div(p.m, c.BLOCK),), block=(c.BLOCK,)),
    tiles=lambda p, c: {"m": c.BLOCK},
    starts=({"BLOCK": 256},),
)
