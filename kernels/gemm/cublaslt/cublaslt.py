"""gemm by cuBLASLt: the algorithm that a config names, be it one that the library's heuristic passes over."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner import (
    DTYPE_BYTES,
    FLOAT8_DTYPES,
    SCALE_BLOCK,
    Constraint,
    Epilogue,
    Kernel,
    Problem,
    Scope,
    Source,
    Value,
    ceil_div,
    choice,
)
from tuner.declare.rules import for_speed, select, sums_of_8_bits

#: Of each architecture and dtype the algorithms that cuBLASLt proposes, with what its check accepts of each:
#: ``algorithms.py`` gathers it on a GPU. Ids and numbers are those of cublasLt.h.
GATHERED: dict[str, Any] = json.loads(Path(__file__).with_name("algorithms.json").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, dict[str, Any]]] = GATHERED["architectures"]
#: Tile's id -> its rows and columns of C, which is the transpose of cuBLASLt's.
SIZES: dict[int, tuple[int, int]] = {int(name): (n, m) for name, (m, n) in GATHERED["tiles"].items()}
#: As the source has it.
WORKSPACE_BYTES = 32 << 20
#: Shares of k.
SPLITS = (1, 2, 3, 4, 5, 6, 8, 11, 12, 16, 22, 32, 33, 44, 64, 66, 132)
#: ``cublasLtReductionScheme_t``: shares are added up in float32, or in C's dtype.
NONE, IN_PLACE, IN_FLOAT32 = 0, 1, 2


#: All that is gathered: algorithms, and of them tiles with stages, custom option, and whether k must be shared.
ROWS = [
    (int(name), row) for dtypes in TABLES.values() for rows in dtypes.values() for name, row in rows.items()
]
SHAPES = [shape for _, row in ROWS for shape in row["shapes"]]


def _key(*numbers: Any) -> Any:
    """One number of several below 1024."""
    total: Any = 0
    for number in numbers:
        total = total * 1024 + number
    return total


def _among(numbers: Any, known: list[int]) -> Any:
    return np.isin(numbers, known) if isinstance(numbers, np.ndarray) else numbers in known


def _of(p: Problem, d: Any) -> dict[str, Any]:
    """The algorithms of a device and a dtype, by id."""
    return TABLES.get(f"sm_{d.compute_capability}", {}).get(p.dtype, {})


def _listed(p: Problem, d: Any, *places: int) -> list[int]:
    """Keys of the algorithms with some of their numbers: places among tile, stages and custom option."""
    return [
        _key(int(name), *(shape[place] for place in places))
        for name, each in _of(p, d).items()
        for shape in each["shapes"]
    ]


def _numbers(p: Problem, d: Any, what: str) -> list[int]:
    """Keys of the algorithms with their ``clusters`` or ``reductions``."""
    return [_key(int(name), number) for name, each in _of(p, d).items() for number in each[what]]


def _aligned(p: Problem, d: Any) -> list[int]:
    """Algorithms that read the problem's rows: all of them begin at multiples of so many bytes."""
    elements = (p.k, p.m)[p.layout[0] == "t"], (p.n, p.k)[p.layout[1] == "t"], p.n
    return [
        int(name)
        for name, each in _of(p, d).items()
        if all(size * DTYPE_BYTES[p.dtype] % each["align"] == 0 for size in elements)
    ]


def _tiles(p: Problem, c: Any) -> dict[str, Any]:
    """Elements of each dim that a block takes, where the config says so."""
    rows, columns = (np.zeros(1024, int) for _ in range(2))
    for name, (m, n) in SIZES.items():
        rows[name], columns[name] = m, n
    whole = c.TILE == 0
    return {
        "m": select(whole, p.m, rows[c.TILE]), "n": select(whole, p.n, columns[c.TILE]),
        "k": ceil_div(p.k, c.SPLIT_K),
    }  # fmt: skip


def _proposal(place: int) -> dict[str, Value]:
    return {
        "PROPOSAL": place, "ALGORITHM": 0, "TILE": 0, "STAGES": 0, "CUSTOM": 0, "CLUSTER": 0, "SPLIT_K": 1,
        "REDUCTION": NONE, "SWIZZLE": 0,
    }  # fmt: skip


KERNEL = Kernel(
    operation="gemm",
    name="cublaslt",
    target="cublaslt",
    source=Source(Path("_matmul.py")),
    idea="cuBLASLt, by an algorithm of its own choice or by one that is named",
    scope=Scope(dtypes=("float32", "float16", "bfloat16"), epilogues=True),
    parameters=(
        choice("PROPOSAL", *range(9)),
        choice("ALGORITHM", 0, *{name for name, _ in ROWS} - {0}),
        choice("TILE", 0, *{tile for tile, *_ in SHAPES} - {0}),
        choice("STAGES", 0, *{stages for _, stages, *_ in SHAPES} - {0}),
        choice("CUSTOM", 0, *{custom for _, _, custom, _ in SHAPES} - {0}),
        choice("CLUSTER", 0, *{cluster for _, row in ROWS for cluster in row["clusters"]} - {0}),
        choice("SPLIT_K", *SPLITS),
        choice("REDUCTION", NONE, IN_PLACE, IN_FLOAT32),
        choice("SWIZZLE", 0, 1),
    ),
    constraints=(
        Constraint(
            "cuBLASLt applies the epilogue: no bias for rows, relu or gelu-tanh, a residual alone",
            lambda p, d, c: not Epilogue.read(p.epilogue).in_cublas[1],
        ),
        Constraint(
            "an algorithm is a proposal, or one that was gathered for the architecture and dtype",
            lambda p, d, c: (c.PROPOSAL > 0) ^ _among(c.ALGORITHM, [int(name) for name in _of(p, d)]),
        ),
        Constraint(
            "tile and stages are the algorithm's",
            lambda p, d, c: _among(_key(c.ALGORITHM, c.TILE, c.STAGES), [0, *_listed(p, d, 0, 1)]),
        ),
        Constraint(
            "the custom option is one of the tile's",
            lambda p, d, c: _among(_key(c.ALGORITHM, c.TILE, c.STAGES, c.CUSTOM), [0, *_listed(p, d, 0, 1, 2)]),
        ),
        Constraint(
            "the shape of clusters is one of the algorithm's",
            lambda p, d, c: _among(_key(c.ALGORITHM, c.CLUSTER), [0, *_numbers(p, d, "clusters")]),
        ),
        Constraint(
            "rows begin at multiples of the bytes that the algorithm reads at a time",
            lambda p, d, c: (c.PROPOSAL > 0) | _among(c.ALGORITHM, _aligned(p, d)),
        ),
        Constraint(
            "shares of k are added up, in float32, as the algorithm can, and a single one is not",
            lambda p, d, c: (
                ((c.SPLIT_K == 1) == (c.REDUCTION == NONE))
                & ((c.REDUCTION != IN_PLACE) | (p.dtype == "float32"))
                & ((c.SPLIT_K == 1) | _among(_key(c.ALGORITHM, c.REDUCTION), _numbers(p, d, "reductions")))
            ),
        ),
        Constraint(
            "an option of those that share k shares it",
            lambda p, d, c: (
                (c.PROPOSAL > 0)
                | (c.SPLIT_K > 1)
                | _among(_key(c.ALGORITHM, c.TILE, c.STAGES, c.CUSTOM, 0), _listed(p, d, 0, 1, 2, 3))
            ),
        ),
        Constraint(
            "a proposal leaves nothing open",
            lambda p, d, c: (c.PROPOSAL == 0) | ((c.SPLIT_K == 1) & (c.SWIZZLE == 0)),
        ),
        for_speed(
            "a share of k has 32 terms or more", lambda p, d, c: (c.SPLIT_K == 1) | (p.k >= 32 * c.SPLIT_K)
        ),
        for_speed(
            "shares of C in float32 fit into the workspace, unless an option takes less",
            lambda p, d, c: (
                (c.REDUCTION != IN_FLOAT32)
                | ((p.dtype == "float32") & (c.CUSTOM > 0))
                | (c.SPLIT_K * p.m * p.n * 4 <= WORKSPACE_BYTES)
            ),
        ),
    ),
    tiles=_tiles,
    starts=tuple(_proposal(place) for place in range(1, 9)),
)

#: The library's FP8: its proposals, each with sums that are promoted to float32 and with such that are not.
EIGHTS_KERNEL = replace(
    KERNEL,
    name="cublaslt_fp8",
    source=Source(Path("_scaled.py"), includes=(Path("_matmul.py"),), entry="gemm"),
    idea="cuBLASLt's products of 8-bit numbers, by an algorithm of its own choice",
    scope=Scope(dtypes=FLOAT8_DTYPES, epilogues=True),
    parameters=(
        choice("PROPOSAL", *range(1, 9)),
        *(choice(name, value) for name, value in _proposal(1).items() if name != "PROPOSAL"),
        choice("FAST", 0, 1),
    ),
    constraints=(
        KERNEL.constraints[0],
        Constraint(
            "rows of 8 bits, and those of blocks' scales, have a multiple of 16 bytes",
            lambda p, d, c: (
                (p.dtype not in FLOAT8_DTYPES)
                | (p.k % 16 == 0)
                & (p.n % 16 == 0)
                & (
                    (Epilogue.read(p.epilogue).scale != "scale-block")
                    | (p.m % 4 == 0) & (ceil_div(p.k, SCALE_BLOCK) % 4 == 0)
                )
            ),
        ),
        sums_of_8_bits(lambda p, c: select(c.FAST == 1, p.k, 0)),
    ),
    starts=tuple(_proposal(place) | {"FAST": fast} for fast in (0, 1) for place in range(1, 9)),
)
