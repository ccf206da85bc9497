"""transpose on the CPU, second step: square blocks."""

from pathlib import Path

from tuner import Kernel, Source, ceil_div, powers_of_two
from tuner.declare.rules import at_most_cores, below_multiple, work_for_each_thread

KERNEL = Kernel(
    operation="transpose",
    name="blocked",
    target="cpu",
    source=Source(Path("blocked.numba.py")),
    idea="square blocks that stay in the cache",
    parameters=(powers_of_two("BLOCK", 4, 512), powers_of_two("THREADS", 1, 256)),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a block", lambda p, c: ceil_div(p.m, c.BLOCK) * ceil_div(p.n, c.BLOCK)),
        below_multiple(
            "a block is less than twice the larger dim",
            lambda p, c: c.BLOCK, 4, lambda p, c: max(p.m, p.n),
        ),
    ),
    threads="THREADS",
    starts=({"BLOCK": 32, "THREADS": 1},),
)  # fmt: skip
