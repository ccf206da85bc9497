"""grouped on CUDA in 16-bit numbers, on tensor cores of sm_90 fed by tensor maps."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Kernel, Launch, Problem, Scope, Source, Step, TensorMap, Value, choice
from tuner.declare.rules import below_multiple, for_speed, has_wgmma, select, shared_fits

from ._groups import BMM, GEMM, blocks, countable, order, stored_row, tiles

#: Multiprocessors of an H100 or H200, of an H100 PCIe.
BLOCKS = (132, 114, 0)
#: Terms of a place, as many as 128 bytes hold; columns of a box where columns are contiguous.
TERMS, BOX_COLUMNS = 64, 64
#: Registers of a thread beside its sums.
OTHER_REGISTERS = 40


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of 64 terms of both tiles; they begin at a multiple of 1024."""
    return 1024 + 2 * TERMS * c.STAGES * (c.BM + c.BN)


def _registers(c: Any) -> Any:
    """Registers that a consumer's thread may have; one alone takes none of the producer's."""
    return select(c.CONSUMERS == 1, 255, select(c.CONSUMERS == 2, 232, 160))


def _launch(p: Problem, c: Any) -> Launch:
    count = c.BLOCKS or blocks(p, c)
    b = (1, c.BN, TERMS) if p.layout[1] == "t" else (1, TERMS, BOX_COLUMNS)
    maps = TensorMap("map_a", "a", (c.BM, TERMS), 128), TensorMap("map_b", "b", b, 128)
    given = "map_a", "map_b", "offsets", "c", "rows", "n", "k", "groups"
    step = Step("grouped", (count,), (128 * (c.CONSUMERS + 1),), _shared_bytes(p, c), given)
    return Launch.of("grouped", [step], maps=maps)


LARGE: dict[str, Value] = {
    "BM": 128, "BN": 256, "CONSUMERS": 2, "STAGES": 4, "BLOCKS": 132, "GROUP": 8, "ORDER": "rows",
}  # fmt: skip

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
            GEMM / "tile_order.cuh",
            Path("groups.cuh"),
        ),
    ),
    idea="tensor maps fetch what warpgroups multiply; blocks that stay find their groups from the offsets",
    scope=Scope(dtypes=("float16", "bfloat16"), architecture="sm_90a"),
    parameters=(
        choice("BM", 64, 128, 192, 256),
        choice("BN", 64, 128, 192, 256),
        choice("CONSUMERS", 1, 2, 3),
        choice("STAGES", 2, 3, 4, 5, 6, 8, 10),
        choice("BLOCKS", *BLOCKS),
        *order(),
    ),
    constraints=(
        has_wgmma(),
        Constraint(
            "rows of A and of all B have a multiple of 8 elements: tensor maps take 16 bytes",
            lambda p, d, c: (p.k % 8 == 0) & (stored_row(p) % 8 == 0),
        ),
        Constraint("consumers have 64 rows each, or multiples", lambda p, d, c: c.BM % (64 * c.CONSUMERS) == 0),
        Constraint(
            "the sums of a consumer's thread fit its registers",
            lambda p, d, c: _registers(c) >= c.BM // c.CONSUMERS * c.BN // 128 + OTHER_REGISTERS,
        ),
        for_speed(
            "as many blocks stay as the device has multiprocessors, or a tile each",
            lambda p, d, c: (c.BLOCKS == 0) | ((d.sm_count >= c.BLOCKS) & (d.sm_count - c.BLOCKS < 18)),
        ),
        countable(),
        shared_fits("places of both tiles", _shared_bytes),
        for_speed(
            "places take half of what a block's shared memory holds, or all of K",
            lambda p, d, c: (
                (2 * _shared_bytes(p, c) >= d.shared_bytes_per_block) | (p.k <= c.STAGES * TERMS)
            ),
        ),
        below_multiple(
            "a tile has less than four times the rows of a group, or 64", lambda p, c: c.BM, 64,
            lambda p, c: p.rows / p.groups, 4,
        ),
        below_multiple(
            "a tile is less than twice as wide as C, or 64", lambda p, c: c.BN, 64, lambda p, c: p.n,
        ),
    ),
    launch=_launch,
    tiles=tiles,
    starts=(
        LARGE, LARGE | {"ORDER": "hilbert"}, LARGE | {"BN": 128, "STAGES": 6},
        LARGE | {"BM": 256, "BN": 128}, LARGE | {"BM": 192, "BN": 128, "CONSUMERS": 3, "STAGES": 5},
        LARGE | {"BM": 64, "BN": 256, "CONSUMERS": 1, "STAGES": 5},
        LARGE | {"BM": 64, "BN": 128, "CONSUMERS": 1, "STAGES": 8}, LARGE | {"BLOCKS": 0},
        LARGE | {"BM": 64, "BN": 64, "CONSUMERS": 1, "STAGES": 10, "BLOCKS": 0},
    ),
)  # fmt: skip
