"""bmm on CUDA in 16-bit numbers, on tensor cores by warps: sm_80 and later."""

from pathlib import Path
from typing import Any

from tuner import Config, Kernel, Launch, Problem, Scope, Source, ceil_div
from tuner.declare.rules import (
    below_multiple,
    mma_parameters,
    mma_rules,
    mma_shared_bytes,
    mma_start,
    mma_threads,
)

from ._stacks import few_blocks

GEMM = Path("../../gemm/cuda")


def _launch(p: Problem, c: Config) -> Launch:
    blocks = p.batch * ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)
    return Launch(grid=(blocks,), block=(mma_threads(p, c),), shared_bytes=mma_shared_bytes(p, c))


def _tiles(p: Problem, c: Any) -> dict[str, Any]:
    """What of each dim a block takes."""
    return {"batch": 1, "m": c.BM, "n": c.BN}


KERNEL = Kernel(
    operation="bmm",
    name="warp_mma",
    target="cuda",
    source=Source(
        Path("warp_mma.cu"),
        includes=(GEMM / "half.cuh", Path("pairs.cuh"), GEMM / "copies.cuh", Path("mma_tile.cuh")),
    ),
    idea="tensor cores by warps, tiles copied ahead; the batch is one more dimension of the grid",
    scope=Scope(dtypes=("float16", "bfloat16")),
    parameters=mma_parameters(),
    constraints=(
        *mma_rules(),
        few_blocks(lambda p, c: float(p.batch) * ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)),
        below_multiple("a tile is less than twice as high as A", lambda p, c: c.BM, 16, lambda p, c: p.m),
    ),
    launch=_launch,
    tiles=_tiles,
    starts=(
        mma_start((64, 64, 32), (2, 2), 4), mma_start((128, 128, 32), (2, 2), 4),
        mma_start((128, 128, 64), (2, 4), 3), mma_start((128, 64, 64), (4, 1), 2),
        mma_start((32, 32, 32), (2, 1), 2), mma_start((16, 64, 64), (1, 4), 4),
        mma_start((16, 32, 32), (1, 2), 2),
        mma_start((64, 64, 32), (2, 2), 2, 1), mma_start((16, 32, 32), (1, 2), 2, 1),
        mma_start((64, 64, 32), (2, 2), 4, 2), mma_start((128, 64, 32), (2, 2), 4, 2),
        mma_start((64, 32, 32), (2, 1), 4, 2), mma_start((64, 64, 32), (2, 2), 4, 4),
        mma_start((128, 128, 32), (2, 2), 3, 4),
    ),
)  # fmt: skip
