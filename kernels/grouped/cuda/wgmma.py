"""grouped on CUDA in numbers of 16 or 8 bits, on tensor cores of sm_90 fed by tensor maps."""

from pathlib import Path
from typing import Any

from tuner import FLOAT8_DTYPES, Epilogue, Kernel, Launch, Problem, Scope, Source, Step, TensorMap
from tuner.declare.rules import wgmma_box, wgmma_parameters, wgmma_rules, wgmma_shared_bytes, wgmma_starts

from ._groups import BMM, GEMM, blocks, countable, tiles


def _launch(p: Problem, c: Any) -> Launch:
    count = c.BLOCKS or blocks(p, c)
    box = wgmma_box(p, p.layout[1] == "n", c.BN)
    maps = TensorMap("map_a", "a", wgmma_box(p, False, c.BM)[1:], 128), TensorMap("map_b", "b", box, 128)
    maps += (TensorMap("map_c", "c", (16, 64), 128),) if c.STORE == "tma" else ()
    given = (
        "map_a",
        "map_b",
        "map_c" if c.STORE == "tma" else "map_a",
        "offsets",
        "c",
        *Epilogue.read(p.epilogue).operands,
        "rows",
        "n",
        "k",
        "groups",
    )
    step = Step("grouped", (count,), (128 * (c.CONSUMERS + 1),), wgmma_shared_bytes(p, c), given)
    return Launch.of("grouped", [step], maps=maps)


KERNEL = Kernel(
    operation="grouped",
    name="wgmma",
    target="cuda",
    source=Source(
        Path("wgmma.cu"),
        includes=(
            GEMM / "half.cuh",
            BMM / "pairs.cuh",
            Path("operands.cuh"),
            *(GEMM / f"{name}.cuh" for name in ("hopper", "tensor_maps", "operand_layout", "wgmma_shared")),
            GEMM / "scales.cuh",
            GEMM / "tile_order.cuh",
            Path("wgmma_tiles.cuh"),
            Path("groups.cuh"),
        ),
    ),
    idea="tensor maps fetch what warpgroups multiply; blocks that stay find their groups from the offsets",
    scope=Scope(dtypes=("float16", "bfloat16", *FLOAT8_DTYPES), epilogues=True, architecture="sm_90a"),
    parameters=wgmma_parameters(),
    constraints=(*wgmma_rules(lambda p, c: p.rows / p.groups, 4), countable()),
    launch=_launch,
    tiles=tiles,
    starts=wgmma_starts(),
)
