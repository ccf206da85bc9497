"""What kernels of wgmma and tensor maps share: maps of stacks, tiles, texts (grouped's wgmma_tiles.cuh)."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Problem, TensorMap, ceil_div
from tuner.declare.rules import wgmma_box

from ._stacks import few_blocks

GEMM, GROUPED = Path("../../gemm/cuda"), Path("../../grouped/cuda")
#: What a source is made of, before its own file.
SOURCES = (
    GEMM / "half.cuh",
    Path("pairs.cuh"),
    GROUPED / "operands.cuh",
    *(GEMM / f"{name}.cuh" for name in ("hopper", "tensor_maps", "operand_layout", "wgmma_shared")),
    GEMM / "scales.cuh",
    GEMM / "tile_order.cuh",
    GROUPED / "wgmma_tiles.cuh",
)


def all_tiles(p: Problem, c: Any) -> Any:
    """Tiles of all products."""
    return p.batch * ceil_div(p.m, c.BM) * ceil_div(p.n, c.BN)


def maps(p: Problem, c: Any) -> tuple[TensorMap, ...]:
    """Boxes of A, of B, and of C where it is stored in them."""
    return (
        TensorMap("map_a", "a", wgmma_box(p, p.layout[0] == "t", c.BM), 128),
        TensorMap("map_b", "b", wgmma_box(p, p.layout[1] == "n", c.BN), 128),
        *((TensorMap("map_c", "c", (1, 16, 64), 128),) if c.STORE == "tma" else ()),
    )


def given(c: Any, *operands: str) -> tuple[str, ...]:
    """Arguments of the kernel: maps, C, what the epilogue takes, sizes."""
    third = "map_c" if c.STORE == "tma" else "map_a"
    return ("map_a", "map_b", third, "c", *operands, "batch", "m", "n", "k")


def countable() -> tuple[Constraint, ...]:
    """A grid has one dimension, a map as many rows as all C."""
    return (
        few_blocks(lambda p, c: 1.0 * all_tiles(p, c)),
        Constraint("rows of all C can be counted in 31 bits", lambda p, d, c: p.batch * p.m < 2**31),
    )
