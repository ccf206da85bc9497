"""What tests of lookups share: devices, records, and ways to store them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.catalogue import builtin
from tuner.hardware import DeviceInfo
from tuner.lookup import Answer
from tuner.lookup import answer as looked_up
from tuner.measurement import Error, Measurement, Outcome
from tuner.record import Champion, ProblemKey, Record, Role
from tuner.store import Store

BOARD = DeviceInfo(
    "NVIDIA H200", "cuda", uuid="GPU-1", architecture="sm_90", driver="580.1", compute_capability=90,
    sm_count=132, warp_size=32, max_threads_per_block=1024, max_threads_per_sm=2048,
    shared_bytes_per_block=232448, shared_bytes_per_sm=233472, registers_per_block=65536,
    registers_per_thread=255, l2_bytes=60 << 20,
)  # fmt: skip
CPU = DeviceInfo(
    "AMD EPYC (AVX-512, 2 cores)", "cpu", uuid="cpu-1", cores=2, vector_bytes=64, l1_bytes=48 << 10
)
#: A legal config of gemm's first kernel.
NAIVE = {"BLOCK_X": 32, "BLOCK_Y": 8, "ACCUMULATE": "plain", "PITCH": 1}
#: Where nothing is published.
NOWHERE = Path("/nothing/published")


def gemm(m: int, n: int, k: int, layout: str = "nn") -> ProblemKey:
    return ProblemKey("gemm", (("m", m), ("n", n), ("k", k)), "float32", layout)


def source_hash(name: str = "naive", target: str = "cuda") -> str:
    return next(k.source_hash for k in builtin().of("gemm", target) if k.name == name)


def record(problem: ProblemKey, time_s: float = 2e-3, **more: Any) -> Record:
    work = {"flops": 2e9, "bytes": 12e6}
    measurement = Measurement(
        Outcome.MEASURED, samples_s=(time_s, time_s, time_s * 1.5), error=Error(1e-6, 2e-7, 0.1)
    )
    given = {
        "device": BOARD, "regime": "cold", "role": Role.TRIAL, "kernel": "naive", "config": NAIVE,
        "source_hash": source_hash(), "measurement": measurement, "work": work,
    } | more  # fmt: skip
    return Record(problem, **given)


def library(problem: ProblemKey, time_s: float = 1e-3, **more: Any) -> Record:
    given = {
        "role": Role.BASELINE, "kernel": "cuBLAS", "config": {}, "source_hash": "",
        "versions": {"library": "cuBLAS 130100"},
    } | more  # fmt: skip
    return record(problem, time_s, **given)


def crown(store: Store, of: Record, baseline: Record | None = None, speedup: float = 0.0) -> Champion:
    trials = {"total": 9, "measured": 7, "failed": 2, "CRASHED": 2}
    champion = Champion(of, baseline, speedup, "first", trials)
    store.crown(champion)
    return champion


def answer(
    store: Store | None, problem: ProblemKey, where: DeviceInfo | str, *more: Any, **named: Any
) -> Answer:
    """A lookup that knows no published results."""
    return looked_up(store, problem, where, *more, **{"published": NOWHERE} | named)


def tiled(block: int, **more: Any) -> Mapping[str, Any]:
    """A config of gemm's kernel ``tiled``."""
    return {"BLOCK": block, "BORDER": "check", "ACCUMULATE": "plain", "PITCH": 1, **more}
