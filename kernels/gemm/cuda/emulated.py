"""gemm on CUDA: FP32 from three FP16 products on the tensor cores of sm_90 (docs/kernels/gemm-emulated.md)."""

from pathlib import Path
from typing import Any

from tuner import (
    Constraint,
    Fallback,
    Kernel,
    Launch,
    Packing,
    Problem,
    Step,
    Value,
    Workspace,
    ceil_div,
    choice,
)
from tuner.declare.rules import for_speed, select, shared_fits

#: Multiprocessors of an H100 or H200, of an H100 PCIe, of half an H100: as many blocks stay.
BLOCKS = (132, 114, 66)
#: Registers of a consumer's thread if there are two consumers; a sum takes one, the rest of a thread 40.
GIVEN = 232
OTHER_REGISTERS = 40
#: Bytes of a row of 32 terms in the packed form, of its header, of the verdict and counts before it.
ROW_BYTES, HEADER_BYTES, CONTROL_BYTES = 128, 256, 256
#: First byte of the word that says whether the product is to be the plain kernel's.
VERDICT = 128
#: Neighbouring columns of B that share a scale; terms and rows of a tile that is packed at a time.
SHARE, PACK_ROWS, PACK_THREADS = 8, 64, 256
#: Terms below which the error of one chunk shows, by the chunk's terms: CHUNK of 64 and of 128.
LEAST_K = {64: 128, 128: 512}


def _up(size: Any, unit: int) -> Any:
    return ceil_div(size, unit) * unit


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return 64 * c.CONSUMERS, c.WIDTH * c.PARTS


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of C, in whole clusters."""
    rows, columns = _tile(c)
    return ceil_div(p.m, rows * c.CLUSTER) * c.CLUSTER * ceil_div(p.n, columns)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of 32 terms of both tiles, and factors of the chunks that are in them."""
    rows, columns = _tile(c)
    factors = ceil_div(rows + columns // SHARE + 8, 4) * 4
    slots = c.STAGES // (c.CHUNK // 32) + 2
    return 1024 + c.STAGES * (rows + columns) * ROW_BYTES + slots * factors * 4


def _packed_bytes(rows: Any, k: Any, share: int, c: Any) -> Any:
    """The packed form of an operand: header, factors, data (emulated.cuh)."""
    padded, chunks = _up(rows, 8), ceil_div(k, c.CHUNK)
    factors = chunks * _up(padded // share, 4) * 4
    return HEADER_BYTES + _up(factors, HEADER_BYTES) + chunks * (c.CHUNK // 32) * padded * ROW_BYTES


def _workspace(p: Problem, c: Any) -> Workspace:
    """Verdict and counters, which are zeros; both packed operands; shares of C where k is split."""
    tiles, (rows, columns) = _tiles(p, c), _tile(c)
    zeroed = CONTROL_BYTES + _up(4 * tiles * c.CONSUMERS, 256)
    of_b = zeroed + _packed_bytes(p.m, p.k, 1, c)
    parts = of_b + _packed_bytes(p.n, p.k, SHARE, c)
    shares = tiles * c.SPLIT_K * rows * columns * 4 if c.SPLIT_K > 1 else 256
    regions = (
        ("control", 0), ("verdict", VERDICT), ("counters", CONTROL_BYTES), ("packed_a", zeroed),
        ("packed_b", of_b), ("parts", parts),
    )  # fmt: skip
    return Workspace(parts + shares, zeroed, regions)


def _launch(p: Problem, c: Any) -> Launch:
    pack = Step(
        "pack", (c.BLOCKS * c.BLOCKS_PER_SM,), (PACK_THREADS,), 0,
        ("a", "b", "packed_a", "packed_b", "fallbacks", "m", "n", "k", "control"),
    )  # fmt: skip
    product = Step(
        "gemm", (c.BLOCKS // c.CLUSTER * c.CLUSTER,), (128 * (c.CONSUMERS + 1),), _shared_bytes(p, c),
        ("packed_a", "packed_b", "c", "m", "n", "k", "control", "counters", "parts"),
    )  # fmt: skip
    form = f"chunks of {c.CHUNK}"
    packings = (
        Packing("a", "packed_a", _packed_bytes(p.m, p.k, 1, c), "pack", form),
        Packing("b", "packed_b", _packed_bytes(p.n, p.k, SHARE, c), "pack", form),
    )
    return Launch.of("gemm", (pack, product), _workspace(p, c), counter="fallbacks", packings=packings)


def _exact(c: Any) -> dict[str, Value]:
    """double_sums, whose copies are of four elements where all rows allow it; small tiles for a small C."""
    small = c.SPLIT_K > 1 or c.WIDTH * c.PARTS <= 64
    tile = {"BM": 64, "BN": 64, "WM": 32, "WN": 16, "STAGES": 4} if small else {}
    wide = {"BM": 128, "BN": 128, "BK": 16, "WM": 64, "WN": 32, "STAGES": 3, "SWATH": 8}
    return wide | tile | {"VECTOR": 4 if c.PLAIN == "aligned" else 1, "SPLIT_K": c.SPLIT_K}


def _aligned(p: Problem) -> Any:
    return (p.m % 4 == 0) & (p.n % 4 == 0) & (p.k % 4 == 0)


#: The best of those tried at 8192 x 8192 x 8192.
LARGE: dict[str, Value] = {
    "CONSUMERS": 2, "WIDTH": 192, "PARTS": 1, "CHUNK": 64, "STAGES": 5, "CLUSTER": 2, "GROUP": 8,
    "ORDER": "rows", "TURNS": "free", "PROMOTION": "plain", "SPLIT_K": 1, "GIVEN": GIVEN,
    "BLOCKS": 132, "BLOCKS_PER_SM": 4, "PLAIN": "aligned",
}  # fmt: skip
MIDDLE = LARGE | {"WIDTH": 128, "PARTS": 2, "STAGES": 4}
SMALL = LARGE | {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1}
ANY_ROWS = {"PLAIN": "any"}

KERNEL = Kernel(
    operation="gemm",
    name="emulated",
    target="cuda",
    source=Path("emulated.cu"),
    includes=tuple(
        Path(name) for name in ("hopper.cuh", "dependent.cuh", "wgmma.cuh", "emulated.cuh", "emulated_pack.cu")
    ),
    idea="FP32 from three FP16 products on tensor cores, sums in FP32 registers, checked for each input",
    precisions=("emulated",),
    architecture="sm_90a",
    parameters=(
        choice("BLOCKS", *BLOCKS),
        choice("PLAIN", "aligned", "any"),
        choice("CONSUMERS", 1, 2),
        choice("WIDTH", 64, 80, 96, 112, 128, 144, 160, 176, 192),
        choice("PARTS", 1, 2),
        choice("CHUNK", 32, 64, 128),
        choice("STAGES", 2, 3, 4, 5, 6, 8),
        choice("CLUSTER", 1, 2),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake"),
        choice("TURNS", "free", "taken", "early"),
        choice("PROMOTION", "plain", "compensated"),
        choice("SPLIT_K", 1, 2, 4, 8, 16),
        choice("GIVEN", 0, GIVEN),
        choice("BLOCKS_PER_SM", 3, 4),
    ),
    constraints=(
        Constraint(
            "the device has the wgmma instructions of sm_90 (H100, H200, GH200); others have none or others",
            lambda p, d, c: d.compute_capability == 90,
        ),
        Constraint("elements are float32", lambda p, d, c: p.dtype == "float32"),
        Constraint(
            "k is 128 or more, 512 or more with chunks of 128: below, the error of a single chunk shows",
            lambda p, d, c: p.k >= select(c.CHUNK == 128, LEAST_K[128], LEAST_K[64]),
        ),
        for_speed(
            "a block stays on each multiprocessor",
            lambda p, d, c: (d.sm_count >= c.BLOCKS) & ((c.BLOCKS == 132) | (d.sm_count < 132)),
        ),
        Constraint(
            "the plain kernel behind reads four elements at a time only where all rows allow it",
            lambda p, d, c: (c.PLAIN == "any") | _aligned(p),
        ),
        for_speed(
            "the plain kernel behind reads four elements at a time where all rows allow it",
            lambda p, d, c: (c.PLAIN == "aligned") | (_aligned(p) == 0),
        ),
        Constraint(
            "two consumers are given registers of the producer's, one consumer none",
            lambda p, d, c: (c.CONSUMERS == 2) == (c.GIVEN == GIVEN),
        ),
        Constraint(
            "a thread's sums, in wgmma and beside it, fit its registers",
            lambda p, d, c: (
                ((1 + (c.PROMOTION == "compensated")) * c.PARTS + 1) * c.WIDTH // 2 + OTHER_REGISTERS <= GIVEN
            ),
        ),
        Constraint("a block's tile has at most 256 columns", lambda p, d, c: c.PARTS * c.WIDTH <= 256),
        Constraint("all places of a chunk fit in", lambda p, d, c: c.STAGES * 32 >= c.CHUNK),
        Constraint(
            "every one of SPLIT_K blocks has a chunk of k", lambda p, d, c: ceil_div(p.k, c.CHUNK) >= c.SPLIT_K
        ),
        for_speed(
            "k is shared where tiles are fewer than multiprocessors",
            lambda p, d, c: (c.SPLIT_K == 1) | (_tiles(p, c) * (c.SPLIT_K // 2) < d.sm_count),
        ),
        for_speed(
            "consumers take turns where there are two", lambda p, d, c: (c.CONSUMERS == 2) | (c.TURNS == "free")
        ),
        shared_fits("the places of both tiles and their factors", _shared_bytes),
    ),
    launch=_launch,
    fallback=Fallback("double_sums", _exact, asked="verdict"),
    tiles=lambda p, c: {"m": 64 * c.CONSUMERS, "n": c.WIDTH * c.PARTS, "k": p.k / c.SPLIT_K},
    defaults=LARGE,
    starts=(
        MIDDLE,
        SMALL,
        LARGE | {"WIDTH": 176},
        MIDDLE | {"SPLIT_K": 2},
        MIDDLE | {"SPLIT_K": 16},
        *(each | ANY_ROWS for each in (LARGE, MIDDLE, SMALL, LARGE | {"WIDTH": 176})),
    ),
)
