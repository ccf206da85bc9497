"""bmm on CUDA in 16 bits, on tensor cores of sm_90: two warpgroups take tiles in turn."""

from pathlib import Path
from typing import Any

from tuner import Constraint, Kernel, Launch, Problem, Scope, Source, Step, choice
from tuner.declare.rules import shared_fits, wgmma_rules, wgmma_shared_bytes

from ._wgmma import SOURCES, countable, given, maps

#: Warpgroups that take turns; bytes of the sheets that each has to store from.
TURNS, SHEETS_BYTES = 2, 16_384


def _shared_bytes(p: Problem, c: Any) -> Any:
    """Places, and sheets of every warpgroup."""
    return wgmma_shared_bytes(p, c) + (TURNS - 1) * SHEETS_BYTES


def _launch(p: Problem, c: Any) -> Launch:
    step = Step("bmm", (c.BLOCKS,), (128 * (TURNS + 1),), _shared_bytes(p, c), given(c))
    return Launch.of("bmm", [step], maps=maps(p, c))


def _start(bm: int, bn: int, stages: int, order: str = "rows", store: str = "tma") -> dict[str, int | str]:
    return {
        "BM": bm, "BN": bn, "CONSUMERS": 1, "TURNS": TURNS, "STAGES": stages, "BLOCKS": 132, "GROUP": 8,
        "ORDER": order, "STORE": store,
    }  # fmt: skip


KERNEL = Kernel(
    operation="bmm",
    name="wgmma_turns",
    target="cuda",
    source=Source(Path("wgmma_turns.cu"), includes=SOURCES),
    idea="two warpgroups take tiles in turn: one stores while the other one multiplies",
    scope=Scope(dtypes=("float16", "bfloat16"), architecture="sm_90a"),
    parameters=(
        choice("BM", 64, 128, 192),
        choice("BN", 64, 128, 192, 256),
        choice("CONSUMERS", 1),
        choice("TURNS", TURNS),
        choice("STAGES", 2, 3, 4, 5, 6, 8, 10),
        choice("BLOCKS", 132, 114),
        choice("GROUP", 4, 8, 16),
        choice("ORDER", "rows", "snake", "hilbert"),
        choice("STORE", "tma", "registers"),
    ),
    constraints=(
        *wgmma_rules(lambda p, c: p.m),
        Constraint(
            "a tile's sums and 40 registers more fit a thread of one warpgroup",
            lambda p, d, c: c.BM * c.BN // 128 + 40 <= 232,
        ),
        *countable(),
        shared_fits("places of both tiles, and sheets to store from", _shared_bytes),
    ),
    launch=_launch,
    tiles=lambda p, c: {"batch": 1, "m": c.BM, "n": c.BN},
    starts=(
        _start(128, 128, 6), _start(64, 256, 4), _start(128, 192, 4), _start(192, 128, 4),
        _start(128, 128, 5, "hilbert"), _start(64, 128, 8), _start(128, 64, 8), _start(64, 64, 10),
        _start(128, 128, 6, store="registers"), _start(64, 64, 10, store="registers"),
    ),
)  # fmt: skip
