"""The part of a survey that is being timed, up to where it is stored."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.setup import key_of
from tuner.study.survey_design import Design, SurveyRequest
from tuner.version import __version__
from tuner.workers.device_worker import DeviceWorker

#: A part is stored when it has so many timings, or is so old in seconds: what a kill may cost.
PART_TIMINGS, PART_S = 400, 5.0


class Part:
    """Timings that are not stored yet.

    Attributes:
        study: Name of the survey.
    """

    def __init__(self, chosen: Design, worker: DeviceWorker) -> None:
        """Begins empty.

        Args:
            chosen: The survey's configs.
            worker: The device.
        """
        self.study, self._session = survey_name(chosen.request, worker.info), new_id()
        self._design, self._worker = chosen, worker
        self._clear()

    def _clear(self) -> None:
        self._problems: list[ProblemKey] = []
        self._configs: dict[int, SurveyConfig] = {}
        self._timings: list[Timing] = []
        self._begun_s = time.monotonic()

    def known(self, store: Store) -> set[ProblemKey]:
        """Problems that earlier runs of the survey timed."""
        asked = self._design.request
        found = store.survey_parts(asked.operation.name, self._worker.info, asked.regime, self.study)
        return {problem for part in found for problem in part.problems}

    @property
    def full(self) -> bool:
        """Whether it is time to store it."""
        return len(self._timings) >= PART_TIMINGS or time.monotonic() - self._begun_s > PART_S

    def add(self, problem: Problem, timings: list[Timing], registers: Callable[[int], int]) -> None:
        """Takes the timings of a problem, whose configs are numbered as in the design."""
        number = len(self._problems)
        self._problems.append(key_of(problem))
        for timing in timings:
            if timing.config != LIBRARY and timing.config not in self._configs:
                kernel, config = self._design.pool.configs[timing.config]
                origin = str(self._design.request.operation.origin or "")
                self._configs[timing.config] = SurveyConfig(
                    kernel.name, dict(config), kernel.source_hash, origin, registers(timing.config)
                )
            self._timings.append(timing._replace(problem=number))

    def store(self, store: Store) -> None:
        """Stores what there is."""
        if not self._problems:
            return
        place = {config: at for at, config in enumerate(self._configs)} | {LIBRARY: LIBRARY}
        request = self._design.request
        versions = {
            "tuner": __version__, VERIFICATION_NAME: str(VERIFICATION), "library": self._library(),
            **self._worker.versions,
        }  # fmt: skip
        store.add_surveys(
            SurveyPart(
                self._worker.info, request.operation.name, request.regime, tuple(self._problems),
                tuple(self._configs.values()),
                tuple(each._replace(config=place[each.config]) for each in self._timings),
                {name: text for name, text in versions.items() if text}, self.study, self._session,
            )
        )  # fmt: skip
        self._clear()

    def _library(self) -> str:
        request = self._design.request
        baseline = request.operation.baselines.get(self._worker.info.kind)
        return baseline.name if baseline else ""


def survey_name(request: SurveyRequest, device: DeviceInfo) -> str:
    """Names a survey: another seed, device, regime, or other sources of kernels make another."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in request.kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    return (
        f"survey of {request.operation.name} on {device.name}, {request.regime}, kernels {digest}, "
        f"seed {request.seed}"
    )
