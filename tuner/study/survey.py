"""A survey: times many configs, each compiled once, at many problems, until its time is up.

It goes on where an earlier one with the same seed, kernels and device ended. What a config does to the device
costs the worker, not the survey.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tuner.errors import DeclarationError, InputError
from tuner.lookup.model.design import Turn
from tuner.store import Store
from tuner.study.interruption import Interruption
from tuner.study.session import open_workers
from tuner.study.setup import check_fits, check_regime, key_of
from tuner.study.survey_code import SurveyCode
from tuner.study.survey_design import Design, SurveyRequest, design
from tuner.study.survey_part import Part
from tuner.study.survey_progress import SurveyProgress
from tuner.study.survey_timing import Timer
from tuner.workers.device_worker import DeviceWorker

#: Turns whose configs are compiled ahead of being timed.
AHEAD = 12
#: Seconds between two looks at what has been compiled, if nothing can be timed.
REST_S = 0.02


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
        self._part = Part(chosen, worker)
        self._timer = Timer(worker, self._request.regime)

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
        turns = self._left()
        ahead: deque[Turn] = deque()
        while self._goes_on():
            while len(ahead) < AHEAD and (turn := next(turns, None)) is not None:
                ahead.append(turn)
                self._code.want(turn.problem, self.progress.sound(turn.configs))
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
        done = self._part.known(self._store)
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

    def _next(self, ahead: deque[Turn]) -> Turn | None:
        """The first turn all of whose configs are compiled; None after a short rest where there is none.

        On a CPU compiling and timing would share cores: nothing is timed while anything is compiled.
        """
        self._code.collect()
        shared = self._worker.info.kind == "cpu"
        if not (shared and self._code.pending):
            for at, turn in enumerate(ahead):
                if self._code.ready(turn.problem, self.progress.sound(turn.configs)):
                    del ahead[at]
                    return turn
        time.sleep(REST_S)
        self.progress.waiting_s += REST_S
        return None

    def _time(self, turn: Turn) -> None:
        begun_s = time.monotonic()
        items = [(number, self._code.of(turn.problem, number)) for number in self.progress.sound(turn.configs)]
        try:
            timings = self._timer.time(turn.problem, items)
        except (InputError, DeclarationError):
            self.progress.skipped += 1
            return
        for timing in timings:
            self.progress.count(timing)
        self._part.add(turn.problem, timings, self._code.registers)
        self.progress.problems += 1
        self.progress.timing_s += time.monotonic() - begun_s
        if self._part.full:
            self._part.store(self._store)
