"""The results of a climb: rungs, libraries, limits, sweeps; their rows, and their tables in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Value
from tuner.report.ladder_plan import LadderPlan, LadderStep, Sweep
from tuner.results.measurement import Measurement, Outcome, compare, headline
from tuner.results.record import utc_now
from tuner.results.units import answer_speed, config_text, duration, speed
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

    @property
    def time_s(self) -> float | None:
        """Median in seconds; None if it was not measured."""
        return self.measurement.time_s if self.measurement.outcome is Outcome.MEASURED else None


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

    def library_of(self, problem: Problem) -> Library | None:
        """Returns the operation's baseline for a problem."""
        return next((one for one in self.libraries if one.main and one.problem == problem), None)

    def rows(self, problem: Problem | None = None) -> list[dict[str, Any]]:
        """Returns a JSON object for each rung, in order; only those of a problem, if one is named."""
        rows: list[dict[str, Any]] = []
        before: dict[Any, Rung] = {}
        first: dict[Any, Rung] = {}
        for rung in self.rungs:
            shape = rung.problem.shape
            if problem in (None, rung.problem):
                rows.append(self._row(rung, before.get(shape), first.get(shape)))
            if rung.time_s is not None:
                before[shape] = rung
                first.setdefault(shape, rung)
        return rows

    def _row(self, rung: Rung, before: Rung | None, first: Rung | None) -> dict[str, Any]:
        measurement, time_s = rung.measurement, rung.time_s
        work, error, library = rung.problem.work, rung.measurement.error, self.library_of(rung.problem)
        published = rung.step.published_near([size for _, size in rung.problem.shape])
        least_s = self.limits.least_s(rung.problem)
        row: dict[str, Any] = {
            "kernel": rung.step.kernel.name, "label": rung.step.label, "config": dict(rung.config),
            "problem": rung.problem.to_json(), "time_s": time_s,
            "tflops": work.flops / time_s / 1e12 if time_s else None,
            "gbps": work.bytes / time_s / 1e9 if time_s else None,
            "step_speedup": _speedup(rung, (before or rung).measurement),
            "total_speedup": _speedup(rung, (first or rung).measurement),
            "of_library": _speedup(rung, library.measurement) if library else None,
            "of_limit": least_s / time_s if time_s and least_s else None,
            "noise": measurement.noise if time_s else None,
            "error": None if error is None else {
                "max_rel": error.max_rel, "mean_rel": error.mean_rel, "rms_rel": error.rms_rel,
            },
            "outcome": measurement.outcome.value, "reason": measurement.reason, "trials": rung.trials,
            "published": None if published is None else {
                "shape": list(published.shape), "hardware": published.hardware, "source": published.source,
                **published.figures,
            },
        }  # fmt: skip
        transfers = self.transfers_s.get(rung.problem)
        if transfers and time_s:
            row["end_to_end"] = {**transfers, "kernel": time_s, "total": time_s + sum(transfers.values())}
        return row


def _speedup(rung: Rung, other: Measurement) -> float | None:
    """Returns the time of another over that of a rung; the median over rounds if they share rounds."""
    if rung.time_s is None or not other.time_s:
        return None
    own = rung.measurement.samples_s
    if len(own) == len(other.samples_s):
        return compare(own, other.samples_s).ratio
    return other.time_s / rung.time_s


# ---- tables, in the words that terminals and pages share


def rung_table(ladder: Ladder, problem: Problem) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a problem's steps, then of the libraries."""
    rows, library = ladder.rows(problem), ladder.library_of(problem)
    columns = ["step", "time", "speed", "step x", "total x", f"of {library.name if library else 'library'}"]
    columns += ["of limit", "noise", "error: max, mean"]
    optional = {"end_to_end": _end_to_end, "published": _published}
    optional = {name: text for name, text in optional.items() if any(row.get(name) for row in rows)}
    shown = [
        [*_cells(row), *(text(row[name]) if row.get(name) else "" for name, text in optional.items())]
        for row in rows
    ]
    for one in ladder.libraries:
        if one.problem == problem and one.measurement.time_s:
            shown.append([*_library_cells(one, one.measurement.time_s, ladder.limits), *[""] * len(optional)])
    return [*columns, *(name.replace("_", " ") for name in optional)], shown


def _cells(row: Mapping[str, Any]) -> list[str]:
    label = f"{row['label']}\n  {config_text(row['config'])}"
    if row["time_s"] is None:
        return [label, f"{row['outcome']}: {headline(row['reason'])[:80]}", *[""] * 7]
    return [
        label, duration(row["time_s"]), answer_speed(row),
        *(f"{row[key]:.2f}" if row[key] else "" for key in ("step_speedup", "total_speedup")),
        *(f"{row[key]:.1%}" if row[key] else "" for key in ("of_library", "of_limit")),
        f"{row['noise']:.1%}", _errors(row["error"]),
    ]  # fmt: skip


def _library_cells(library: Library, time_s: float, limits: DeviceLimits) -> list[str]:
    work, measurement = library.problem.work, library.measurement
    limit = limits.least_s(library.problem) / time_s
    cells = [library.name, duration(time_s), speed(work.flops, work.bytes, time_s), "", "", ""]
    error = vars(measurement.error) if measurement.error else None
    return [*cells, f"{limit:.1%}" if limit else "", f"{measurement.noise:.1%}", _errors(error)]


def _errors(error: Mapping[str, float] | None) -> str:
    return f"{error['max_rel']:.1e}, {error['mean_rel']:.1e}" if error else ""


def _end_to_end(whole: Mapping[str, float]) -> str:
    """Time of a run from the host's memory and back, and its parts."""
    parts = [f"{name.replace('_', ' ')} {duration(whole[name])}" for name in whole]
    parts = [part for name, part in zip(whole, parts, strict=True) if name not in ("kernel", "total")]
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


def slower_steps(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the numbers of rows that are slower than the previous one by more than their noise."""
    return [
        number
        for number, row in enumerate(rows)
        if row["step_speedup"] is not None and row["step_speedup"] < 1 - 2 * max(row["noise"] or 0.0, 0.005)
    ]


def slower_texts(ladder: Ladder, problem: Problem) -> list[str]:
    """A sentence for each step that is slower than the one before, with the reason where it is known."""
    rows, texts = ladder.rows(problem), []
    for number in slower_steps(rows):
        label = rows[number]["label"]
        why = next(rung.step.slower for rung in ladder.rungs if rung.step.label == label)
        texts.append(f"{label} is slower than the step before{f': {why}' if why else ''}")
    return texts


def limits_text(limits: DeviceLimits) -> str:
    """The device's limits in one line; empty if none was measured."""
    parts = [
        f"reading {limits.read_gbps:.0f} GB/s" if limits.read_gbps else "",
        f"copying {limits.copy_gbps:.0f} GB/s" if limits.copy_gbps else "",
        f"multiply-adds {limits.tflops:.3g} TFLOPS" if limits.tflops else "",
    ]
    return f"Limits measured here: {', '.join(filter(None, parts))}" if any(parts) else ""
