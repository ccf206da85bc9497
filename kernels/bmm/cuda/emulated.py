"""bmm on CUDA: FP32 products of stacks from three FP16 products each, on the tensor cores of sm_90."""

from pathlib import Path
from typing import Any

from tuner import (
    Constraint,
    Fallback,
    Kernel,
    Launch,
    Problem,
    Scope,
    Source,
    Step,
    Value,
    Workspace,
    ceil_div,
    choice,
)
from tuner.declare.rules import for_speed, has_wgmma, shared_fits

GEMM = Path("../../gemm/cuda")
#: As in emulated.cuh: bytes of a row of 32 terms, of a header and what is aligned like it, of the verdict and
#: counts before it; the first byte of the verdict; columns of B that share a factor.
ROW_BYTES, HEADER_BYTES, CONTROL_BYTES, VERDICT, SHARE = 128, 256, 256, 128, 8
#: Blocks that pack, of each multiprocessor, and their threads.
PACKING_BLOCKS, PACKING_THREADS = 4, 256
#: Terms below which the error of a single chunk shows.
LEAST_K = 128
#: Elements of all C below which the library may share k among blocks, so that its error is small: sums of
#: chunks must be compensated; below the second, chunks must have 32 terms, too.
COMPENSATED_BELOW, SHORT_BELOW = 1 << 19, 1 << 18
#: Multiply-adds below which the product starts before packing has ended.
EARLY_BELOW = 1 << 30


def _tiles(p: Problem, c: Any) -> Any:
    """Tiles of all C, in whole clusters."""
    rows = 64 * c.CONSUMERS * c.CLUSTER
    return p.batch * ceil_div(p.m, rows) * c.CLUSTER * ceil_div(p.n, c.WIDTH)


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES places of 32 terms of both tiles, and factors of the chunks that are in them."""
    factors = ceil_div(64 * c.CONSUMERS + c.WIDTH // SHARE + 8, 4) * 4
    slots = c.STAGES // (c.CHUNK // 32) + 2
    return 1024 + c.STAGES * (64 * c.CONSUMERS + c.WIDTH) * ROW_BYTES + slots * factors * 4


def _packed_bytes(count: Any, rows: Any, share: int, p: Problem, c: Any) -> Any:
    """So many packed matrices: header, factors, data (emulated.cuh)."""
    padded, chunks = ceil_div(rows, 8) * 8, ceil_div(p.k, c.CHUNK)
    factors = 16 * chunks * ceil_div(padded // share, 4)
    aligned = ceil_div(factors, HEADER_BYTES) * HEADER_BYTES
    return count * (HEADER_BYTES + aligned + chunks * (c.CHUNK // 32) * padded * ROW_BYTES)


def _launch(p: Problem, c: Any) -> Launch:
    """Packing, then the products of what is packed."""
    of_a, of_b = (1 if p.layout.endswith(suffix) else p.batch for suffix in ("-a", "-b"))
    second = CONTROL_BYTES + _packed_bytes(of_a, p.m, 1, p, c)
    regions = ("control", 0), ("verdict", VERDICT), ("packed_a", CONTROL_BYTES), ("packed_b", second)
    memory = Workspace(second + _packed_bytes(of_b, p.n, SHARE, p, c), CONTROL_BYTES, regions)
    sizes = "batch", "m", "n", "k", "control"
    pack = Step(
        "pack", (c.BLOCKS * PACKING_BLOCKS,), (PACKING_THREADS,), 0,
        ("a", "b", "packed_a", "packed_b", "fallbacks", *sizes),
    )  # fmt: skip
    product = Step(
        "bmm", (c.BLOCKS // c.CLUSTER * c.CLUSTER,), (128 * (c.CONSUMERS + 1),), _shared_bytes(p, c),
        ("packed_a", "packed_b", "c", *sizes), early=p.batch * p.m * p.n * p.k < EARLY_BELOW,
    )  # fmt: skip
    return Launch.of("bmm", (pack, product), memory, counter="fallbacks")


def _plain(c: Any) -> dict[str, Value]:
    """tiled, whose copies are of four elements where all rows allow it."""
    return {
        "BM": 128, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "LANES_M": 8, "SWATH": 1, "MATRICES": 1,
        "VECTOR": 4 if c.PLAIN == "aligned" else 1, "BLOCKS_PER_SM": 1,
    }  # fmt: skip


def _aligned(p: Problem) -> Any:
    """Whether rows of A and B start at multiples of four elements in every layout."""
    return (p.m % 4 + p.n % 4 + p.k % 4) == 0


def _start(
    consumers: int, width: int, chunk: int, stages: int, cluster: int, promotion: str
) -> dict[str, Value]:
    return {
        "CONSUMERS": consumers, "WIDTH": width, "CHUNK": chunk, "STAGES": stages, "CLUSTER": cluster,
        "PROMOTION": promotion, "BLOCKS": 132, "BLOCKS_PER_SM": PACKING_BLOCKS,
    }  # fmt: skip


KERNEL = Kernel(
    operation="bmm",
    name="emulated",
    target="cuda",
    source=Source(
        Path("emulated.cu"),
        includes=(
            GEMM / "epilogue.cuh",
            Path("fixed_emulated.cuh"),
            *(
                GEMM / f"{name}.cuh"
                for name in ("hopper", "dependent", "wgmma", "emulated", "emulated_pack", "emulated_product")
            ),
        ),
    ),
    idea="FP32 from three FP16 products on tensor cores, each matrix packed by itself, checked for each input",
    scope=Scope(
        precisions=("emulated",),
        dtypes=("float32",),
        architecture="sm_90a",
        fallback=Fallback("tiled", _plain, asked="verdict"),
    ),
    parameters=(
        choice("BLOCKS", 132, 114, 66),
        choice("BLOCKS_PER_SM", PACKING_BLOCKS),
        choice("PLAIN", "aligned", "any"),
        choice("CONSUMERS", 1, 2),
        choice("WIDTH", 64, 96, 128, 160, 192),
        choice("CHUNK", 32, 64),
        choice("STAGES", 3, 4, 5, 6, 8),
        choice("CLUSTER", 1, 2),
        choice("PROMOTION", "plain", "compensated"),
    ),
    constraints=(
        has_wgmma(),
        Constraint("k is 128 or more: one chunk's error shows", lambda p, d, c: p.k >= LEAST_K),
        Constraint(
            "sums of chunks are compensated where all C are small, and take no more than 128 columns",
            lambda p, d, c: (
                ((c.PROMOTION == "compensated") | (p.batch * p.m * p.n >= COMPENSATED_BELOW))
                & ((c.PROMOTION == "plain") | (c.WIDTH <= 128))
            ),
        ),
        Constraint(
            "chunks have 32 terms where all C are even smaller",
            lambda p, d, c: (c.CHUNK == 32) | (p.batch * p.m * p.n >= SHORT_BELOW),
        ),
        for_speed(
            "as many blocks stay as there are multiprocessors, or the next choice below",
            lambda p, d, c: (d.sm_count >= c.BLOCKS) & ((c.BLOCKS == 132) | (d.sm_count < 132)),
        ),
        Constraint(
            "the plain kernel reads four elements at a time where all rows allow it",
            lambda p, d, c: (c.PLAIN == "any") == (_aligned(p) == 0),
        ),
        for_speed(
            "a tile, or a cluster's tiles, is less than twice as high and wide as C, or 64",
            lambda p, d, c: (
                ((64 * c.CONSUMERS * c.CLUSTER == 64) | (2 * p.m > 64 * c.CONSUMERS * c.CLUSTER))
                & ((c.WIDTH == 64) | (2 * p.n > c.WIDTH))
            ),
        ),
        Constraint(
            "tiles can be counted in 31 bits", lambda p, d, c: _tiles(p, c) * ceil_div(p.k, c.CHUNK) < 2**31
        ),
        shared_fits("the places of both tiles and their factors", _shared_bytes),
    ),
    launch=_launch,
    tiles=lambda p, c: {"batch": 1, "m": 64 * c.CONSUMERS, "n": c.WIDTH},
    starts=tuple(
        _start(*start) | {"PLAIN": plain}
        for plain in ("aligned", "any")
        for start in (
            (2, 192, 64, 5, 1, "plain"), (2, 128, 64, 6, 1, "plain"), (2, 192, 64, 5, 2, "plain"),
            (1, 64, 64, 8, 1, "plain"), (1, 128, 64, 6, 1, "plain"), (2, 128, 64, 6, 1, "compensated"),
            (1, 64, 64, 8, 1, "compensated"), (1, 64, 32, 8, 1, "compensated"),
        )
    ),
)  # fmt: skip
