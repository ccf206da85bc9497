"""What surveys timed, joined into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, latest_hash
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing


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
