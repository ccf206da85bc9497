"""A survey: times configs at many problems, until its time is up, and searches for better ones while it does.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from tuner.errors import DeclarationError, InputError
from tuner.store import Store
from tuner.study.interruption import Interruption
from tuner.study.setup import check_fits, check_regime, key_of
from tuner.study.survey_code import Code, SurveyCode
from tuner.study.survey_design import Design, Numbered, SurveyRequest, Turn
from tuner.study.survey_known import design
from tuner.study.survey_part import Part
from tuner.study.survey_progress import SurveyProgress
from tuner.study.survey_timing import Timer
from tuner.workers.crew import Crew
from tuner.workers.device_worker import DeviceWorker

__all__ = ["Survey", "SurveyProgress", "run_survey"]

#: Turns whose configs are compiled ahead of being timed; on a CPU none is timed before all of them are.
AHEAD = {"cuda": 48, "cpu": 8}
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
        self._shared = worker.info.kind == "cpu"
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
        most, have = AHEAD[self._worker.info.kind], len(self._ahead)
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
            if key_of(problem) in done:
                continue
            done.add(key_of(problem))
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
