"""gemm on the CPU, second step: square blocks that stay in the cache, and an inner loop for the vector unit."""

from pathlib import Path

from tuner import DTYPE_BYTES, Kernel, Source, ceil_div, choice, powers_of_two
from tuner.declare.rules import at_most_cores, below_multiple, for_speed, work_for_each_thread

KERNEL = Kernel(
    operation="gemm",
    name="blocked",
    target="cpu",
    source=Source(Path("blocked.numba.py"), finishing=Path("epilogue.numba.py")),
    idea="cache blocks; a vectorised inner loop; each block of C accumulated apart and written once",
    parameters=(
        powers_of_two("BLOCK", 8, 1024),
        choice("TRANSPOSE_B", False, True),
        powers_of_two("THREADS", 1, 256),
    ),
    constraints=(
        at_most_cores(),
        work_for_each_thread("a block of C", lambda p, c: ceil_div(p.m, c.BLOCK) * ceil_div(p.n, c.BLOCK)),
        below_multiple(
            "a block is less than twice the largest dim",
            lambda p, c: c.BLOCK, 8, lambda p, c: max(p.m, p.n, p.k),
        ),
        for_speed(
            "the blocks of A, B and C of all threads fit into the last-level cache",
            lambda p, d, c: (
                (d.l2_bytes == 0) | (3 * c.BLOCK**2 * DTYPE_BYTES[p.dtype] * c.THREADS <= d.l2_bytes)
            ),
        ),
    ),
    threads="THREADS",
    starts=({"BLOCK": 128, "TRANSPOSE_B": False, "THREADS": 1},),
)  # fmt: skip
