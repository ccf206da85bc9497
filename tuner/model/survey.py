"""A survey: times configs at many problems, until its time is up, and searches for better ones while it does.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.
"""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.devices.cuda.process import gpu_of
from tuner.devices.detect import kind_of
from tuner.errors import DeclarationError, InputError, NothingFound
from tuner.lookup.legality import completed
from tuner.model.fitting import refit
from tuner.model.survey_design import Design, Numbered, SurveyRequest, Turn, design
from tuner.model.survey_timing import Request, SurveyCode, Timer
from tuner.results.measurement import Outcome
from tuner.results.record import VERIFICATION, VERIFICATION_NAME, ProblemKey, new_id
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.progress import Interruption
from tuner.study.requests import check_regime
from tuner.study.session import check_fits
from tuner.version import __version__
from tuner.workers.device_worker import Crew, DeviceWorker

T = TypeVar("T")

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


class OpenPart:
    """Timings that are not stored yet."""

    def __init__(
        self, chosen: Design, worker: DeviceWorker, store: Store, registers: Mapping[int, int]
    ) -> None:
        """Begins empty.

        Args:
            chosen: The survey's configs.
            worker: The device.
            store: Where it goes.
            registers: Config's number -> its registers.
        """
        self._name, self._session = survey_name(chosen.request, worker.info), new_id()
        self._design, self._worker, self._store, self._registers = chosen, worker, store, registers
        self._timings: list[tuple[ProblemKey, Timing]] = []
        self._begun_s = time.monotonic()

    def known(self) -> set[ProblemKey]:
        """Problems that earlier runs of the survey timed."""
        request = self._design.request
        parts = self._store.survey_parts(request.operation.name, self._worker.info, request.regime, self._name)
        return {problem for part in parts for problem in part.problems}

    def add(self, problem: Problem, timings: list[Timing]) -> None:
        """Takes the timings of a problem, whose configs are numbered as in the design."""
        self._timings += [(ProblemKey.of(problem), timing) for timing in timings]
        if len(self._timings) >= PART_TIMINGS or time.monotonic() - self._begun_s > PART_S:
            self.store()

    def store(self) -> None:
        """Stores what there is."""
        request, info = self._design.request, self._worker.info
        problems = _numbered(key for key, _ in self._timings)
        configs = _numbered(timing.config for _, timing in self._timings if timing.config != LIBRARY)
        timings = [
            timing._replace(problem=problems[key], config=configs.get(timing.config, LIBRARY))
            for key, timing in self._timings
        ]
        baseline = request.operation.baselines.get(info.kind)
        versions = {
            "tuner": __version__, VERIFICATION_NAME: str(VERIFICATION),
            "library": baseline.name if baseline else "", **self._worker.versions,
        }  # fmt: skip
        if timings:
            self._store.add(SurveyPart(
                info, request.operation.name, request.regime, tuple(problems),
                tuple(self._config(number) for number in configs), tuple(timings),
                {name: text for name, text in versions.items() if text}, self._name, self._session,
            ))  # fmt: skip
        self._timings, self._begun_s = [], time.monotonic()

    def _config(self, number: int) -> SurveyConfig:
        kernel, config = self._design.pool.configs[number]
        origin, registers = str(self._design.request.operation.origin or ""), self._registers.get(number, 0)
        return SurveyConfig(kernel.name, dict(config), kernel.source_hash, origin, registers)


def _numbered(values: Iterable[T]) -> dict[T, int]:
    """Values with their numbers, in the order in which they first come."""
    return {value: at for at, value in enumerate(dict.fromkeys(values))}


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
#: A turn, and number and machine code of each of its configs.
_Ready = tuple[Turn, Request]


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
        survey = Survey(design(request, store, crew.devices[0].info), store, crew, begun_s)
        with survey.kept(), interruption.ends(survey):
            survey.run(report)
        return survey.progress


def refit_if_possible(store: Store, request: SurveyRequest) -> str:
    """Fits a model at the end of a survey, by the GPU that was surveyed; returns what came of it, for people.

    Raises:
        StoreTrouble: The database cannot be read or written.
    """
    if importlib.util.find_spec("lightgbm") is None:
        return "no model was fitted: LightGBM is not installed; pip install 'tile-tuner[model]'"
    device, gpu = completed(request.found.info, store.devices()), gpu_of(request.found)
    try:
        refit(
            store,
            request.operation,
            request.kernels,
            device,
            request.regime,
            dtype=request.ranges.dtype,
            gpu=gpu,
        )
    except (InputError, NothingFound) as error:
        return f"no model was fitted: {error}"
    return "a model was fitted; lookups answer by it"


class Survey:
    """One run of a survey.

    Attributes:
        progress: How far it is.
        stop: Why it is to end; empty while it goes on.
    """

    def __init__(self, chosen: Design, store: Store, crew: Crew, begun_s: float) -> None:
        """Takes what it works with.

        Args:
            chosen: Chooses what is timed.
            store: Where timings go.
            crew: The device's workers.
            begun_s: When its time began, by `time.monotonic`.
        """
        self.progress, self.stop = SurveyProgress(), ""
        self._design, self._begun_s, self._worker = chosen, begun_s, crew.devices[0]
        self._code = SurveyCode(crew, chosen.pool.configs)
        self._part = OpenPart(chosen, self._worker, store, self._code.registers)
        self._kind = kind_of(self._worker.info.kind)
        self._timer = Timer(self._worker, chosen.request.regime, self._meanwhile)
        self._planned: deque[Turn] = deque()
        self._following: _Ready | None = None
        self._left = self._problems()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """However the block ends, what was timed is stored."""
        try:
            yield
        finally:
            self._part.store()

    def run(self, report: Callable[[SurveyProgress], None]) -> None:
        """Times until the time is up."""
        while self._goes_on():
            planned = self._plan()
            ready = self._following or self._next()
            if ready is not None:
                # A GPU is told of the next turn ahead, for it takes as long to plan a turn as to time it.
                self._following = None if self._kind.is_host else self._next()
                self._time(*ready)
                report(self.progress)
            elif not self._planned:
                return
            elif not planned:
                time.sleep(REST_S)
                self.progress.waiting_s += REST_S

    def _meanwhile(self) -> None:
        """Plans a turn while the device is busy; on a CPU compiling would take cores from what is timed."""
        if not self._kind.is_host:
            self._plan()

    def _plan(self) -> bool:
        """Plans a turn, on a CPU as many as are compiled ahead, unless there are enough; whether it did."""
        self._code.collect()
        most, have = self._kind.survey.ahead, len(self._planned)
        wanted = (0 if have else most) if self._kind.is_host else int(have < most)
        for number, problem in islice(self._left, wanted):
            self._queue(self._design.turn(number, problem, self._fresh))
        return len(self._planned) > have

    @property
    def _fresh(self) -> int:
        """Configs of a turn that may be new: one at least, however many wait for compile workers."""
        return max(self._code.room, 1)

    def _queue(self, turn: Turn) -> None:
        self._code.want(turn.problem, self.progress.sound(turn.configs))
        self._planned.append(turn)

    def _goes_on(self) -> bool:
        self.progress.elapsed_s = time.monotonic() - self._begun_s
        self.progress.compiled, self.progress.configs = self._code.compiled, len(self._design.pool.configs)
        return not self.stop and self.progress.elapsed_s < self._design.request.seconds

    def _problems(self) -> Iterator[Numbered]:
        """Number and problem: those that no earlier run timed, and that fit."""
        done = self._part.known()
        self.progress.before = len(done)
        for number, problem in self._design.problems():
            key = ProblemKey.of(problem)
            if key in done:
                continue
            done.add(key)
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
        if not (self._kind.is_host and self._code.pending):
            for at, turn in enumerate(self._planned):
                sound = self.progress.sound(turn.configs)
                if self._code.ready(turn.problem, sound):
                    del self._planned[at]
                    codes = [(number, self._code.take(turn.problem, number)) for number in sound]
                    return turn, (turn.problem, codes)
        return None

    def _time(self, turn: Turn, request: Request) -> None:
        begun_s = time.monotonic()
        try:
            timings = self._timer.time(request, self._following and self._following[1])
        except (InputError, DeclarationError):
            self.progress.skipped += 1
            return
        for timing in timings:
            self.progress.count(timing)
        self._design.learn(turn.problem, timings)
        self._part.add(turn.problem, timings)
        self.progress.problems += turn.depth == 0
        if (more := self._design.again(turn, self._fresh)) is not None:
            self._queue(more)
        self.progress.timing_s += time.monotonic() - begun_s
        self.progress.preparing_s = self._timer.preparing_s
