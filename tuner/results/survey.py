"""Surveys: times of many configs at many problems of one operation. Plain frozen data.

A record keeps all that is known of one trial. A survey makes some hundred timings a second, of which a model
needs little more than the time. So they are kept in parts: a part is what was timed in a few seconds, with its
problems and configs named once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.results.crowns import Crown
from tuner.results.equivalence import latest_hash
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, new_id, utc_now

#: Number of the library among the configs of a part.
LIBRARY = -1


class Timing(NamedTuple):
    """One config, or the library, at one problem.

    Attributes:
        problem: Number of the problem in its part.
        config: Number of the config in its part, or `LIBRARY`.
        outcome: MEASURED; PRUNED if its first run was so slow that no other followed, which is its time; or why
            there is no time.
        time_s: Median of its samples in seconds; 0 if there is none.
        noise: Of the samples, relative; 0 for a single one.
        reason: Why there is no time.
    """

    problem: int
    config: int
    outcome: Outcome
    time_s: float = 0.0
    noise: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class SurveyConfig:
    """A config that a survey times.

    Attributes:
        kernel: Kernel's name.
        config: Parameters and their values.
        source_hash: `tuner.declare.kernel.Kernel.source_hash`.
        origin: File that declares the kernel, for a user's own; empty for built-in ones.
        registers: 32-bit registers of a thread by the compiler's report; 0 if it is unknown.
    """

    kernel: str
    config: Mapping[str, Any]
    source_hash: str
    origin: str = ""
    registers: int = 0


@dataclass(frozen=True)
class SurveyPart:
    """Timings that a survey made one after the other. Parts are only ever added.

    Attributes:
        device: Where.
        operation: Name of the operation of all problems.
        regime: How time was taken.
        problems: What the timings' numbers stand for.
        configs: The same of configs.
        timings: The timings, in the order made.
        versions: As in `tuner.results.record.Record`.
        study: Name of the survey.
        session: Id shared by the parts of one run.
        id: UUID.
        measured_at: When the part ended; ISO 8601, UTC.
    """

    device: DeviceInfo
    operation: str
    regime: str
    problems: tuple[ProblemKey, ...]
    configs: tuple[SurveyConfig, ...]
    timings: tuple[Timing, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    study: str = ""
    session: str = ""
    id: str = field(default_factory=new_id)
    measured_at: str = field(default_factory=utc_now)


def rounded(value: float, digits: int) -> float:
    """A figure with so many digits, far below its noise: it is stored as a short text."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else 0.0


@dataclass(frozen=True)
class Surveyed:
    """All valid timings of an operation on one kind of device, as arrays that a model is fitted to.

    Attributes:
        problems: The problems.
        configs: Kernel, and its parameters as a sorted tuple of pairs.
        sources: Per config: hash of the kernel's source.
        registers: Per config: 32-bit registers of a thread, 0 if unknown; shape (configs,).
        problem: Per timing: number of its problem; shape (timings,).
        config: Per timing: number of its config, or `LIBRARY`; shape (timings,).
        time_s: Per timing: median in seconds; shape (timings,).
        noise: Per timing: relative noise; shape (timings,).
        cut_off: Per timing: whether it is that of a single, slow run; shape (timings,).
        failed: (problem, config) pairs that have no time; shape (failures, 2).
        provenance: Device, regime, versions, dates, counts, hashes of sources; JSON.
    """

    problems: tuple[ProblemKey, ...]
    configs: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    sources: tuple[str, ...]
    registers: NDArray[np.float64]
    problem: NDArray[np.int64]
    config: NDArray[np.int64]
    time_s: NDArray[np.float64]
    noise: NDArray[np.float64]
    cut_off: NDArray[np.bool_]
    failed: NDArray[np.int64]
    provenance: Mapping[str, Any]


def joined(parts: Iterable[SurveyPart], sources: Mapping[str, str] | None = None) -> Surveyed:
    """Joins parts into arrays; of a config timed twice at a problem the last time counts.

    Args:
        parts: Of one operation, regime and kind of device, in the order measured.
        sources: Kernel -> source hash: only configs of these sources; all when None.
    """
    found = _Joining()
    for part in parts:
        found.add(part, sources)
    return found.surveyed()


class _Joining:
    """Numbers problems and configs across parts."""

    def __init__(self) -> None:
        self.problems: dict[ProblemKey, int] = {}
        self.configs: dict[tuple[str, tuple[tuple[str, Any], ...], str], int] = {}
        self.registers: list[int] = []
        self.timings: dict[tuple[int, int], Timing] = {}
        self.parts: list[SurveyPart] = []

    def add(self, part: SurveyPart, sources: Mapping[str, str] | None) -> None:
        self.parts.append(part)
        problems = [self.problems.setdefault(each, len(self.problems)) for each in part.problems]
        configs = [self._number(each, sources) for each in part.configs]
        for timing in part.timings:
            config = LIBRARY if timing.config == LIBRARY else configs[timing.config]
            if config is not None:
                self.timings[problems[timing.problem], config] = timing

    def _number(self, of: SurveyConfig, sources: Mapping[str, str] | None) -> int | None:
        source = latest_hash(of.source_hash)
        if sources is not None and latest_hash(sources.get(of.kernel, "")) != source:
            return None
        key = of.kernel, tuple(sorted(of.config.items())), source
        if key not in self.configs:
            self.configs[key] = len(self.configs)
            self.registers.append(of.registers)
        return self.configs[key]

    def surveyed(self) -> Surveyed:
        timed = [(*at, each) for at, each in self.timings.items() if not each.outcome.failed]
        failed = [at for at, each in self.timings.items() if each.outcome.failed]
        return Surveyed(
            tuple(self.problems),
            tuple((kernel, config) for kernel, config, _ in self.configs),
            tuple(source for *_, source in self.configs),
            np.array(self.registers, dtype=np.float64),
            np.array([problem for problem, _, _ in timed], dtype=np.int64),
            np.array([config for _, config, _ in timed], dtype=np.int64),
            np.array([each.time_s for *_, each in timed], dtype=np.float64),
            np.array([each.noise for *_, each in timed], dtype=np.float64),
            np.array([each.outcome is Outcome.PRUNED for *_, each in timed], dtype=np.bool_),
            np.array(failed, dtype=np.int64).reshape(-1, 2),
            self._provenance(len(timed)),
        )

    def _provenance(self, timings: int) -> dict[str, Any]:
        versions = {name: text for part in self.parts for name, text in part.versions.items()}
        return {
            "devices": sorted({part.device.name for part in self.parts}),
            "regimes": sorted({part.regime for part in self.parts}),
            "versions": versions,
            "measured_at": max((part.measured_at for part in self.parts), default=""),
            "first": min((part.measured_at for part in self.parts), default=""),
            "parts": len(self.parts), "problems": len(self.problems), "configs": len(self.configs),
            "timings": timings,
            "sources": {kernel: source for kernel, _, source in self.configs},
        }  # fmt: skip


Kept = Record | Champion | Retraction | SurveyPart | Crown
