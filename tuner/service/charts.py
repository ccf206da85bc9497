"""What the plots of a problem and of a device show, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, Record, Role
from tuner.store import Store, listing
from tuner.store.streams import Selection

#: Trials of a plot; of more, the last.
MOST_TRIALS = 3000
#: Operations of ``kernels/limits``, which measure what a device can do.
LIMITS = ("read", "copy", "multiply_add")


def trial_points(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Records of kernels as columns: when, how fast, which config, how exact."""
    found = [record for record in records if record.role is not Role.BASELINE]
    return {
        "at": [record.measured_at for record in found],
        "kernel": [record.kernel for record in found],
        "role": [record.role.value for record in found],
        "outcome": [record.measurement.outcome.value for record in found],
        "reason": [record.measurement.reason[:200] for record in found],
        "time_s": [record.measurement.time_s for record in found],
        "tflops": [record.tflops or None for record in found],
        "gbps": [record.gbps or None for record in found],
        "error": [record.measurement.error and record.measurement.error.rms_rel for record in found],
        "config": [dict(record.config) for record in found],
        "id": [record.id for record in found],
    }


def champion_points(history: Sequence[Champion]) -> dict[str, list[Any]]:
    """Champions as columns, each beside the library from the same finals."""
    return {
        "at": [each.crowned_at for each in history],
        "kernel": [each.record.kernel for each in history],
        "config": [dict(each.record.config) for each in history],
        "tflops": [each.record.tflops for each in history],
        "gbps": [each.record.gbps for each in history],
        "library": [each.baseline.kernel if each.baseline else None for each in history],
        "library_tflops": [each.baseline.tflops if each.baseline else None for each in history],
        "library_gbps": [each.baseline.gbps if each.baseline else None for each in history],
        "speedup": [each.speedup or None for each in history],
    }


def problem_charts(records: Sequence[Record], history: Sequence[Champion]) -> dict[str, Any]:
    """What the plots of a problem show.

    Args:
        records: Its records, in the order measured.
        history: Its champions, oldest first.
    """
    library = [each for each in records if each.role is Role.BASELINE and each.measurement.error is not None]
    error = library[-1].measurement.error if library else None
    intense = [each for each in records if each.work["flops"] >= each.work["bytes"]]
    return {
        "unit": "tflops" if intense else "gbps", "trials": trial_points(records),
        "champions": champion_points(history), "library_error": error.rms_rel if error else None,
        "left_out": len(records) >= MOST_TRIALS,
    }  # fmt: skip


def best_trials(records: Sequence[Record], count: int) -> list[Record]:
    """The fastest measured records of kernels."""
    timed = [
        record
        for record in records
        if record.measurement.outcome is Outcome.MEASURED and record.role is not Role.BASELINE
    ]
    return sorted(timed, key=lambda record: record.measurement.time_s or 0.0)[:count]


def roofline(store: Store, device: DeviceInfo) -> dict[str, Any]:
    """Champions of a device by arithmetic intensity, and what the device was measured to do at most.

    Limits come from records of ``kernels/limits`` on that device; without them the best champion tells how far
    anyone got.
    """
    champions = store.champions(device=device.name)
    shown = [each for each in champions if each.record.problem.operation not in LIMITS and each.record.tflops]
    measured = _limits(store, device)
    tflops, gbps = [each.record.tflops for each in shown], [each.record.gbps for each in shown]
    points: dict[str, list[Any]] = {
        "problem": [str(each.record.problem) for each in shown],
        "operation": [each.record.problem.operation for each in shown],
        "kernel": [each.record.kernel for each in shown],
        "intensity": [each.record.work["flops"] / max(each.record.work["bytes"], 1.0) for each in shown],
        "tflops": tflops,
        "gbps": gbps,
        "speedup": [each.speedup or None for each in shown],
        "dtype": [each.record.problem.dtype for each in shown],
    }
    return {
        "points": points, "measured": measured,
        "best_seen": {
            "tflops": max(tflops) if tflops else None, "gbps": max(gbps) if gbps else None,
        },
    }  # fmt: skip


def _limits(store: Store, device: DeviceInfo) -> dict[str, float | None]:
    """GB/s of reading and copying, TFLOPS of multiply-adds, of the fastest record of each; None without any."""
    rates: dict[str, float | None] = {}
    for name in LIMITS:
        wanted = Selection(operation=name, device=device.name)
        found = [record for _, record in listing.records(store, wanted, [Outcome.MEASURED.value], 0, 500)]
        figures = [each.tflops if name == "multiply_add" else each.gbps for each in found]
        rates[name] = max(figures) if figures else None
    return rates
