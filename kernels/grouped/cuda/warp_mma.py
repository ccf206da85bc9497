"""grouped on CUDA in 16-bit numbers, on tensor cores by warps: sm_80 and later."""

from pathlib import Path
from typing import Any

from tuner import Config, Kernel, Launch, Problem, Scope, Source
from tuner.declare.rules import (
    below_multiple,
    mma_parameters,
    mma_rules,
    mma_shared_bytes,
    mma_start,
    mma_threads,
)

from ._groups import BMM, GEMM, blocks, countable, order, tiles


def _launch(p: Problem, c: Config) -> Launch:
    return Launch(grid=(blocks(p, c),), block=(mma_threads(p, c),), shared_bytes=mma_shared_bytes(p, c))


def _start(*how: Any) -> dict[str, Any]:
    return mma_start(*how) | {"GROUP": 8, "ORDER": "rows"}


KERNEL = Kernel(
    operation="grouped",
    name="warp_mma",
    target="cuda",
    source=Source(
        Path("warp_mma.cu"),
        includes=(
            GEMM / "half.cuh", BMM / "pairs.cuh", GEMM / "copies.cuh", GEMM / "tile_order.cuh",
            BMM / "mma_tile.cuh", Path("groups.cuh"),
        ),
    ),
    idea="tensor cores by warps, tiles copied ahead; each block finds its group's rows from the offsets",
    scope=Scope(dtypes=("float16", "bfloat16")),
    parameters=(*mma_parameters(), *order()),
    constraints=(
        *mma_rules(),
        countable(),
        below_multiple(
            "a tile is less than four times as high as a usual group", lambda p, c: c.BM, 16,
            lambda p, c: p.rows / p.groups, 4,
        ),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        _start((64, 64, 32), (2, 2), 4), _start((128, 128, 32), (2, 2), 4), _start((128, 128, 64), (2, 4), 3),
        _start((128, 256, 32), (2, 4), 4), _start((16, 64, 64), (1, 4), 6), _start((16, 128, 64), (1, 4), 4),
        _start((32, 64, 64), (1, 4), 6), _start((16, 32, 32), (1, 2), 2),
        _start((64, 64, 32), (2, 2), 2, 1), _start((16, 32, 32), (1, 2), 2, 1),
        _start((64, 64, 32), (2, 2), 4, 2), _start((64, 64, 32), (2, 2), 4, 4),
    ),
)  # fmt: skip
