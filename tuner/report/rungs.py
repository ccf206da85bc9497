"""The results of a climb: rungs, libraries, limits, sweeps; and the figures derived from them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Value
from tuner.errors import UnknownName
from tuner.results.measurement import Measurement, Outcome, compare


@dataclass(frozen=True)
class Published:
    """Figures of a public report for a step, on its own hardware.

    Attributes:
        hardware: The report's hardware.
        source: The report.
        shape: Dims in the operation's order.
        figures: ``ms``, ``gflops``, ``gbps``, ``of_library``, ``max_rel``, ``mean_rel``, ``note``.
    """

    hardware: str
    source: str
    shape: tuple[int, ...]
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One kernel of a ladder.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        pins: Parameters that are fixed; the others are tuned, or take their defaults.
        layout: Its layout, if not the ladder's.
        lesson: The point of the step, in words.
        slower: Why it may be slower than the previous step, in words.
        published: Figures of reports.
    """

    kernel: Kernel
    label: str
    pins: Mapping[str, Value] = field(default_factory=dict)
    layout: str = ""
    lesson: str = ""
    slower: str = ""
    published: tuple[Published, ...] = ()

    def published_near(self, shape: Sequence[int]) -> Published | None:
        """Returns the report's figures for the nearest shape."""
        return min(self.published, key=lambda each: _distance(each.shape, shape), default=None)


@dataclass(frozen=True)
class Sweep:
    """One parameter of a kernel over its values, for several shapes.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        parameter: The parameter that varies; several names, separated by spaces, vary together.
        values: Its values.
        problems: The problems.
        pins: Fixed parameters; the others take their defaults, or the nearest legal values.
        published_ms: By (shape, value), a report's time in milliseconds.
    """

    kernel: Kernel
    label: str
    parameter: str
    values: tuple[Value, ...]
    problems: tuple[Problem, ...]
    pins: Mapping[str, Value] = field(default_factory=dict)
    published_ms: Mapping[tuple[tuple[int, ...], Value], float] = field(default_factory=dict)

    def pinned(self, value: Value) -> dict[str, Value]:
        """Returns the fixed parameters for one value."""
        return {**self.pins, **dict.fromkeys(self.parameter.split(), value)}


@dataclass(frozen=True)
class LadderPlan:
    """What to climb.

    Attributes:
        title: Title for people.
        problems: The shapes, each a ladder of its own.
        steps: Steps in order.
        sweeps: Sweeps beside them.
        target: ``cuda`` or ``cpu``.
        classic: True if steps use their declared configs instead of being tuned.
        source: The report that it reproduces, if any.
        hardware: That report's hardware.
        notes: Further remarks of the report, line by line.
    """

    title: str
    problems: tuple[Problem, ...]
    steps: tuple[Step, ...]
    sweeps: tuple[Sweep, ...] = ()
    target: str = ""
    classic: bool = False
    source: str = ""
    hardware: str = ""
    notes: tuple[str, ...] = ()


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(abs(x - y) / max(x, y) for x, y in zip(one, other, strict=True))


def configs_folder() -> Path:
    """Returns the folder of the project's plans: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``, ``sweep``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel) -> Mapping[str, Any]:
    """Returns the lesson of a kernel; empty if there is none."""
    found: Mapping[str, Any] = lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {})
    return found


def with_layout(problem: Problem, layout: str) -> Problem:
    """Returns the problem in another layout; unchanged if the layout is empty.

    Raises:
        UnknownName: The operation has no such layout.
    """
    if layout and layout not in problem.operation.layouts:
        raise UnknownName(f"layout of {problem.operation.name}", layout, problem.operation.layouts)
    return replace(problem, layout=layout) if layout else problem


#: A problem is limited by reading if its outputs are less than this share of its bytes, else by copying.
MOSTLY_READ = 0.1


@dataclass(frozen=True)
class Limits:
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
        config: The config; empty if none could be measured.
        measurement: Its measurement.
        trials: Number of configs tried for it.
    """

    step: Step
    problem: Problem
    config: Config
    measurement: Measurement
    trials: int = 1

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
    config: Config
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
    limits: Limits = field(default_factory=Limits)
    rungs: list[Rung] = field(default_factory=list)
    libraries: list[Library] = field(default_factory=list)
    sweeps: list[SweepPoint] = field(default_factory=list)
    transfers_s: dict[Problem, Mapping[str, float]] = field(default_factory=dict)
    measured_at: str = ""

    def library_of(self, problem: Problem) -> Library | None:
        """Returns the operation's baseline for a problem."""
        return next((each for each in self.libraries if each.main and each.problem == problem), None)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a JSON object for each rung, in order."""
        rows: list[dict[str, Any]] = []
        for shape in dict.fromkeys(rung.problem.shape for rung in self.rungs):
            own = [rung for rung in self.rungs if rung.problem.shape == shape]
            first = before = None
            for rung in own:
                rows.append(self._row(rung, before, first))
                if rung.time_s is not None:
                    before, first = rung, first or rung
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
            "step_speedup": _ratio(before, rung), "total_speedup": _ratio(first, rung),
            "of_library": _of_library(rung, library),
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


def _ratio(before: Rung | None, rung: Rung) -> float | None:
    """Returns the speed-up of a rung over an earlier one."""
    if before is None or before.time_s is None or rung.time_s is None:
        return None if before is not None or rung.time_s is None else 1.0
    return _speedup(rung.measurement, before.measurement)


def _of_library(rung: Rung, library: Library | None) -> float | None:
    if library is None or rung.time_s is None or not library.measurement.samples_s:
        return None
    return _speedup(rung.measurement, library.measurement)


def _speedup(one: Measurement, other: Measurement) -> float:
    """Returns the time of another over the time of one; the median over rounds if they share rounds."""
    if len(one.samples_s) == len(other.samples_s):
        return compare(one.samples_s, other.samples_s).ratio
    return (other.time_s or 0.0) / (one.time_s or 1.0)


def slower_steps(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the numbers of rows that are slower than the previous one by more than their noise."""
    found = []
    for number, row in enumerate(rows):
        speedup = row["step_speedup"]
        if speedup is not None and speedup < 1 - 2 * max(row["noise"] or 0.0, 0.005):
            found.append(number)
    return found
