"""bmm on CUDA in numbers of 16 or 8 bits, on tensor cores of sm_90 fed by tensor maps."""

from pathlib import Path
from typing import Any

from tuner import (
    FLOAT8_DTYPES,
    Constraint,
    Epilogue,
    Kernel,
    Launch,
    Problem,
    Scope,
    Source,
    Step,
    TensorMap,
    ceil_div,
)
from tuner.declare.rules import wgmma_box, wgmma_parameters, wgmma_rules, wgmma_shared_bytes, wgmma_starts

from ._stacks import few_blocks

GEMM, GROUPED = Path("../../gemm/cuda"), Path("../../grouped/cuda")


def _blocks(p: Problem, c: Any) -> Any:
    """Tiles of all products."""
    return p.batch * ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


def _launch(p: Problem, c: Any) -> Launch:
    maps = (
        TensorMap("map_a", "a", wgmma_box(p, p.layout[0] == "t", c.BM), 128),
        TensorMap("map_b", "b", wgmma_box(p, p.layout[1] == "n", c.BN), 128),
        *((TensorMap("map_c", "c", (1, 16, 64), 128),) if c.STORE == "tma" else ()),
    )
    given = (
        "map_a",
        "map_b",
        "map_c" if c.STORE == "tma" else "map_a",
        "c",
        *Epilogue.read(p.epilogue).operands,
        "batch",
        "m",
        "n",
        "k",
    )
    step = Step(
        "bmm", (c.BLOCKS or _blocks(p, c),), (128 * (c.CONSUMERS + 1),), wgmma_shared_bytes(p, c), given
    )
    return Launch.of("bmm", [step], maps=maps)


KERNEL = Kernel(
    operation="bmm",
    name="wgmma",
    target="cuda",
    source=Source(
        Path("wgmma.cu"),
        includes=(
            GEMM / "half.cuh",
            Path("pairs.cuh"),
            GROUPED / "operands.cuh",
            *(GEMM / f"{name}.cuh" for name in ("hopper", "tensor_maps", "operand_layout", "wgmma_shared")),
            GEMM / "scales.cuh",
            GEMM / "tile_order.cuh",
            GROUPED / "wgmma_tiles.cuh",
        ),
    ),
    idea="tensor maps fetch what warpgroups multiply; blocks stay, and take tiles of all products in turn",
    scope=Scope(dtypes=("float16", "bfloat16", *FLOAT8_DTYPES), epilogues=True, architecture="sm_90a"),
    parameters=wgmma_parameters(),
    constraints=(
        *wgmma_rules(lambda p, c: p.m),
        few_blocks(lambda p, c: 1.0 * _blocks(p, c)),
        Constraint("rows of all C can be counted in 31 bits", lambda p, d, c: p.batch * p.m < 2**31),
    ),
    launch=_launch,
    tiles=lambda p, c: {"batch": 1, "m": c.BM, "n": c.BN},
    starts=wgmma_starts(),
)
