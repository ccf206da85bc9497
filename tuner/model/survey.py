"""A survey: times configs at many problems, until its time is up, and searches for better ones while it does.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.errors import DeclarationError, InputError
from tuner.model.survey_design import Design, Numbered, SurveyRequest, Turn
from tuner.model.survey_known import design
from tuner.model.survey_timing import Code, SurveyCode, Timer
from tuner.results.measurement import Outcome
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.progress import Interruption
from tuner.study.requests import check_regime
from tuner.study.session import check_fits
from tuner.version import __version__
from tuner.workers.device_worker import Crew, DeviceWorker

#: Crashes of a config after which it is left out.
MOST_CRASHES = 2


@dataclass
class SurveyProgress:
    """How far a survey is.

    Attributes:
        timings: Timings of this run, failures among them.
        problems: Problems of this run.
        before: Problems that an earlier run had.
        skipped: Problems that do not fit into memory.
        outcomes: Outcome -> how many.
        timing_s: Seconds spent timing, preparing problems among it.
        preparing_s: Seconds of these until arrays and references were there.
        waiting_s: Seconds in which nothing was compiled that could be timed.
        elapsed_s: Seconds since the start.
        compiled: Sources compiled.
        configs: Configs there are by now.
        reasons: Outcome -> the first reason.
        crashes: Config's number -> workers that it cost.
    """

    timings: int = 0
    problems: int = 0
    before: int = 0
    skipped: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    timing_s: float = 0.0
    preparing_s: float = 0.0
    waiting_s: float = 0.0
    elapsed_s: float = 0.0
    compiled: int = 0
    configs: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)

    def count(self, timing: Timing) -> None:
        """Takes a timing in."""
        self.timings += 1
        name = timing.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if timing.reason:
            self.reasons.setdefault(name, timing.reason)
        if timing.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT):
            self.crashes[timing.config] = self.crashes.get(timing.config, 0) + 1

    def sound(self, numbers: Iterable[int]) -> list[int]:
        """Those of the configs that did not crash too often."""
        return [number for number in numbers if self.crashes.get(number, 0) < MOST_CRASHES]


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
        self._problems.append(ProblemKey.of(problem))
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


#: Seconds between two looks at what has been compiled, if nothing can be timed.
REST_S = 0.02
#: Configs of a turn that may be new, however many wait for compile workers.
LEAST_FRESH = 1
#: A turn, and number and machine code of each of its configs.
_Ready = tuple[Turn, list[tuple[int, Code]]]


def _silent(progress: SurveyProgress) -> None:
    """Reports nothing."""


def run_survey(
    request: SurveyRequest, store: Store, report: Callable[[SurveyProgress], None] = _silent
) -> SurveyProgress:
    """Times configs at problems until the time is up, or a list of one's own is through.

    Args:
        request: What to do.
        store: Where timings go.
        report: Called after each problem.

    Raises:
        InputError: The regime does not suit the device, or the ranges leave no problem.
        DeviceTrouble: The device cannot be opened or stays unwell; what was timed is kept.
        Interrupted: SIGINT or SIGTERM came; what was timed is kept.
    """
    begun_s = time.monotonic()
    check_regime(request.regime, request.found.target)
    for kernel in request.kernels:
        kernel.check_entry()
    interruption = Interruption()
    with interruption.handled(), Crew([request.found]) as crew:
        worker = crew.devices[0]
        chosen = design(request, store, worker.info)
        survey = Survey(chosen, store, worker, SurveyCode(crew, chosen.pool.configs), begun_s)
        with survey.kept(), interruption.ends(survey):
            survey.run(report)
        return survey.progress


class Survey:
    """One run of a survey.

    Attributes:
        progress: How far it is.
        stop: Why it is to end; empty while it goes on.
    """

    def __init__(
        self, chosen: Design, store: Store, worker: DeviceWorker, code: SurveyCode, begun_s: float
    ) -> None:
        """Takes what it works with.

        Args:
            chosen: Chooses what is timed.
            store: Where timings go.
            worker: The device.
            code: Compiles the configs.
            begun_s: When its time began, by `time.monotonic`.
        """
        self.progress, self.stop = SurveyProgress(), ""
        self._design, self._store, self._worker, self._code = chosen, store, worker, code
        self._request = chosen.request
        self._begun_s = begun_s
        self._until_s = begun_s + self._request.seconds
        self._part = Part(chosen, worker)
        self._kind = kind_of(worker.info.kind)
        self._shared = self._kind.is_host
        self._timer = Timer(worker, self._request.regime, self._meanwhile)
        self._ahead: deque[Turn] = deque()
        self._following: _Ready | None = None
        self._left = self._problems()

    def stop_because(self, why: str) -> None:
        """Ends it after the problem under way."""
        self.stop = why

    @contextmanager
    def kept(self) -> Iterator[None]:
        """However the block ends, what was timed is stored."""
        try:
            yield
        finally:
            self._part.store(self._store)

    def run(self, report: Callable[[SurveyProgress], None]) -> None:
        """Times until the time is up."""
        while self._goes_on():
            planned = self._plan()
            ready = self._following or self._next()
            if ready is not None:
                # A GPU is told of the next turn ahead, for it takes as long to plan a turn as to time it.
                self._following = None if self._shared else self._next()
                self._time(ready)
                report(self.progress)
            elif not self._ahead:
                return
            elif not planned:
                time.sleep(REST_S)
                self.progress.waiting_s += REST_S

    def _meanwhile(self) -> None:
        """Plans a turn while the device is busy; on a CPU compiling would take cores from what is timed."""
        if not self._shared:
            self._plan()

    def _plan(self) -> bool:
        """Plans a turn, on a CPU as many as are compiled ahead, unless there are enough; whether it did."""
        self._code.collect()
        most, have = self._kind.survey.ahead, len(self._ahead)
        wanted = (0 if have else most) if self._shared else int(have < most)
        for each in islice(self._left, wanted):
            self._queue(self._design.turn(*each, self._fresh))
        return len(self._ahead) > have

    @property
    def _fresh(self) -> int:
        return max(self._code.room, LEAST_FRESH)

    def _queue(self, turn: Turn) -> None:
        self._code.want(turn.problem, self.progress.sound(turn.configs))
        self._ahead.append(turn)

    def _goes_on(self) -> bool:
        now_s = time.monotonic()
        self.progress.elapsed_s = now_s - self._begun_s
        self.progress.compiled, self.progress.configs = self._code.compiled, len(self._design.pool.configs)
        return not self.stop and now_s < self._until_s

    def _problems(self) -> Iterator[Numbered]:
        """Number and problem: those that no earlier run timed, and that fit."""
        done = self._part.known(self._store)
        self.progress.before = len(done)
        for number, problem in self._design.problems():
            if ProblemKey.of(problem) in done:
                continue
            done.add(ProblemKey.of(problem))
            try:
                check_fits(problem, self._worker.free_bytes, self._worker.info)
            except InputError:
                self.progress.skipped += 1
                continue
            yield number, problem

    def _next(self) -> _Ready | None:
        """The first turn all of whose configs are compiled; None if there is none.

        On a CPU compiling and timing would share cores: nothing is timed while anything is compiled.
        """
        if not (self._shared and self._code.pending):
            for at, turn in enumerate(self._ahead):
                sound = self.progress.sound(turn.configs)
                if self._code.ready(turn.problem, sound):
                    del self._ahead[at]
                    return turn, [(number, self._code.of(turn.problem, number)) for number in sound]
        return None

    def _time(self, ready: _Ready) -> None:
        begun_s = time.monotonic()
        turn, codes = ready
        following = self._following and (self._following[0].problem, self._following[1])
        try:
            timings = self._timer.time(turn.problem, codes, following)
        except (InputError, DeclarationError):
            self.progress.skipped += 1
            return
        for timing in timings:
            self.progress.count(timing)
        self._design.learn(turn.problem, timings)
        self._part.add(turn.problem, timings, self._code.registers)
        self.progress.problems += turn.depth == 0
        if (more := self._design.again(turn, self._fresh)) is not None:
            self._queue(more)
        self.progress.timing_s += time.monotonic() - begun_s
        self.progress.preparing_s = self._timer.preparing_s
        if self._part.full:
            self._part.store(self._store)
