"""The results of a climb: rungs, libraries, limits, sweeps; their rows, and their tables in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Value
from tuner.report.ladder_plan import LadderPlan, LadderStep, Sweep, lesson_of
from tuner.results.measurement import Measurement, Outcome, compare, headline
from tuner.results.record import utc_now
from tuner.results.units import answer_speed, config_text, duration
from tuner.workers.bench import CompiledConfig

#: A problem is limited by reading if its outputs are less than this share of its bytes, else by copying.
MOSTLY_READ = 0.1


@dataclass(frozen=True)
class DeviceLimits:
    """The device's limits, as measured here.

    Attributes:
        read_gbps: Reading memory, GB/s.
        copy_gbps: Copying memory, both directions counted, GB/s.
        tflops: Multiply-adds in registers, in the ladder's dtype, TFLOPS; 0 if not measured.
    """

    read_gbps: float = 0.0
    copy_gbps: float = 0.0
    tflops: float = 0.0

    def bandwidth_gbps(self, problem: Problem) -> float:
        """Returns the limit of memory that applies to a problem, in GB/s."""
        written = sum(tensor.bytes for tensor in problem.outputs)
        return self.read_gbps if written < MOSTLY_READ * problem.work.bytes else self.copy_gbps

    def least_s(self, problem: Problem) -> float:
        """Least time that the limits allow for a problem (its roofline), in seconds; 0 if unknown."""
        bandwidth, work = self.bandwidth_gbps(problem) * 1e9, problem.work
        moving = work.bytes / bandwidth if bandwidth else 0.0
        computing = work.flops / (self.tflops * 1e12) if self.tflops else 0.0
        return max(moving, computing)

    def __str__(self) -> str:
        parts = [
            f"reading {self.read_gbps:.0f} GB/s" if self.read_gbps else "",
            f"copying {self.copy_gbps:.0f} GB/s" if self.copy_gbps else "",
            f"multiply-adds {self.tflops:.3g} TFLOPS" if self.tflops else "",
        ]
        return f"Limits measured here: {', '.join(filter(None, parts))}" if any(parts) else ""


@dataclass(frozen=True)
class Rung:
    """A step that was climbed.

    Attributes:
        step: The step.
        problem: The problem.
        config: The config.
        measurement: Its measurement.
        trials: Number of configs tried for it.
        code: Its machine code; None if it cannot play the finals.
    """

    step: LadderStep
    problem: Problem
    config: Config
    measurement: Measurement
    trials: int = 1
    code: CompiledConfig | None = None


@dataclass(frozen=True)
class Library:
    """A library measured beside the rungs.

    Attributes:
        name: e.g. ``cuBLAS``.
        problem: The problem.
        measurement: Its measurement.
        main: True for the operation's baseline, to which ratios refer.
    """

    name: str
    problem: Problem
    measurement: Measurement
    main: bool = True


@dataclass(frozen=True)
class SweepPoint:
    """One value of a sweep for one problem."""

    sweep: Sweep
    problem: Problem
    value: Value
    measurement: Measurement


@dataclass
class Ladder:
    """The complete result of a climb.

    Attributes:
        plan: The plan.
        device: The device.
        versions: Name -> version of everything involved.
        regime: How times were taken.
        limits: The device's limits.
        rungs: Rungs in order, problem by problem.
        libraries: Libraries measured beside them.
        sweeps: Points of sweeps, in order.
        transfers_s: Problem -> seconds for ``allocate``, ``to_device``, ``to_host``.
        measured_at: Time, ISO 8601.
    """

    plan: LadderPlan
    device: DeviceInfo
    versions: Mapping[str, str]
    regime: str
    limits: DeviceLimits = field(default_factory=DeviceLimits)
    rungs: list[Rung] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    sweeps: list[SweepPoint] = field(default_factory=list)
    transfers_s: dict[Problem, Mapping[str, float]] = field(default_factory=dict)
    measured_at: str = field(default_factory=utc_now)

    @property
    def problems(self) -> list[Problem]:
        """The problems of the rungs, in order."""
        return list(dict.fromkeys(rung.problem for rung in self.rungs))

    def libraries_of(self, problem: Problem) -> list[tuple[Library, float]]:
        """The libraries that were timed for a problem, with their seconds, the operation's baseline first."""
        timed = [
            (library, library.measurement.time_s)
            for library in self.libraries
            if library.problem == problem and library.measurement.time_s
        ]
        return sorted(timed, key=lambda pair: not pair[0].main)

    def rows(self, problem: Problem | None = None) -> list[dict[str, Any]]:
        """Returns a JSON object for each rung, in order; only those of a problem, if one is named."""
        rows: list[dict[str, Any]] = []
        before: dict[Any, Measurement] = {}
        first: dict[Any, Measurement] = {}
        for rung in self.rungs:
            shape, measurement = rung.problem.shape, rung.measurement
            timed = measurement.outcome is Outcome.MEASURED
            row = self._row(rung, before.get(shape, measurement), first.get(shape, measurement))
            if problem in (None, rung.problem):
                rows.append(row)
            if timed:
                before[shape] = measurement
                first.setdefault(shape, measurement)
        return rows

    def _row(self, rung: Rung, before: Measurement, first: Measurement) -> dict[str, Any]:
        problem, measurement = rung.problem, rung.measurement
        main = next((each for each, _ in self.libraries_of(problem) if each.main), None)
        published = rung.step.published_near([size for _, size in problem.shape])
        row = {
            "kernel": rung.step.kernel.name, "label": rung.step.label, "config": dict(rung.config),
            "problem": problem.to_json(), **self._figures(problem, measurement),
            "step_speedup": _speedup(measurement, before), "total_speedup": _speedup(measurement, first),
            "of_library": _speedup(measurement, main.measurement) if main else None,
            "outcome": measurement.outcome.value, "reason": measurement.reason, "trials": rung.trials,
            "published": None if published is None else dict(published),
        }  # fmt: skip
        transfers = self.transfers_s.get(problem)
        if transfers and row["time_s"]:
            total = row["time_s"] + sum(transfers.values())
            row["end_to_end"] = {**transfers, "kernel": row["time_s"], "total": total}
        return row

    def _figures(self, problem: Problem, measurement: Measurement) -> dict[str, Any]:
        """What is known of a time and a result, whoever computed it; None without a time."""
        time_s = measurement.time_s if measurement.outcome is Outcome.MEASURED else None
        error, least_s = measurement.error, self.limits.least_s(problem)
        return {
            "time_s": time_s,
            "tflops": problem.work.flops / time_s / 1e12 if time_s else None,
            "gbps": problem.work.bytes / time_s / 1e9 if time_s else None,
            "of_limit": least_s / time_s if time_s and least_s else None,
            "noise": measurement.noise if time_s else None,
            "error": error and {name: getattr(error, name) for name in ("max_rel", "mean_rel", "rms_rel")},
        }

    # ---- in the words that terminals and pages share

    def table(self, problem: Problem) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of a problem's steps, then of the libraries."""
        rows, libraries = self.rows(problem), self.libraries_of(problem)
        optional = {"end_to_end": _end_to_end, "published": _published}
        optional = {name: text for name, text in optional.items() if any(row.get(name) for row in rows)}
        library = libraries[0][0].name if libraries else "library"
        columns = [
            "step", "time", "speed", "step x", "total x", f"of {library}", "of limit", "noise",
            "error: max, mean", *(name.replace("_", " ") for name in optional),
        ]  # fmt: skip
        rows += [
            {"label": library.name, **self._figures(problem, library.measurement)} for library, _ in libraries
        ]
        return columns, [
            [*_cells(row), *(text(row[name]) if row.get(name) else "" for name, text in optional.items())]
            for row in rows
        ]

    def slower_texts(self, problem: Problem) -> list[str]:
        """A sentence for each step that is slower than the one before beyond noise, with the known reason."""
        texts = []
        for row in self.rows(problem):
            if (row["step_speedup"] or 1.0) < 1 - 2 * max(row["noise"] or 0.0, 0.005):
                step = next(rung.step for rung in self.rungs if rung.step.label == row["label"])
                why = lesson_of(step.kernel, "slower")
                texts.append(f"{step.label} is slower than the step before{f': {why}' if why else ''}")
        return texts


def _speedup(own: Measurement, other: Measurement) -> float | None:
    """Returns another's time over the own; the median over rounds if they share rounds."""
    if own.outcome is not Outcome.MEASURED or not own.time_s or not other.time_s:
        return None
    if len(own.samples_s) == len(other.samples_s):
        return compare(own.samples_s, other.samples_s).ratio
    return other.time_s / own.time_s


def _cells(row: Mapping[str, Any]) -> list[str]:
    label = f"{row['label']}\n  {config_text(row['config'])}" if "config" in row else row["label"]
    if row["time_s"] is None:
        return [label, f"{row['outcome']}: {headline(row['reason'])[:80]}", *[""] * 7]
    error = row["error"]
    return [
        label, duration(row["time_s"]), answer_speed(row),
        *(f"{row[key]:.2f}" if row.get(key) else "" for key in ("step_speedup", "total_speedup")),
        *(f"{row[key]:.1%}" if row.get(key) else "" for key in ("of_library", "of_limit")),
        f"{row['noise']:.1%}", f"{error['max_rel']:.1e}, {error['mean_rel']:.1e}" if error else "",
    ]  # fmt: skip


def _end_to_end(whole: Mapping[str, float]) -> str:
    """Time of a run from the host's memory and back, and its parts."""
    parts = [
        f"{name.replace('_', ' ')} {duration(seconds)}"
        for name, seconds in whole.items()
        if name not in ("kernel", "total")
    ]
    return f"{duration(whole['total'])}\n  {', '.join(parts)}"


#: Figure of a report -> how it is written.
REPORTED = {
    "ms": "{:g} ms", "gflops": "{:g} GFLOPS", "gbps": "{:g} GB/s", "of_library": "{:.1%} of the library",
    "max_rel": "max error {:.2g}", "mean_rel": "mean error {:.2g}", "note": "{}",
}  # fmt: skip


def _published(published: Mapping[str, Any]) -> str:
    """A report's figures of a step in one line."""
    shape = "x".join(str(size) for size in published["shape"])
    parts = [text.format(published[name]) for name, text in REPORTED.items() if published.get(name)]
    return f"{', '.join(parts)} ({shape}, {published['hardware']})"
