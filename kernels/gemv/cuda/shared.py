"""gemv on CUDA: x through shared memory."""

from pathlib import Path

from tuner import DTYPE_BYTES, Kernel, Source, choice, powers_of_two
from tuner.declare.rules import static_shared_fits

from ._rows import launch_of, piece_within_x, rows

KERNEL = Kernel(
    operation="gemv",
    name="shared",
    target="cuda",
    source=Source(Path("shared.cu")),
    idea="x through shared memory, piece by piece; the inner loop unrolled",
    parameters=(
        powers_of_two("BLOCK", 32, 1024),
        powers_of_two("PIECE", 64, 16384),
        choice("UNROLL", 1, 4, 8, 16, 32),
    ),
    constraints=(
        static_shared_fits("a piece of x", lambda p, c: DTYPE_BYTES[p.dtype] * c.PIECE),
        piece_within_x(least=64),
    ),
    launch=lambda p, c: launch_of(p, c, rows(p, c)),
    tiles=rows,
    starts=({"BLOCK": 256, "PIECE": 256, "UNROLL": 8},),
)
