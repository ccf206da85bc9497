"""A survey: times many configs, each compiled once, at many problems, until its time is up.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.errors import DeclarationError, InputError
from tuner.lookup.model.design import Turn
from tuner.results.measurement import Outcome
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.interruption import Interruption
from tuner.study.session import open_workers
from tuner.study.setup import check_fits, check_regime, key_of
from tuner.study.survey_code import SurveyCode
from tuner.study.survey_design import Design, SurveyRequest, design
from tuner.study.survey_timing import Timer
from tuner.version import __version__
from tuner.workers.device_worker import DeviceWorker

#: Turns whose configs are compiled ahead of being timed.
AHEAD = 12
#: A part is stored when it has so many timings, or is so old in seconds: what a kill may cost.
PART_TIMINGS, PART_S = 400, 5.0
#: Seconds between two looks at what has been compiled, if nothing can be timed.
REST_S = 0.02
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
        waiting_s: Seconds in which nothing was compiled that could be timed.
        elapsed_s: Seconds since the start.
        compiled: Sources compiled.
        reasons: Outcome -> the first reason.
    """

    timings: int = 0
    problems: int = 0
    before: int = 0
    skipped: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    timing_s: float = 0.0
    waiting_s: float = 0.0
    elapsed_s: float = 0.0
    compiled: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def count(self, timing: Timing) -> None:
        """Takes a timing in."""
        self.timings += 1
        name = timing.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if timing.reason:
            self.reasons.setdefault(name, timing.reason)


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
    with interruption.handled(), open_workers([request.found]) as (worker,):
        chosen = design(request, store, worker.info)
        with SurveyCode(worker, chosen.configs) as code:
            survey = Survey(chosen, store, worker, code, begun_s)
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
            chosen: Configs and turns.
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
        self._part = _Part(chosen, survey_name(self._request, worker.info), worker)
        self._timer = Timer(worker, self._request.regime)
        self._crashes: dict[int, int] = {}

    def stop_because(self, why: str) -> None:
        """Ends it after the problem under way."""
        self.stop = why

    def kept(self) -> _Kept:
        """A block at whose end, however it ends, what was timed is stored."""
        return _Kept(self._part, self._store)

    def run(self, report: Callable[[SurveyProgress], None]) -> None:
        """Times until the time is up."""
        turns = self._left()
        ahead: deque[Turn] = deque()
        while self._goes_on():
            while len(ahead) < AHEAD and (turn := next(turns, None)) is not None:
                ahead.append(turn)
                self._code.want(turn.problem, self._sound(turn))
            if not ahead:
                return
            turn = self._next(ahead)
            if turn is not None:
                self._time(turn)
                report(self.progress)

    def _goes_on(self) -> bool:
        now_s = time.monotonic()
        self.progress.elapsed_s = now_s - self._begun_s
        self.progress.compiled = self._code.compiled
        return not self.stop and now_s < self._until_s

    def _left(self) -> Iterator[Turn]:
        """Turns at problems that no earlier run timed, and that fit."""
        done = self._done()
        self.progress.before = len(done)
        for turn in self._design.turns():
            if key_of(turn.problem) in done:
                continue
            done.add(key_of(turn.problem))
            try:
                check_fits(turn.problem, self._worker.free_bytes, self._worker.info)
            except InputError:
                self.progress.skipped += 1
                continue
            yield turn

    def _done(self) -> set[ProblemKey]:
        info = self._worker.info
        known = self._store.survey_parts(
            self._request.operation.name, info, self._request.regime, self._part.study
        )
        return {problem for part in known for problem in part.problems}

    def _sound(self, turn: Turn) -> list[int]:
        """The turn's configs but for those that crashed too often."""
        return [number for number in turn.configs if self._crashes.get(number, 0) < MOST_CRASHES]

    def _next(self, ahead: deque[Turn]) -> Turn | None:
        """The first turn all of whose configs are compiled; None after a short rest where there is none.

        On a CPU compiling and timing would share cores: nothing is timed while anything is compiled.
        """
        self._code.collect()
        shared = self._worker.info.kind == "cpu"
        if not (shared and self._code.pending):
            for at, turn in enumerate(ahead):
                if self._code.ready(turn.problem, self._sound(turn)):
                    del ahead[at]
                    return turn
        time.sleep(REST_S)
        self.progress.waiting_s += REST_S
        return None

    def _time(self, turn: Turn) -> None:
        begun_s = time.monotonic()
        items = [(number, self._code.of(turn.problem, number)) for number in self._sound(turn)]
        try:
            timings = self._timer.time(turn.problem, items)
        except (InputError, DeclarationError):
            self.progress.skipped += 1
            return
        for timing in timings:
            self.progress.count(timing)
            if timing.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT):
                self._crashes[timing.config] = self._crashes.get(timing.config, 0) + 1
        self._part.add(turn.problem, timings, self._code.registers)
        self.progress.problems += 1
        self.progress.timing_s += time.monotonic() - begun_s
        if self._part.full:
            self._part.store(self._store)


class _Part:
    """Timings that are not stored yet."""

    def __init__(self, chosen: Design, study: str, worker: DeviceWorker) -> None:
        self.study, self._session = study, new_id()
        self._design, self._worker = chosen, worker
        self._clear()

    def _clear(self) -> None:
        self._problems: list[ProblemKey] = []
        self._configs: dict[int, SurveyConfig] = {}
        self._timings: list[Timing] = []
        self._begun_s = time.monotonic()

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
                kernel, config = self._design.configs[timing.config]
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


@dataclass
class _Kept:
    """Stores at the end of a block what is left of a part."""

    part: _Part
    store: Store

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.part.store(self.store)


def survey_name(request: SurveyRequest, device: DeviceInfo) -> str:
    """Names a survey: another seed, device, regime, or other sources of kernels make another."""
    sources = sorted(f"{kernel.name} {kernel.source_hash}" for kernel in request.kernels)
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:8]
    return (
        f"survey of {request.operation.name} on {device.name}, {request.regime}, kernels {digest}, "
        f"seed {request.seed}"
    )
