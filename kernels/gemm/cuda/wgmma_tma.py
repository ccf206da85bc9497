"""gemm on CUDA in 16-bit numbers: tensor cores of sm_90 fed by tensor maps (docs/kernels/gemm-wgmma_tma.md)."""

from pathlib import Path
from typing import Any

from tuner import (
    Constraint,
    Epilogue,
    Kernel,
    Launch,
    Padded,
    Problem,
    Step,
    TensorMap,
    Value,
    Workspace,
    ceil_div,
    choice,
)
from tuner.declare.rules import for_speed, select, shared_fits, smaller

#: Multiprocessors of an H100 or H200, as many as whole clusters of four find, of an H100 PCIe, of half an H100.
BLOCKS = (132, 128, 114, 66, 0)
#: Registers of a consumer's thread, by the number of consumers; a sum takes one, the rest of a thread 40.
GIVEN = {2: 232, 3: 160}
OTHER_REGISTERS = 40
#: Terms of a place, as many as 128 bytes hold; bytes of a warp's sheet of 16 x 64 elements.
TERMS, SHEET_BYTES = 64, 16 * 128
#: Elements in 16 bytes: rows that a tensor map describes have a multiple of it.
UNIT = 8


def _rows(c: Any) -> Any:
    """Rows of a block's tile."""
    return 64 * c.ROWS * select(c.TEAM == "together", c.CONSUMERS, 1)


def _cluster(c: Any) -> Any:
    """Blocks of a cluster."""
    return c.CLUSTER_M * c.CLUSTER_N


def _clusters(p: Problem, c: Any) -> Any:
    """Clusters that all tiles of C take."""
    return ceil_div(p.m, _rows(c) * c.CLUSTER_M) * ceil_div(p.n, c.WIDTH * c.CLUSTER_N)


def _blocks(p: Problem, c: Any) -> Any:
    """Blocks that all tiles of C, and shares of k, take."""
    return _clusters(p, c) * c.CLUSTER_M * c.CLUSTER_N * c.SPLIT_K


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of 64 terms of both tiles, and the consumers' sheets; they begin at a multiple of 1024."""
    return _with_sheets(c, c.SHEETS)


def _with_sheets(c: Any, sheets: Any) -> Any:
    own = select(c.STORE == "tma", 4 * c.CONSUMERS * sheets * SHEET_BYTES, 0)
    return 1024 + c.STAGES * (_rows(c) + c.WIDTH) * 2 * TERMS + own


def _box(lines: Any, sharers: Any, along_lines: bool, of_c: Any) -> tuple[Any, Any]:
    """What one copy brings of a tile of so many rows (columns), as its tensor is stored.

    A block that fetches all of a tile leaves away what lies beyond the rows (columns) that C has, but for
    multiples of eight: to fill boxes with zeros takes time.
    """
    if along_lines:
        return TERMS // sharers, 64
    return (lines // sharers if sharers > 1 else smaller(lines, ceil_div(of_c, UNIT) * UNIT)), TERMS


def _maps(p: Problem, c: Any) -> tuple[TensorMap, ...]:
    a = _box(_rows(c), c.CLUSTER_N, p.layout[0] == "t", p.m)
    b = _box(c.WIDTH, c.CLUSTER_M, p.layout[1] == "n", p.n)
    sheet = 32 if c.WIDTH % 64 else 64
    result = (TensorMap("map_c", "c", (16, sheet), 2 * sheet),) if c.STORE == "tma" else ()
    return (TensorMap("map_a", "a", a, 128), TensorMap("map_b", "b", b, 128), *result)


def _workspace(p: Problem, c: Any) -> Workspace | None:
    """Counters, which are zeros, unless a kernel adds up, and shares of C; none unless k is split."""
    if c.SPLIT_K == 1:
        return None
    blocks = _blocks(p, c)
    if c.ADD == "after":
        return Workspace(blocks * _rows(c) * c.WIDTH * 4, 0, (("parts", 0),))
    counters = ceil_div(4 * blocks * c.CONSUMERS, 256) * 256
    return Workspace(
        counters + blocks * _rows(c) * c.WIDTH * 4, counters, (("counters", 0), ("parts", counters))
    )


def _launch(p: Problem, c: Any) -> Launch:
    cluster = c.CLUSTER_M * c.CLUSTER_N
    blocks = c.BLOCKS * c.BLOCKS_PER_SM // cluster * cluster if c.BLOCKS else _blocks(p, c)
    adds = c.SPLIT_K > 1 and c.ADD == "after"
    own = ("", "parts") if adds else ("counters", "parts") if c.SPLIT_K > 1 else ("", "")
    more = Epilogue.read(p.epilogue)
    maps = "map_a", "map_b", "map_c" if c.STORE == "tma" else "map_a"
    given = (*maps, "c", *more.operands, "m", "n", "k", *own, *more.factors)
    steps = [Step("gemm", (blocks,), (128 * (c.CONSUMERS + 1),), _shared_bytes(p, c), given)]
    if adds:
        summed = ("parts", "c", *more.operands, "m", "n", *more.factors)
        fours = _blocks(p, c) // c.SPLIT_K * _rows(c) * c.WIDTH // 4
        steps.append(Step("add", (fours // 128,), (128,), 0, summed))
    return Launch.of("gemm", steps, _workspace(p, c), maps=_maps(p, c), padded=_padded(p, c))


def _padded(p: Problem, c: Any) -> tuple[Padded, ...]:
    """The operands whose rows are no multiple of 16 bytes, with longer rows."""
    if c.BORDER == "whole":
        return ()
    short = [each for each, length in zip(p.inputs[:2], _stored_rows(p), strict=True) if length % UNIT]
    return Padded.rows_of(short, UNIT)


def _stored_rows(p: Problem) -> tuple[Any, Any]:
    """Elements of a stored row of A and of B."""
    return (p.k if p.layout[0] == "n" else p.m), (p.n if p.layout[1] == "n" else p.k)


def _whole(p: Problem) -> int:
    """1 if tensor maps take both operands as they lie, else 0."""
    a, b = _stored_rows(p)
    return int(a % UNIT == 0 and b % UNIT == 0)


def _registers(c: Any) -> Any:
    """Registers that a consumer's thread may have."""
    shared = 65536 // (128 * (c.CONSUMERS + 1)) // c.BLOCKS_PER_SM
    return select(c.GIVEN > 0, c.GIVEN, select(shared > 255, 255, shared))


#: What published ladders end with: 128 x 256 tiles, clusters of two, blocks that stay.
LARGE: dict[str, Value] = {
    "CONSUMERS": 2, "TEAM": "together", "ROWS": 1, "WIDTH": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1,
    "GROUP": 8, "ORDER": "rows", "SPLIT_K": 1, "ADD": "last", "STORE": "tma", "SHEETS": 2, "LEAD": 0,
    "GIVEN": GIVEN[2], "BLOCKS": 132, "BLOCKS_PER_SM": 1, "BORDER": "whole",
}  # fmt: skip
MIDDLE = LARGE | {"WIDTH": 128, "STAGES": 6}
SMALL = LARGE | {"WIDTH": 64, "STAGES": 8, "CLUSTER_M": 1}
#: Few tiles and much to sum: shares of k on all multiprocessors, added up by as many blocks.
AFTER: dict[str, Value] = {"BLOCKS": 0, "ADD": "after"}
ANY_RESULT = {"STORE": "registers"}
PADDED = {"BORDER": "pad"}
#: Few rows: a block of 64 columns reads its share of B once, with as many places as fit.
THIN = LARGE | {
    "CONSUMERS": 1, "WIDTH": 64, "STAGES": 12, "CLUSTER_M": 1, "GIVEN": 0, "BLOCKS": 0,
}  # fmt: skip

KERNEL = Kernel(
    operation="gemm",
    name="wgmma_tma",
    target="cuda",
    source=Path("wgmma_tma.cu"),
    includes=tuple(
        Path(name)
        for name in (
            "hopper.cuh",
            "tensor_maps.cuh",
            "operand_layout.cuh",
            "wgmma_16.cuh",
            "tile_order.cuh",
            "epilogue.cuh",
            "wgmma_shares.cuh",
        )
    ),
    idea="16-bit products on tensor cores: tensor maps fetch what warpgroups multiply",
    dtypes=("float16", "bfloat16"),
    epilogues=True,
    architecture="sm_90a",
    parameters=(
        choice("BLOCKS", *BLOCKS),
        choice("CONSUMERS", 1, 2, 3),
        choice("TEAM", "together", "apart"),
        choice("ROWS", 1, 2),
        choice("WIDTH", 64, 96, 128, 160, 192, 224, 256),
        choice("STAGES", 2, 3, 4, 5, 6, 7, 8, 10, 12),
        choice("CLUSTER_M", 1, 2),
        choice("CLUSTER_N", 1, 2),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake", "hilbert"),
        choice("SPLIT_K", 1, 2, 4, 8, 16, 32, 64),
        choice("ADD", "last", "after"),
        choice("STORE", "tma", "registers"),
        choice("SHEETS", 1, 2),
        choice("LEAD", 0, 2, 3, 4),
        choice("GIVEN", 0, *GIVEN.values()),
        choice("BLOCKS_PER_SM", 1, 2),
        choice("BORDER", "whole", "pad"),
    ),
    constraints=(
        Constraint(
            "the device has wgmma and tensor maps as sm_90 has them (H100, H200, GH200)",
            lambda p, d, c: d.compute_capability == 90,
        ),
        Constraint(
            "stored rows of A and B have a multiple of 8 elements, or are padded: tensor maps take 16 bytes",
            lambda p, d, c: (c.BORDER == "pad") | (_whole(p) == 1),
        ),
        for_speed(
            "operands are padded only if tensor maps do not take them as they are",
            lambda p, d, c: (c.BORDER == "whole") | (_whole(p) == 0),
        ),
        Constraint(
            "C is stored through a tensor map only if its rows have a multiple of 8 elements",
            lambda p, d, c: (c.STORE == "registers") | (p.n % UNIT == 0),
        ),
        Constraint(
            "boxes of 64 columns make up the tile where columns of B are contiguous",
            lambda p, d, c: (c.WIDTH % 64 == 0) | (p.layout[1] == "t"),
        ),
        Constraint(
            "a box of A has at most 256 rows: a tensor map takes no more",
            lambda p, d, c: (p.layout[0] == "t") | (_rows(c) // c.CLUSTER_N <= 256),
        ),
        for_speed(
            "as many blocks stay as the device has multiprocessors, a few less for clusters of four, or none",
            lambda p, d, c: (
                (d.sm_count >= c.BLOCKS)
                & ((c.BLOCKS == 0) | (d.sm_count - c.BLOCKS < 18))
                & ((c.BLOCKS == 128) == ((c.BLOCKS > 0) & (_cluster(c) == 4)))
            ),
        ),
        for_speed(
            "clusters of four are left alone: a GPC has no whole number of them, half the speed was measured",
            lambda p, d, c: _cluster(c) < 4,
        ),
        Constraint(
            "two or three consumers may be given registers of the producer's: 232 or 160",
            lambda p, d, c: (
                (c.GIVEN == 0) | (select(c.CONSUMERS == 2, 232, 160) == c.GIVEN) & (c.CONSUMERS > 1)
            ),
        ),
        Constraint(
            "registers move to consumers only if a block has its multiprocessor alone",
            lambda p, d, c: (c.BLOCKS_PER_SM == 1) | (c.GIVEN == 0),
        ),
        Constraint(
            "a thread's sums fit its registers",
            lambda p, d, c: _registers(c) >= c.ROWS * c.WIDTH // 2 + OTHER_REGISTERS,
        ),
        Constraint(
            "consumers work apart only if there are several, and blocks stay",
            lambda p, d, c: (c.TEAM == "together") | ((c.CONSUMERS > 1) & (c.BLOCKS > 0)),
        ),
        Constraint(
            "consumers follow each other by at most as many places as there are",
            lambda p, d, c: c.LEAD <= c.STAGES,
        ),
        for_speed(
            "consumers follow each other only if several work together",
            lambda p, d, c: (c.LEAD == 0) | ((c.TEAM == "together") & (c.CONSUMERS > 1)),
        ),
        Constraint(
            "every one of SPLIT_K blocks has 64 terms of k", lambda p, d, c: ceil_div(p.k, TERMS) >= c.SPLIT_K
        ),
        for_speed(
            "k is split where tiles are fewer than multiprocessors",
            lambda p, d, c: (c.SPLIT_K == 1) | (_blocks(p, c) <= 2 * d.sm_count),
        ),
        for_speed(
            "a kernel of its own adds shares up only if k is split",
            lambda p, d, c: (c.ADD == "last") | (c.SPLIT_K > 1),
        ),
        for_speed(
            "registers move to consumers where several have a multiprocessor alone",
            lambda p, d, c: (c.GIVEN > 0) == ((c.CONSUMERS > 1) & (c.BLOCKS_PER_SM == 1)),
        ),
        for_speed(
            "C is stored in boxes where its rows allow it: 5 to 10 % faster as measured",
            lambda p, d, c: (c.STORE == "tma") | (p.n % UNIT > 0),
        ),
        for_speed(
            "less than half of a tile is beyond C's edge",
            lambda p, d, c: ((_rows(c) == 64) | (_rows(c) < 2 * p.m)) & ((c.WIDTH == 64) | (2 * p.n > c.WIDTH)),
        ),
        for_speed(
            "swaths have a height of their own unless the order is a curve",
            lambda p, d, c: (c.ORDER != "hilbert") | (c.GROUP == 8),
        ),
        for_speed(
            "a warp has one sheet only if a second one does not fit",
            lambda p, d, c: (c.SHEETS == 2) == (_with_sheets(c, 2) <= d.shared_bytes_per_block),
        ),
        for_speed(
            "places take half of what a block's shared memory holds, or all of k",
            lambda p, d, c: (
                (2 * c.BLOCKS_PER_SM * _with_sheets(c, 0) >= d.shared_bytes_per_block)
                | (p.k <= c.STAGES * TERMS * c.SPLIT_K)
            ),
        ),
        shared_fits("the places of both tiles and the sheets", _shared_bytes),
        for_speed(
            "BLOCKS_PER_SM blocks fit into a multiprocessor's shared memory",
            lambda p, d, c: c.BLOCKS_PER_SM * (_shared_bytes(p, c) + 2048) <= d.shared_bytes_per_sm,
        ),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": _rows(c), "n": c.WIDTH, "k": p.k / c.SPLIT_K},
    defaults=LARGE,
    starts=(
        MIDDLE,
        SMALL,
        LARGE | {"ORDER": "hilbert"},
        MIDDLE | {"TEAM": "apart", "ROWS": 2},
        THIN,
        THIN | {"WIDTH": 128, "STAGES": 8},
        THIN | {"WIDTH": 128, "STAGES": 8, "SPLIT_K": 2},
        LARGE | {"ORDER": "snake", "LEAD": 2},
        LARGE | {"CLUSTER_M": 1},
        LARGE | {"WIDTH": 192, "STAGES": 5, "SHEETS": 1, "LEAD": 3},
        MIDDLE | {"CLUSTER_M": 1, "SPLIT_K": 8, "BLOCKS": 0},
        *(LARGE | AFTER | {"SPLIT_K": shares} for shares in (64, 32, 16)),
        *(MIDDLE | AFTER | {"STAGES": 4, "SPLIT_K": shares} for shares in (32, 8)),
        LARGE | {"WIDTH": 192, "STAGES": 5, "SHEETS": 1, "CLUSTER_M": 1},
        *(each | ANY_RESULT for each in (LARGE, MIDDLE, SMALL, THIN)),
        *(each | more for each in (LARGE, MIDDLE, SMALL, THIN) for more in (PADDED, PADDED | ANY_RESULT)),
    ),
)
