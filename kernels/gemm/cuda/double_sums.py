"""gemm on CUDA: FP32 products summed in FP64 by tensor cores, each element rounded once."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Kernel, Launch, Problem, Scope, Source, Value, Workspace, ceil_div, choice
from tuner.declare.rules import block_registers_fit, for_speed, shared_fits, threads_fit

from ._operands import float32_alone, k_shared_by_few_tiles
from ._tiles import tiles

#: A100, H100 and H200: FP64 tensor cores as fast as FP32 is without.
FAST_DOUBLES = (80, 90)
#: Registers of a thread beside sums and operands.
OTHER_REGISTERS = 60
#: Elements that pad a line of a tile in shared memory: along k, and across.
PAD_ALONG, PAD_ACROSS = 4, 8


def _threads(p: Problem, c: Any) -> Any:
    return (c.BM // c.WM) * (c.BN // c.WN) * 32


def _shared_bytes(p: Problem, c: Any) -> Any:
    """STAGES tiles of both operands, in FP32."""
    elements = 0
    for along, span in ((p.layout[0] == "n", c.BM), (p.layout[1] == "t", c.BN)):
        elements = elements + (span * (c.BK + PAD_ALONG) if along else c.BK * (span + PAD_ACROSS))
    return 4 * c.STAGES * elements


def _registers(p: Problem, c: Any) -> Any:
    """Sums of a thread, and operands of 16 terms, two registers each."""
    return 2 * (c.WM * c.WN // 32 + 8 + c.WN // 2) + OTHER_REGISTERS


def _launch(p: Problem, c: Any) -> Launch:
    counters = ceil_div(4 * tiles(p, c), 256) * 256
    shares = tiles(p, c) * c.SPLIT_K * c.BM * c.BN * 8
    return Launch(
        grid=(tiles(p, c), c.SPLIT_K),
        block=(_threads(p, c),),
        shared_bytes=_shared_bytes(p, c),
        workspace=Workspace(counters + shares, counters) if c.SPLIT_K > 1 else None,
    )


#: Four warps, one beside the other: the best of those tried at 4096 x 4096 x 4096.
USUAL: dict[str, Value] = {
    "BM": 64, "BN": 64, "BK": 16, "WM": 64, "WN": 16, "STAGES": 4, "VECTOR": 4, "SWATH": 8, "SPLIT_K": 1,
}  # fmt: skip
WIDE = USUAL | {"BM": 128, "BN": 128, "BK": 32, "WN": 32, "STAGES": 3}
NARROW = USUAL | {"BM": 128, "BN": 32, "STAGES": 2}
SHARED = USUAL | {"SPLIT_K": 8}
ANY_ROWS = {"VECTOR": 1}

KERNEL = Kernel(
    operation="gemm",
    name="double_sums",
    target="cuda",
    source=Source(Path("double_sums.cu"), includes=(Path("epilogue.cuh"), Path("copies.cuh"))),
    idea="FP32 products summed in FP64 by tensor cores: each element is rounded once",
    scope=Scope(precisions=("emulated",), epilogues=True),
    parameters=(
        choice("BM", 32, 64, 128),
        choice("BN", 32, 64, 128),
        choice("BK", 16, 32),
        choice("WM", 16, 32, 64),
        choice("WN", 16, 32, 64),
        choice("STAGES", 2, 3, 4),
        choice("VECTOR", 1, 4),
        choice("SWATH", 8),
        choice("SPLIT_K", 1, 2, 4, 8, 16),
    ),
    constraints=(
        Constraint(
            "the device has FP64 tensor cores as fast as its FP32 (A100, H100, H200, GH200)",
            lambda p, d, c: sum(d.compute_capability == each for each in FAST_DOUBLES) > 0,
        ),
        float32_alone(),
        Constraint(
            "m, n and k are multiples of VECTOR",
            lambda p, d, c: (p.m % c.VECTOR == 0) & (p.n % c.VECTOR == 0) & (p.k % c.VECTOR == 0),
        ),
        for_speed(
            "four elements are copied at a time where all rows allow it",
            lambda p, d, c: (c.VECTOR == 4) | (p.m % 4 + p.n % 4 + p.k % 4 > 0),
        ),
        Constraint(
            "a block's tile is made of whole warp tiles",
            lambda p, d, c: (c.BM % c.WM == 0) & (c.BN % c.WN == 0),
        ),
        threads_fit(_threads, 4),
        Constraint(
            "every thread makes the same number of copies",
            lambda p, d, c: (
                (c.BM * c.BK // c.VECTOR % _threads(p, c) == 0)
                & (c.BN * c.BK // c.VECTOR % _threads(p, c) == 0)
            ),
        ),
        block_registers_fit("sums and operands, in FP64", _registers, _threads),
        Constraint(
            "every one of SPLIT_K blocks sums at least a tile",
            lambda p, d, c: ceil_div(p.k, c.BK) >= c.SPLIT_K,
        ),
        k_shared_by_few_tiles(tiles),
        shared_fits("the tiles of both operands", _shared_bytes),
    ),
    launch=_launch,
    tiles=lambda p, c: {"m": c.BM, "n": c.BN, "k": p.k / c.SPLIT_K},
    starts=(USUAL, NARROW, WIDE, SHARED, *(each | ANY_ROWS for each in (USUAL, NARROW, SHARED))),
)
