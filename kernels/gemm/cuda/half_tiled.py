"""gemm on CUDA in 16-bit numbers, on ordinary cores: right for every shape and alignment."""

from pathlib import Path
from typing import Any

from tuner import Config, Kernel, Launch, Problem, Scope, Source, choice
from tuner.declare.rules import static_shared_fits, threads_fit

from ._tiles import threads, tile, tiles


def _shared_bytes(p: Problem, c: Any) -> Any:
    """A tile of A and one of B as float32, each row an element longer against bank conflicts."""
    return 4 * c.BK * (c.BM + c.BN + 2)


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(tiles(p, c),), block=(threads(p, c),))


KERNEL = Kernel(
    operation="gemm",
    name="half_tiled",
    target="cuda",
    source=Source(Path("half_tiled.cu"), includes=(Path("half.cuh"), Path("epilogue.cuh"))),
    idea="16-bit elements widened into tiles in shared memory, TM x TN sums in a thread's registers",
    scope=Scope(dtypes=("float16", "bfloat16"), epilogues=True),
    parameters=(
        choice("BM", 32, 64, 128),
        choice("BN", 32, 64, 128),
        choice("BK", 8, 16, 32, 64),
        choice("TM", 2, 4, 8),
        choice("TN", 2, 4, 8),
    ),
    constraints=(threads_fit(threads, least_warps=1), static_shared_fits("tiles of A and B", _shared_bytes)),
    launch=_launch,
    tiles=lambda p, c: dict(zip("mn", tile(c), strict=True)),
    starts=({"BM": 64, "BN": 64, "BK": 16, "TM": 4, "TN": 4},),
)
