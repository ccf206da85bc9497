"""Measures answers at drawn problems: each is answered, tuned for a while, and timed in turn."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, NothingFound
from tuner.lookup.answers import Answer
from tuner.model.calibrate import LossSummary, summarized
from tuner.results.measurement import Measurement
from tuner.store import Store
from tuner.study.requests import StudyRequest
from tuner.study.study import Study, open_study
from tuner.workers.device_worker import Crew


@dataclass(frozen=True)
class DrawnProblem:
    """A drawn problem, what was answered there, and the times of that and of what it is compared with.

    Attributes:
        problem: The problem.
        answer: As `Answer.to_json` tells it; without a device's limits.
        kernel_s: Seconds of the config that the answer names, run or not; None where it failed.
        library_s: Of the library; None without one.
        champion_s: Of the champion of a short study; None where it found none.
        champion: Its kernel and config, for people; empty without one.
        why: What went wrong; empty where nothing did.
    """

    problem: Problem
    answer: dict[str, Any]
    kernel_s: float | None
    library_s: float | None
    champion_s: float | None
    champion: str = ""
    why: str = ""

    @property
    def by_library(self) -> bool:
        """Whether the library is to be used."""
        return bool(self.answer["use"] != "kernel")

    @property
    def answered_s(self) -> float:
        """Seconds of what is to be used; infinite where that failed."""
        return (self.library_s if self.by_library else self.kernel_s) or math.inf

    @property
    def best_s(self) -> float:
        """The least of all times."""
        return min(each for each in (self.kernel_s, self.library_s, self.champion_s, math.inf) if each)

    @property
    def loss(self) -> float:
        """Fraction of speed that the answer loses: 1 - best / answered."""
        return 1 - self.best_s / self.answered_s if math.isfinite(self.best_s) else 1.0

    @property
    def time_interval_s(self) -> tuple[float, float]:
        """The 80 % interval of the answer's time; NaN where none was said."""
        low, high = (self.answer["predicted"] or {}).get("time_interval_s") or (math.nan, math.nan)
        return low, high

    def over_library(self, time_s: float | None) -> float:
        """How many times as fast as the library something is; NaN without a library or a time."""
        return self.library_s / time_s if self.library_s and time_s and math.isfinite(time_s) else math.nan

    def to_json(self) -> dict[str, Any]:
        """Seconds, fractions."""
        return {
            **self.problem.to_json(),
            **{name: self.answer[name] for name in ("match", "use", "kernel", "config", "predicted")},
            "expected_loss": self.answer["expected_loss"],
            "expected_loss_interval": self.answer["expected_loss_interval"],
            "kernel_time_s": self.kernel_s, "library_time_s": self.library_s,
            "champion_time_s": self.champion_s,
            "champion": self.champion, "loss": self.loss, "why": self.why,
        }  # fmt: skip


def summary(cases: Sequence[DrawnProblem]) -> LossSummary:
    """What the cases tell together."""
    lows, highs = np.array([case.time_interval_s for case in cases]).reshape(-1, 2).T
    answered_s = np.array([case.answered_s for case in cases])
    within = np.where(np.isnan(lows), np.nan, (lows <= answered_s) & (answered_s <= highs))
    return summarized(
        np.array([case.loss for case in cases]),
        np.array([case.over_library(case.answered_s) for case in cases]),
        np.array([case.over_library(case.champion_s) for case in cases]),
        np.array([case.answer["expected_loss"] for case in cases]),
        np.array([(case.answer["expected_loss_interval"] or (0, math.nan))[1] for case in cases]),
        within,
    )


#: Kernel and config.
Pick = tuple[str, Config]


def timed_in_turn(
    study: Study, rendered: Mapping[Pick, Rendered], seconds: float
) -> tuple[dict[Pick, Measurement], Measurement | None]:
    """Compiles configs, and times them and the library in turn, as finals do. Nothing is stored.

    Args:
        study: Open, on the problem; its search is over.
        rendered: The configs.
        seconds: Wall time of the rounds, of all players together.

    Returns:
        Measurements of the configs that compile, none if the device does not survive them; and the library's,
        that from before the search if it was not timed now, None without a library.
    """
    compiled = study.session.compile_all(dict(enumerate(rendered.values())))
    players = {pick: compiled[number] for number, pick in enumerate(rendered) if number in compiled}
    if not players:
        return {}, study.library
    try:
        found = study.session.worker.finals(list(players.values()), seconds)
    except DeviceTrouble:  # it did not survive them; the next study has a worker of its own
        return {}, study.library
    libraries = [each for each in found[len(players) :] if each.time_s]
    best = min(libraries, key=lambda each: each.time_s or math.inf, default=study.library)
    return dict(zip(players, found, strict=False)), best


#: Seconds in which answers, champion and library are timed in turn, after a study.
IN_TURN_S = 1.0


def compared(study: Study, found: Sequence[Answer]) -> tuple[DrawnProblem, ...]:
    """Searches, plays the finals, and times answers, champion and library in turn.

    Args:
        study: Open, on the problem.
        found: What lookups answered.

    Returns:
        A case for each answer.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    study.search()
    champion = study.finals().champion
    kernels = {each.name: each for each in study.request.kernels}
    problem, picked = study.request.problem, [(each.kernel, Config(dict(each.config))) for each in found]
    if champion is not None:
        picked.append((champion.record.kernel, Config(dict(champion.record.config))))
    rendered = {pick: render(kernels[pick[0]], problem, pick[1]) for pick in picked}
    times, library = timed_in_turn(study, rendered, IN_TURN_S)
    library_s = library.time_s if library else None
    winner, won = (times.get(picked[-1]), f"{picked[-1][0]} {picked[-1][1]}") if champion else (None, "")
    cases = []
    for answer, pick in zip(found, picked, strict=False):
        answered = times.get(pick)
        fine = answered is not None and answered.time_s
        cases.append(DrawnProblem(
            problem, answer.to_json(), answered.time_s if answered else None, library_s,
            winner.time_s if winner else None, won, "" if fine else _trouble(answered),
        ))  # fmt: skip
    return tuple(cases)


def _trouble(answered: Measurement | None) -> str:
    if answered is None:
        return "the answer's config does not compile, or the device did not survive it"
    return f"the answer's config failed: {answered.outcome} {answered.reason}"


def measured(
    problems: Sequence[Problem],
    answers: Sequence[Callable[[Problem, Crew], Answer]],
    catalogue: Catalogue,
    device: DetectedDevice,
    seconds: float,
    regime: str = "cold",
    seed: int = 0,
) -> Iterator[tuple[DrawnProblem, ...]]:
    """Answers each problem, tunes it for a while, and times answers, champion and library in turn.

    The studies' records are thrown away, so that the problems remain ones that nobody tuned.

    Args:
        problems: The problems.
        answers: Ways to look a problem up; the device's workers are at hand, open or not.
        catalogue: Kernels.
        device: Where.
        seconds: Of each study.
        regime: How time is taken.
        seed: Of the searches.

    Returns:
        A case for each way to look up, problem by problem.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    with tempfile.TemporaryDirectory() as folder, closing(Crew((device,))) as crew:
        for number, problem in enumerate(problems):
            found = [answer(problem, crew) for answer in answers]
            operation = problem.operation.name
            request = StudyRequest(
                problem, catalogue.of(operation, device.target, dtype=problem.dtype), (device,), regime,
                seconds,
                seed=seed + number,
            )  # fmt: skip
            with Store.open(f"sqlite:///{Path(folder) / f'{number}.db'}") as store:
                try:
                    with open_study(request, store, crew=crew) as study:
                        yield compared(study, found)
                except NothingFound as error:
                    yield tuple(
                        DrawnProblem(problem, each.to_json(), None, None, None, why=str(error))
                        for each in found
                    )
