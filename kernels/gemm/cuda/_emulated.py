"""What kernels of FP16 products share: launches, memory, configs to start from (emulated.cu)."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Epilogue, Launch, Packing, Problem, Step, Value, Workspace, ceil_div

#: What a source is made of, before emulated.cu.
SOURCES = tuple(
    Path(name)
    for name in (
        "epilogue.cuh",
        "hopper.cuh",
        "dependent.cuh",
        "wgmma.cuh",
        "emulated.cuh",
        "emulated_pack.cuh",
        "emulated_pack.cu",
        "emulated_product.cuh",
    )
)
#: Registers of a consumer's thread if there are two consumers.
GIVEN = 232
#: Bytes of a row of 32 terms in the packed form, of its header, of the verdict and counts before it.
ROW_BYTES, HEADER_BYTES, CONTROL_BYTES = 128, 256, 256
#: First byte of the word that says whether the product is to be the plain kernel's.
VERDICT = 128
#: Neighbouring columns of B that share a scale; terms and rows of a tile that is packed at a time.
SHARE, PACK_ROWS, PACK_THREADS = 8, 64, 256
#: Multiply-adds below which the product starts before packing has ended: that spares 6 % of the time at 512^3,
#: 4 % at 1024^3, 0.6 % at 2048^3. Champions from 1024^3 on were measured with a launch that waits, and keep it.
EARLY_BELOW = 1 << 30


def _up(size: Any, unit: int) -> Any:
    return ceil_div(size, unit) * unit


def _tile(c: Any) -> tuple[Any, Any]:
    """A block's tile of C: rows and columns."""
    return 64 * c.CONSUMERS, c.WIDTH * c.PARTS


def tiles(p: Problem, c: Any) -> Any:
    """Tiles of C, in whole clusters."""
    rows, columns = _tile(c)
    return ceil_div(p.m, rows * c.CLUSTER) * c.CLUSTER * ceil_div(p.n, columns)


def shared_bytes(p: Problem, c: Any) -> Any:
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
    count, (rows, columns) = tiles(p, c), _tile(c)
    zeroed = CONTROL_BYTES + _up(4 * count * c.CONSUMERS, 256)
    of_b = zeroed + _packed_bytes(p.m, p.k, 1, c)
    parts = of_b + _packed_bytes(p.n, p.k, SHARE, c)
    shares = count * c.SPLIT_K * rows * columns * 4 if c.SPLIT_K > 1 else 256
    regions = (
        ("control", 0), ("verdict", VERDICT), ("counters", CONTROL_BYTES), ("packed_a", zeroed),
        ("packed_b", of_b), ("parts", parts),
    )  # fmt: skip
    return Workspace(parts + shares, zeroed, regions)


def launch(p: Problem, c: Any) -> Launch:
    """Packing, then the product of what is packed."""
    pack = Step(
        "pack", (c.BLOCKS * c.BLOCKS_PER_SM,), (PACK_THREADS,), 0,
        ("a", "b", "packed_a", "packed_b", "fallbacks", "m", "n", "k", "control"),
    )  # fmt: skip
    more = Epilogue.read(p.epilogue)
    product = Step(
        "gemm", (c.BLOCKS // c.CLUSTER * c.CLUSTER,), (128 * (c.CONSUMERS + 1),), shared_bytes(p, c),
        (
            "packed_a", "packed_b", *more.operands, "c", "m", "n", "k", "control", "counters", "parts",
            *more.factors,
        ),
        early=p.m * p.n * p.k < EARLY_BELOW,
    )  # fmt: skip
    form = f"chunks of {c.CHUNK}"
    packings = (
        Packing("a", "packed_a", _packed_bytes(p.m, p.k, 1, c), "pack", form),
        Packing("b", "packed_b", _packed_bytes(p.n, p.k, SHARE, c), "pack", form),
    )
    return Launch.of("gemm", (pack, product), _workspace(p, c), counter="fallbacks", packings=packings)


def exact(c: Any) -> dict[str, Value]:
    """double_sums, whose copies are of four elements where all rows allow it, and which shares k likewise."""
    tile = {"BM": 64, "BN": 64, "BK": 16, "WM": 64, "WN": 16, "STAGES": 4, "SWATH": 8}
    return tile | {"VECTOR": 4 if c.PLAIN == "aligned" else 1, "SPLIT_K": c.SPLIT_K}


def aligned(p: Problem) -> Any:
    """Whether all rows of all layouts start at multiples of four elements."""
    return (p.m % 4 == 0) & (p.n % 4 == 0) & (p.k % 4 == 0)


def needs_wgmma() -> Constraint:
    """The device is of the one architecture that has wgmma."""
    return Constraint(
        "the device has the wgmma instructions of sm_90 (H100, H200, GH200); others have none or others",
        lambda p, d, c: d.compute_capability == 90,
    )


#: The best of those tried at 8192 x 8192 x 8192.
LARGE: dict[str, Value] = {
    "CONSUMERS": 2, "WIDTH": 192, "PARTS": 1, "CHUNK": 64, "STAGES": 5, "CLUSTER": 2, "GROUP": 8,
    "ORDER": "rows", "TURNS": "free", "PROMOTION": "plain", "SPLIT_K": 1, "GIVEN": GIVEN,
    "BLOCKS": 132, "BLOCKS_PER_SM": 4, "PLAIN": "aligned",
}  # fmt: skip
MIDDLE = LARGE | {"WIDTH": 128, "PARTS": 2, "STAGES": 4}
SMALL = LARGE | {"WIDTH": 64, "STAGES": 8, "CLUSTER": 1}
#: Sums and what they have lost take as many registers as two parts.
COMPENSATED = LARGE | {"WIDTH": 128, "STAGES": 6, "PROMOTION": "compensated"}
SMALL_COMPENSATED = SMALL | {"PROMOTION": "compensated"}
SHORT = SMALL_COMPENSATED | {"CHUNK": 32}
#: What nights found at 2048^3 and 4096^3, at sizes that are not aligned, and where k or m is small.
ALONE: dict[str, Value] = {"CLUSTER": 1, "ORDER": "snake"}
FOUND = (
    MIDDLE | ALONE, LARGE | ALONE, LARGE | {"WIDTH": 176, "CLUSTER": 1, "GROUP": 16},
    LARGE | ALONE | {"WIDTH": 128, "STAGES": 6},
)  # fmt: skip
STARTS = (
    LARGE, MIDDLE, SMALL, *FOUND, LARGE | {"WIDTH": 176}, MIDDLE | {"SPLIT_K": 2}, MIDDLE | {"SPLIT_K": 16},
    COMPENSATED, COMPENSATED | {"SPLIT_K": 16}, COMPENSATED | ALONE | {"STAGES": 5, "SPLIT_K": 8},
    SMALL_COMPENSATED, SHORT, SHORT | {"SPLIT_K": 8},
)  # fmt: skip
