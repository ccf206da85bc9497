"""gemm on CUDA in numbers of 16 and of 8 bits: tensor cores of sm_90 fed by tensor maps (docs/log/kernels)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner import (
    DTYPE_BYTES,
    FLOAT8_DTYPES,
    Constraint,
    Epilogue,
    Kernel,
    Launch,
    Padded,
    Problem,
    Scope,
    Source,
    Step,
    TensorMap,
    Value,
    Workspace,
    ceil_div,
    choice,
)
from tuner.declare.rules import for_speed, has_wgmma, select, shared_fits, smaller, sums_of_8_bits

#: Multiprocessors of an H100 or H200, of an H100 PCIe, of half an H100.
BLOCKS = (132, 114, 66, 0)
#: Registers of a consumer's thread, by the number of consumers; a sum takes one, the rest of a thread 40.
GIVEN = {2: 232, 3: 160}
OTHER_REGISTERS = 40
#: Registers that an instruction takes beside its sums (ptxas).
OF_INSTRUCTION = 26
#: Bytes of a place's terms in a row or column; bytes of a warp's sheet of 16 x 64 elements.
ROW_BYTES, SHEET_BYTES = 128, 16 * 128
#: Columns (rows) of a box, where they are contiguous; a tile that has fewer is a box.
BOX_COLUMNS = 64
#: Bytes of which rows that a tensor map describes have a multiple; rows of a pattern of the swizzle, and
#: elements of C in as many bytes.
UNIT_BYTES, UNIT = 16, 8


def _terms(p: Problem) -> int:
    """Terms of a place."""
    return ROW_BYTES // DTYPE_BYTES[p.dtype]


def _unit(p: Problem) -> int:
    """Elements of which stored rows of A and B have a multiple."""
    return UNIT_BYTES // DTYPE_BYTES[p.dtype]


def _height(p: Problem, c: Any) -> Any:
    """Rows of the product that is computed: C, or its transpose."""
    return select(c.SWAP == 1, p.n, p.m)


def _width(p: Problem, c: Any) -> Any:
    """Columns of the product that is computed."""
    return select(c.SWAP == 1, p.m, p.n)


def _rows_contiguous(p: Problem, c: Any) -> Any:
    """Whether rows of the left operand are contiguous; else terms are."""
    return select(c.SWAP == 1, p.layout[1] == "n", p.layout[0] == "t")


def _columns_contiguous(p: Problem, c: Any) -> Any:
    """Whether columns of the right operand are contiguous; else terms are."""
    return select(c.SWAP == 1, p.layout[0] == "t", p.layout[1] == "n")


def _rows(c: Any) -> Any:
    """Rows of a block's tile."""
    return 64 * c.ROWS * select(c.TEAM == "together", c.CONSUMERS, 1)


def _cluster(c: Any) -> Any:
    """Blocks of a cluster."""
    return c.CLUSTER_M * c.CLUSTER_N


def _clusters(p: Problem, c: Any) -> Any:
    """Clusters that all tiles of C take."""
    return ceil_div(_height(p, c), _rows(c) * c.CLUSTER_M) * ceil_div(_width(p, c), c.WIDTH * c.CLUSTER_N)


def _blocks(p: Problem, c: Any) -> Any:
    """Blocks that all tiles of C, and shares of k, take."""
    return _clusters(p, c) * c.CLUSTER_M * c.CLUSTER_N * c.SPLIT_K


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of both tiles, and the consumers' sheets; they begin at a multiple of 1024."""
    return _with_sheets(p, c, c.SHEETS)


def _with_sheets(p: Problem, c: Any, sheets: Any) -> Any:
    own = select(c.STORE == "tma", 4 * c.CONSUMERS * sheets * SHEET_BYTES, 0)
    return 1024 + _places_bytes(p, c) + own


def _places_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of both tiles. Contiguous columns of B are fetched in boxes of 64, or of 32."""
    boxes = ceil_div(c.WIDTH, BOX_COLUMNS) * BOX_COLUMNS
    columns = select(_columns_contiguous(p, c) & (c.WIDTH > BOX_COLUMNS), boxes, c.WIDTH)
    return c.STAGES * (_rows(c) + columns) * ROW_BYTES


def _box(terms: int, lines: int, sharers: int, along_lines: bool, of_c: Any) -> tuple[Any, Any]:
    """What one copy brings of a tile of so many rows (columns), as its tensor is stored.

    A block that fetches all of a tile leaves away what lies beyond the rows (columns) that C has, but for
    multiples of eight: to fill boxes with zeros takes time.
    """
    if along_lines:
        return terms // sharers, min(lines, BOX_COLUMNS)
    return (lines // sharers if sharers > 1 else smaller(lines, ceil_div(of_c, UNIT) * UNIT)), terms


def _maps(p: Problem, c: Any) -> tuple[TensorMap, ...]:
    rows, columns, terms = _rows_contiguous(p, c), _columns_contiguous(p, c), _terms(p)
    a = _box(terms, _rows(c), c.CLUSTER_N, rows, _height(p, c))
    b = _box(terms, c.WIDTH, c.CLUSTER_M, columns, _width(p, c))
    left, right = ("b", "a") if c.SWAP else ("a", "b")
    sheet = next(each for each in (64, 32, 16) if c.WIDTH % each == 0)
    result = TensorMap("map_c", "c", *(((sheet, 64), 128) if c.SWAP else ((16, sheet), 2 * sheet)))
    operands = (
        TensorMap("map_a", left, a, 128, _promotion(rows)),
        TensorMap("map_b", right, b, DTYPE_BYTES[p.dtype] * b[1], _promotion(columns)),
    )
    return (*operands, result) if c.STORE == "tma" else operands


def _promotion(across: bool) -> int:
    """Bytes that a miss brings into L2. What follows in a row is the block's next box, or another block's."""
    return 128 if across else 256


def _workspace(p: Problem, c: Any) -> Workspace | None:
    """Counters, which are zeros, unless a kernel adds up, and shares of C; none unless k is split."""
    if c.SPLIT_K == 1:
        return None
    shares = _blocks(p, c) * _rows(c) * c.WIDTH * 4
    if c.ADD == "after":
        return Workspace(shares, 0, (("parts", 0),))
    counters = ceil_div(4 * _blocks(p, c) * c.CONSUMERS, 256) * 256
    return Workspace(counters + shares, counters, (("counters", 0), ("parts", counters)))


def _launch(p: Problem, c: Any) -> Launch:
    cluster = _cluster(c)
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
    short = [each for each, length in zip(p.inputs[:2], _stored_rows(p), strict=True) if length % _unit(p)]
    return Padded.rows_of(short, _unit(p))


def _stored_rows(p: Problem) -> tuple[Any, Any]:
    """Elements of a stored row of A and of B."""
    return (p.k if p.layout[0] == "n" else p.m), (p.n if p.layout[1] == "n" else p.k)


def _whole(p: Problem) -> int:
    """1 if tensor maps take both operands as they lie, else 0."""
    a, b = _stored_rows(p)
    return int(a % _unit(p) == 0 and b % _unit(p) == 0)


def _shared_registers(c: Any) -> Any:
    """Registers that each thread of a block begins with."""
    return smaller(65536 // (128 * (c.CONSUMERS + 1)) // c.BLOCKS_PER_SM, 255)


def _registers(c: Any) -> Any:
    """Registers that a consumer's thread may have."""
    return select(c.GIVEN > 0, c.GIVEN, _shared_registers(c))


def _tiles(p: Problem, c: Any) -> dict[str, Any]:
    """Elements of each dim that a block takes."""
    m, n = (c.WIDTH, _rows(c)) if c.SWAP else (_rows(c), c.WIDTH)
    return {"m": m, "n": n, "k": p.k / c.SPLIT_K}


#: What published ladders end with: 128 x 256 tiles, clusters of two, blocks that stay.
LARGE: dict[str, Value] = {
    "CONSUMERS": 2, "TEAM": "together", "ROWS": 1, "WIDTH": 256, "STAGES": 4, "CLUSTER_M": 2, "CLUSTER_N": 1,
    "GROUP": 8, "ORDER": "rows", "SPLIT_K": 1, "ADD": "last", "SWAP": 0, "STORE": "tma", "SHEETS": 2, "LEAD": 0,
    "GIVEN": GIVEN[2], "BLOCKS": 132, "BLOCKS_PER_SM": 1, "BORDER": "whole",
}  # fmt: skip
MIDDLE = LARGE | {"WIDTH": 128, "STAGES": 6}
SMALL = LARGE | {"WIDTH": 64, "STAGES": 8, "CLUSTER_M": 1}
#: Few tiles and much to sum: shares of k on all multiprocessors, added up by as many blocks.
AFTER: dict[str, Value] = {"BLOCKS": 0, "ADD": "after", "STORE": "registers", "SHEETS": 2}
#: As many tiles as multiprocessors.
WAVE: dict[str, Value] = LARGE | {"STAGES": 5, "SHEETS": 1, "CLUSTER_M": 1, "BLOCKS": 0}
#: Blocks of 32 columns: twice as many read a matrix of a few thousand columns.
NARROW: dict[str, Value] = {"WIDTH": 32, "STAGES": 16}
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
    source=Source(
        Path("wgmma_tma.cu"),
        includes=tuple(
            Path(name)
            for name in (
                "hopper.cuh",
                "tensor_maps.cuh",
                "operand_layout.cuh",
                "wgmma_shared.cuh",
                "scales.cuh",
                "tile_order.cuh",
                "epilogue.cuh",
                "wgmma_shares.cuh",
            )
        ),
    ),
    idea="16-bit products on tensor cores: tensor maps fetch what warpgroups multiply",
    scope=Scope(dtypes=("float16", "bfloat16"), epilogues=True, architecture="sm_90a"),
    parameters=(
        choice("BLOCKS", *BLOCKS),
        choice("CONSUMERS", 1, 2, 3),
        choice("TEAM", "together", "apart"),
        choice("ROWS", 1, 2),
        choice("WIDTH", 32, 64, 96, 128, 144, 160, 192, 224, 256),
        choice("STAGES", 2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
        choice("CLUSTER_M", 1, 2, 4),
        choice("CLUSTER_N", 1, 2, 4),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake", "hilbert"),
        choice("SPLIT_K", 1, 2, 4, 8, 16, 32, 64),
        choice("ADD", "last", "after"),
        choice("SWAP", 0, 1),
        choice("STORE", "tma", "registers"),
        choice("SHEETS", 1, 2),
        choice("LEAD", 0, 2, 3, 4),
        choice("GIVEN", 0, *GIVEN.values()),
        choice("BLOCKS_PER_SM", 1, 2),
        choice("BORDER", "whole", "pad"),
    ),
    constraints=(
        has_wgmma(),
        Constraint(
            "stored rows of A and B have a multiple of 16 bytes, or are padded: tensor maps take no others",
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
            "a box of A has at most 256 rows: a tensor map takes no more",
            lambda p, d, c: _rows_contiguous(p, c) | (_rows(c) // c.CLUSTER_N <= 256),
        ),
        for_speed(
            "as many blocks stay as the device has multiprocessors, or none",
            lambda p, d, c: (d.sm_count >= c.BLOCKS) & ((c.BLOCKS == 0) | (d.sm_count - c.BLOCKS < 18)),
        ),
        for_speed(
            "clusters of four and more all find a place at once, on ten of eleven multiprocessors; two turns "
            "take twice the time",
            lambda p, d, c: (_cluster(c) < 4) | (c.BLOCKS == 0) & (11 * _blocks(p, c) <= 10 * d.sm_count),
        ),
        Constraint(
            "blocks of a cluster fetch 8 rows each, or multiples: a pattern of the swizzle",
            lambda p, d, c: (
                (_rows(c) // c.CLUSTER_N % UNIT == 0)
                & ((c.WIDTH % (c.CLUSTER_M * UNIT) == 0) | _columns_contiguous(p, c))
            ),
        ),
        Constraint("a cluster has eight blocks at the most", lambda p, d, c: _cluster(c) <= 8),
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
            "an instruction's sums fit the registers that a block's threads begin with",
            lambda p, d, c: _shared_registers(c) >= c.WIDTH // 2 + OF_INSTRUCTION,
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
            "every one of SPLIT_K blocks has the terms of a place",
            lambda p, d, c: ceil_div(p.k, _terms(p)) >= c.SPLIT_K,
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
            "C of 16 bits is stored in boxes, 5 to 10 % faster, where its rows allow it and no kernel adds up",
            lambda p, d, c: (
                (c.STORE == "tma")
                == ((p.n % UNIT == 0) & (c.ADD == "last") & (Epilogue.read(p.epilogue).result != "to-float32"))
            ),
        ),
        for_speed(
            "less than half of a tile is beyond C's edge",
            lambda p, d, c: (
                ((_rows(c) == 64) | (_rows(c) < 2 * _height(p, c)))
                & ((c.WIDTH <= 64) | (2 * _width(p, c) > c.WIDTH))
            ),
        ),
        for_speed(
            "swaths have a height of their own unless the order is a curve",
            lambda p, d, c: (c.ORDER != "hilbert") | (c.GROUP == 8),
        ),
        for_speed(
            "a warp has one sheet only if a second one does not fit",
            lambda p, d, c: (c.SHEETS == 2) == (_with_sheets(p, c, 2) <= d.shared_bytes_per_block),
        ),
        for_speed(
            "places take half of what a block's shared memory holds, or all of k",
            lambda p, d, c: (
                (2 * c.BLOCKS_PER_SM * _with_sheets(p, c, 0) >= d.shared_bytes_per_block)
                | (p.k <= c.STAGES * _terms(p) * c.SPLIT_K)
            ),
        ),
        shared_fits("the places of both tiles and the sheets", _shared_bytes),
        for_speed(
            "BLOCKS_PER_SM blocks fit into a multiprocessor's shared memory",
            lambda p, d, c: c.BLOCKS_PER_SM * (_shared_bytes(p, c) + 2048) <= d.shared_bytes_per_sm,
        ),
    ),
    launch=_launch,
    tiles=_tiles,
    starts=(
        LARGE,
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
        *(MIDDLE | AFTER | {"SPLIT_K": shares} for shares in (32, 8)),
        SMALL | AFTER | {"CLUSTER_N": 2, "SPLIT_K": 16},
        THIN | AFTER | {"WIDTH": 128, "STAGES": 8, "CLUSTER_M": 2, "SPLIT_K": 16},
        LARGE | {"WIDTH": 192, "STAGES": 5, "SHEETS": 1, "CLUSTER_M": 1},
        WAVE | {"WIDTH": 160, "CLUSTER_M": 2, "CLUSTER_N": 2},
        WAVE | {"WIDTH": 144, "SWAP": 1},
        THIN | {"WIDTH": 128, "STAGES": 8, "CLUSTER_M": 2},
        THIN | {"WIDTH": 160, "STAGES": 6, "CLUSTER_M": 4},
        THIN | NARROW | {"CLUSTER_M": 2},
        THIN | NARROW | {"SWAP": 1},
        THIN | NARROW | {"CLUSTER_N": 2, "SWAP": 1},
        *(each | ANY_RESULT for each in (LARGE, MIDDLE, SMALL, THIN)),
        *(each | more for each in (LARGE, MIDDLE, SMALL, THIN) for more in (PADDED, PADDED | ANY_RESULT)),
    ),
)

#: Sums in tensor cores alone, and such as leave them: DeepGEMM's tile of 128 x 128, two consumers.
FAST: dict[str, Value] = LARGE | {"PROMOTE": 0, "PARTS": 1}
PROMOTED: dict[str, Value] = MIDDLE | {"PROMOTE": 1, "PARTS": 1, "CLUSTER_M": 1}
#: Few rows of A are columns of the product, so that no tile of 64 rows is for fewer.
FEW_ROWS: dict[str, Value] = PROMOTED | {"SWAP": 1, "WIDTH": 64, "STAGES": 8, "BLOCKS": 0}

EIGHTS_KERNEL = replace(
    KERNEL,
    name="wgmma_fp8",
    idea="8-bit products on tensor cores, whose sums leave them before they have lost too much",
    scope=Scope(dtypes=FLOAT8_DTYPES, epilogues=True, architecture="sm_90a"),
    parameters=(*KERNEL.parameters, choice("PROMOTE", 0, 1, 2, 4, 8), choice("PARTS", 1, 2)),
    constraints=(
        *KERNEL.constraints,
        Constraint(
            "a thread's registers hold its sums, and those in the tensor cores that leave them",
            lambda p, d, c: (
                (c.PROMOTE == 0) | (_registers(c) >= (1 + c.PARTS) * c.ROWS * c.WIDTH // 2 + OTHER_REGISTERS)
            ),
        ),
        Constraint(
            "sums leave the tensor cores beside others place by place",
            lambda p, d, c: (c.PARTS == 1) | ((c.PROMOTE == 1) & (c.LEAD == 0) & (c.TEAM == "together")),
        ),
        for_speed(
            "sums that many scales meet leave the tensor cores before others grow: the compiler waits",
            lambda p, d, c: (Epilogue.read(p.epilogue).scale != "scale-block") | (c.PARTS == 1) | (c.SWAP == 0),
        ),
        Constraint(
            "blocks of 128 terms that have scales leave the tensor cores one by one",
            lambda p, d, c: (Epilogue.read(p.epilogue).scale != "scale-block") | (c.PROMOTE == 1),
        ),
        Constraint("shares of k are added up by the block that arrives last", lambda p, d, c: c.ADD == "last"),
        sums_of_8_bits(lambda p, c: select(c.PROMOTE == 0, ceil_div(p.k, c.SPLIT_K), 0)),
        Constraint(
            "results of 32 bits go from registers, and take no operand beside scales",
            lambda p, d, c: (
                (p.outputs[0].dtype != "float32")
                | ((c.STORE == "registers") & (Epilogue.read(p.epilogue).unscaled.operands == ()))
            ),
        ),
    ),
    starts=tuple(
        start | more
        for start in (
            PROMOTED,
            FAST | {"TEAM": "apart", "ROWS": 2, "WIDTH": 128, "STAGES": 6},
            PROMOTED | {"PARTS": 2, "CLUSTER_M": 2, "ORDER": "snake"},
            PROMOTED | {"SWAP": 1, "WIDTH": 192, "STAGES": 5, "SHEETS": 1, "CLUSTER_M": 2, "ORDER": "snake"},
            FAST | {"SWAP": 1, "LEAD": 2},
            PROMOTED | {"CLUSTER_M": 2},
            PROMOTED | {"WIDTH": 160, "STAGES": 5},
            PROMOTED | {"PARTS": 2},
            PROMOTED | {"PARTS": 2, "CLUSTER_M": 2},
            FEW_ROWS | {"PARTS": 2, "CONSUMERS": 1, "GIVEN": 0, "STAGES": 12},
            PROMOTED | {"WIDTH": 160, "STAGES": 5, "CLUSTER_M": 2},
            PROMOTED | {"WIDTH": 64, "STAGES": 8, "SPLIT_K": 2, "PARTS": 2, "ORDER": "snake"},
            FEW_ROWS | {"PARTS": 2, "CONSUMERS": 1, "GIVEN": 0, "STAGES": 12, "SPLIT_K": 4},
            FAST | {"SWAP": 1},
            PROMOTED | {"TEAM": "apart"},
            PROMOTED | {"ORDER": "hilbert"},
            PROMOTED | {"BLOCKS": 0},
            PROMOTED | {"BLOCKS": 0, "SPLIT_K": 4},
            PROMOTED | {"WIDTH": 64, "STAGES": 8},
            FEW_ROWS,
            FEW_ROWS | {"CONSUMERS": 1, "GIVEN": 0, "STAGES": 12},
            FEW_ROWS | {"CONSUMERS": 1, "GIVEN": 0, "STAGES": 12, "SPLIT_K": 4},
            FEW_ROWS | {"WIDTH": 128, "STAGES": 6},
            PROMOTED | {"WIDTH": 160, "STAGES": 5, "PROMOTE": 8},
            FAST,
            FAST | {"ORDER": "hilbert"},
            FAST | {"CLUSTER_M": 1},
            FAST | {"WIDTH": 128, "STAGES": 6},
        )
        for more in ({}, ANY_RESULT, PADDED, PADDED | ANY_RESULT)
    ),
)
