"""The result of a climb: steps, libraries, limits, sweeps; as rows for programs, and as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.report.ladder_plan import REPORTED, LadderPlan, LadderStep, Published, Section, lesson_of
from tuner.results.measurement import Measurement, Outcome, compare, headline
from tuner.results.record import Record, utc_now
from tuner.results.units import answer_speed, config_text, duration
from tuner.workers.bench import CompiledConfig

#: A problem is limited by reading if its outputs are less than this share of its bytes, else by copying.
MOSTLY_READ = 0.1


@dataclass(frozen=True)
class DeviceLimits:
    """The device's limits, as measured here; 0 where one was not measured.

    Attributes:
        read_gbps: Reading memory, GB/s.
        copy_gbps: Copying memory, both directions counted, GB/s.
        tflops: Multiply-adds in registers, in the ladder's dtype, TFLOPS.
    """

    read_gbps: float = 0.0
    copy_gbps: float = 0.0
    tflops: float = 0.0

    def least_s(self, problem: Problem) -> float:
        """Least time that the limits allow for a problem (its roofline), in seconds; 0 if unknown."""
        work, written = problem.work, sum(tensor.bytes for tensor in problem.outputs)
        bandwidth_gbps = self.read_gbps if written < MOSTLY_READ * work.bytes else self.copy_gbps
        moving = work.bytes / (bandwidth_gbps * 1e9) if bandwidth_gbps else 0.0
        computing = work.flops / (self.tflops * 1e12) if self.tflops else 0.0
        return max(moving, computing)

    def __str__(self) -> str:
        return (
            f"Limits measured here: reading {self.read_gbps:.0f} GB/s, copying {self.copy_gbps:.0f} GB/s, "
            f"multiply-adds {self.tflops:.3g} TFLOPS"
        )


@dataclass(frozen=True)
class Rung:
    """A step that was climbed.

    Attributes:
        section: The section of the plan.
        step: The step.
        kernel: Its kernel.
        config: The config.
        measurement: Its measurement.
        trials: Number of configs tried for it.
        code: Its machine code; None if it cannot play the finals.
    """

    section: Section
    step: LadderStep
    kernel: Kernel
    config: Config
    measurement: Measurement
    trials: int = 1
    code: CompiledConfig | None = None

    @property
    def published(self) -> Published | None:
        """The report's figures for the nearest shape."""
        sizes = [size for _, size in self.section.problem.shape]

        def distance(figures: Published) -> float:
            return sum(float(abs(x - y) / max(x, y)) for x, y in zip(figures["shape"], sizes, strict=True))

        return min(self.step.published, key=distance, default=None)


@dataclass
class Ladder:
    """The complete result of a climb.

    Attributes:
        plan: The plan.
        device: The device.
        versions: Name -> version of everything involved.
        regime: How times were taken.
        limits: The device's limits.
        rungs: Steps in order, section by section.
        libraries: Problem -> the library measured beside its steps, if it has a time.
        transfers_s: Problem -> seconds for ``allocate``, ``to_device``, ``to_host``.
        measured_at: Time, ISO 8601.
    """

    plan: LadderPlan
    device: DeviceInfo
    versions: Mapping[str, str]
    regime: str
    limits: DeviceLimits = field(default_factory=DeviceLimits)
    rungs: list[Rung] = field(default_factory=list)
    libraries: dict[Problem, Record] = field(default_factory=dict)
    transfers_s: dict[Problem, Mapping[str, float]] = field(default_factory=dict)
    measured_at: str = field(default_factory=utc_now)

    @property
    def sections(self) -> list[Section]:
        """The sections that have a step, in order."""
        return [section for section in self.plan.sections if self.rungs_of(section)]

    def rungs_of(self, section: Section) -> list[Rung]:
        """The steps of a section that were climbed."""
        return [rung for rung in self.rungs if rung.section.title == section.title]

    def rows(self, section: Section | None = None) -> list[dict[str, Any]]:
        """A JSON object for each step, in order: those of a section, or of all but sweeps.

        A step is compared with the one before, and with the first, of its shape, whatever its layout.
        """
        rows: list[dict[str, Any]] = []
        timed: dict[Any, list[Measurement]] = {}
        for rung in self.rungs:
            own = rung.section
            earlier = timed.setdefault((own.problem.shape, own.is_sweep and own.title), [])
            if rung.measurement.outcome is Outcome.MEASURED:
                earlier.append(rung.measurement)
            if own.title == section.title if section else not own.is_sweep:
                rows.append(self._row(rung, earlier))
        return rows

    def _row(self, rung: Rung, timed: Sequence[Measurement]) -> dict[str, Any]:
        """The JSON object of a step; `timed` are those of its shape up to this one, if it has a time."""
        problem, measurement, published = rung.section.problem, rung.measurement, rung.published
        library = self.libraries.get(problem)
        row = {
            "kernel": rung.kernel.name, "label": rung.step.label, "config": dict(rung.config),
            "problem": problem.to_json(), **self.figures(problem, measurement),
            "step_speedup": _speedup(measurement, timed[-2:][0] if timed else None),
            "total_speedup": _speedup(measurement, timed[0] if timed else None),
            "of_library": _speedup(measurement, library.measurement if library else None),
            "outcome": measurement.outcome.value,
            "reason": measurement.reason, "trials": rung.trials,
            "published": published,
        }  # fmt: skip
        transfers = self.transfers_s.get(problem)
        if transfers and row["time_s"]:
            total = row["time_s"] + sum(transfers.values())
            row["end_to_end"] = {**transfers, "kernel": row["time_s"], "total": total}
        return row

    def figures(self, problem: Problem, measurement: Measurement) -> dict[str, Any]:
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

    def table(self, section: Section) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of a section's steps, then of the libraries; a column without a word is left out."""
        rows, library = self.rows(section), self.libraries.get(section.problem)
        if library is not None:
            rows.append({"label": library.kernel, **self.figures(section.problem, library.measurement)})
        cells = [_cells(row, library.kernel if library else "library") for row in rows]
        columns = [name for name in cells[0] if any(row[name] for row in cells)]
        return columns, [[row[name] for name in columns] for row in cells]

    def slower_texts(self, section: Section) -> list[str]:
        """A sentence for each step that is slower than the one before beyond noise, with the known reason."""
        texts = []
        for rung, row in zip(self.rungs_of(section), self.rows(section), strict=True):
            if not section.is_sweep and (row["step_speedup"] or 1.0) < 1 - 2 * max(row["noise"] or 0.0, 0.005):
                why = lesson_of(rung.kernel, "slower")
                texts.append(f"{rung.step.label} is slower than the step before{f': {why}' if why else ''}")
        return texts


def _speedup(own: Measurement, other: Measurement | None) -> float | None:
    """Another's time over the own; the median over rounds if they share rounds."""
    if other is None or own.outcome is not Outcome.MEASURED or not own.time_s or not other.time_s:
        return None
    if len(own.samples_s) == len(other.samples_s):
        return compare(own.samples_s, other.samples_s).ratio
    return other.time_s / own.time_s


def _cells(row: Mapping[str, Any], library: str) -> dict[str, str]:
    """Column -> the word of a row."""
    time_s, error, whole, published = (row.get(name) for name in ("time_s", "error", "end_to_end", "published"))
    failed = f"{row.get('outcome')}: {headline(row.get('reason', ''))[:80]}"

    def shown(name: str, form: str) -> str:
        return format(row[name], form) if time_s and row.get(name) else ""

    return {
        "step": f"{row['label']}\n  {config_text(row['config'])}" if "config" in row else row["label"],
        "time": duration(time_s) if time_s else failed, "speed": answer_speed(row) if time_s else "",
        "step x": shown("step_speedup", ".2f"), "total x": shown("total_speedup", ".2f"),
        f"of {library}": shown("of_library", ".1%"), "of limit": shown("of_limit", ".1%"),
        "noise": shown("noise", ".1%"),
        "error: max, mean": f"{error['max_rel']:.1e}, {error['mean_rel']:.1e}" if error else "",
        "end to end": duration(whole["total"]) if whole else "",
        "published": _published(published) if published else "",
    }  # fmt: skip


def _published(published: Mapping[str, Any]) -> str:
    """A report's figures of a step in one line."""
    shape = "x".join(str(size) for size in published["shape"])
    parts = [text.format(published[name]) for name, text in REPORTED.items() if published.get(name)]
    return f"{', '.join(parts)} ({shape}, {published['hardware']})"
