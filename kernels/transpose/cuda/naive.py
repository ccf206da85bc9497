"""transpose on CUDA, first step of the ladder: a thread per element."""

from pathlib import Path

from tuner import Config, Kernel, Launch, Problem, Source, ceil_div, powers_of_two
from tuner.declare.rules import threads_fit


def _launch(p: Problem, c: Config) -> Launch:
    blocks = ceil_div(p.n, c.BLOCK_X) * ceil_div(p.m, c.BLOCK_Y)
    return Launch(grid=(blocks,), block=(c.BLOCK_X, c.BLOCK_Y))


KERNEL = Kernel(
    operation="transpose",
    name="naive",
    target="cuda",
    source=Source(Path("naive.cu")),
    idea="a thread per element; reads are side by side, writes are not",
    parameters=(powers_of_two("BLOCK_X", 4, 256), powers_of_two("BLOCK_Y", 1, 32)),
    constraints=(threads_fit(lambda p, c: c.BLOCK_X * c.BLOCK_Y),),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BLOCK_Y, "n": c.BLOCK_X},
    starts=({"BLOCK_X": 32, "BLOCK_Y": 32},),
)
