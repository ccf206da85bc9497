"""Compiles a survey's configs, and times those of a problem in one request to the device's worker."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.survey import LIBRARY, Timing, rounded
from tuner.workers.bench import CompiledConfig, survey_first_limit_s
from tuner.workers.compile_pool import ruled_out
from tuner.workers.device_worker import Crew, DeviceWorker
from tuner.workers.process import WorkerFailed

#: Machine code of a config, or why there is none.
Code = CompiledConfig | Measurement
#: Sources that wait or are compiled for each compile worker.
BACKLOG = 4


class SurveyCode:
    """Compiles a survey's configs: a source once for all problems that share it.

    Attributes:
        compiled: Sources that have been compiled.
    """

    def __init__(self, crew: Crew, configs: Sequence[tuple[Kernel, Config]]) -> None:
        """Starts the compile workers.

        Args:
            crew: The device's workers.
            configs: Kernels and configs by number; more may come.
        """
        self._configs, self._info, self._pool = configs, crew.devices[0].info, crew.pool({})
        self._hashes: list[str] = []
        self._codes: dict[str, Code | None] = {}
        self._rendered: dict[tuple[Problem, int], Rendered] = {}
        #: Config's number -> its registers by the compiler's report.
        self.registers: dict[int, int] = {}
        self.compiled = 0

    @property
    def room(self) -> int:
        """Sources that may be asked for now, if compile workers are to have enough to do and no more."""
        return BACKLOG * self._pool.size - self.pending

    @property
    def pending(self) -> int:
        """Compilations that are not done."""
        return self._pool.pending

    def want(self, problem: Problem, numbers: Iterable[int]) -> None:
        """Compiles configs that are to be timed at a problem, those that are not compiled yet."""
        for number in numbers:
            rendered = self._rendered[problem, number] = render(
                self._configs[number][0], problem, self._configs[number][1]
            )
            if rendered.hash not in self._codes:
                self._codes[rendered.hash] = None
                self._hashes.append(rendered.hash)
                self._pool.submit(len(self._hashes) - 1, rendered, named(problem))

    def collect(self) -> None:
        """Takes what has been compiled. What spills is timed: a model learns that it is slow.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for result in self._pool.ready():
            self.compiled += 1
            code: Code | None = result.compiled_config or result.failure
            refused = ruled_out(code, self._info) if isinstance(code, CompiledConfig) else None
            if refused is not None and refused.outcome is not Outcome.PRUNED:
                code = refused
            self._codes[self._hashes[result.ticket]] = code

    def ready(self, problem: Problem, numbers: Iterable[int]) -> bool:
        """Whether all that is to be timed at a problem is compiled, or failed."""
        return all(self._codes[self._rendered[problem, number].hash] is not None for number in numbers)

    def take(self, problem: Problem, number: int) -> Code:
        """The code of a config at a problem; asked once."""
        rendered = self._rendered.pop((problem, number))
        code = self._codes[rendered.hash]
        assert code is not None, "it is ready"
        if isinstance(code, CompiledConfig):
            self.registers[number] = code.compiled.registers
            code = replace(code, rendered=rendered)
        return code


def named(problem: Problem) -> dict[str, object]:
    """A problem as workers are told it."""
    return {**problem.to_json(), "origin": str(problem.operation.origin or "")}


#: Seconds that one answer may take: arrays and a reference of a large problem are made in that time, too.
ANSWER_LIMIT_S = 60.0
#: Digits of a time and of its noise that are kept; the noise of three samples is some percent.
TIME_DIGITS, NOISE_DIGITS = 6, 3
#: What is timed: number and code of a config, or `LIBRARY`, which has no code.
Item = tuple[int, CompiledConfig | None]
#: A problem, and number and code of each config that is to be timed there.
Request = tuple[Problem, Sequence[tuple[int, Code]]]


class _Stopped(Exception):
    """A request that ended early."""

    def __init__(self, reason: str, prepared: bool, failure: WorkerFailed | None = None) -> None:
        super().__init__(reason)
        self.prepared, self._failure = prepared, failure

    def timing(self, number: int, best_s: float | None) -> Timing:
        """What is kept of the config that was under way; one that was stopped is at least so slow."""
        if self._failure is not None and self._failure.alarmed:
            least_s = survey_first_limit_s(best_s)
            return Timing(0, number, Outcome.PRUNED, least_s, 0.0, "stopped in its first run")
        late = self._failure is not None and self._failure.timed_out
        return Timing(0, number, Outcome.TIMED_OUT if late else Outcome.CRASHED, reason=str(self))


class Timer:
    """Times configs at problems through one device worker.

    Attributes:
        preparing_s: Seconds until the arrays and references of problems were there.
    """

    def __init__(self, worker: DeviceWorker, regime: str, meanwhile: Callable[[], None]) -> None:
        """Takes the device.

        Args:
            worker: The device.
            regime: How time is taken.
            meanwhile: Called after each answer, while the device goes on with the next config.
        """
        self._worker, self._regime, self._meanwhile = worker, regime, meanwhile
        # What the worker has: machine codes, and the request behind the present one. A fresh one has neither.
        self._restarts, self._sent = worker.restarts, set[str]()
        self._ahead: tuple[Problem, int] | None = None
        self.preparing_s = 0.0

    def time(self, request: Request, following: Request | None = None) -> list[Timing]:
        """Times the library and configs at a problem.

        A config that crashes costs itself: a fresh worker goes on with the next one.

        Args:
            request: What to time.
            following: What will be timed next; the device goes on with that without waiting to be asked.

        Returns:
            A timing for the library, unless there is none, and one for each config; the problem's number is 0.

        Raises:
            InputError: The problem cannot be prepared.
            DeviceTrouble: The device stays unwell.
        """
        problem, codes = request
        timings = [
            Timing(0, number, code.outcome, reason=code.reason)
            for number, code in codes
            if isinstance(code, Measurement)
        ]
        waiting = deque(_items(codes))
        while waiting:
            best_s = min((timing.time_s for timing in timings if not timing.outcome.failed), default=None)
            try:
                for timing in self._answers(problem, list(waiting), best_s, following):
                    number, _ = waiting.popleft()
                    timings += [] if timing is None else [timing._replace(config=number)]
            except _Stopped as stopped:
                if not stopped.prepared and not timings:
                    raise InputError(f"{problem} cannot be prepared: {stopped}; shorten its dims") from stopped
                if not stopped.prepared:
                    break
                best_s = min((timing.time_s for timing in timings if not timing.outcome.failed), default=None)
                if waiting:
                    timings.append(stopped.timing(waiting.popleft()[0], best_s))
        return timings

    def _answers(
        self, problem: Problem, items: Sequence[Item], best_s: float | None, following: Request | None
    ) -> Iterator[Timing | None]:
        """Timings of the items in order, None where there is no library.

        They end early, with a fresh worker, where one left the device unwell.

        Raises:
            _Stopped: An item, or what comes before the first, failed.
        """
        prepared, begun_s = False, time.monotonic()
        try:
            if self._ahead != (problem, self._worker.restarts):
                self._worker.send(*self._message(problem, items, best_s))
            self._ahead = None
            if following is not None:
                message = self._message(following[0], _items(following[1]), None)
                if self._worker.send_ahead(*message):
                    self._ahead = following[0], self._worker.restarts
            for data in self._worker.answers(ANSWER_LIMIT_S):
                if "trouble" in data:
                    self._worker.replace()
                    raise _Stopped(data["trouble"], prepared)
                if not prepared:
                    prepared = True
                    self.preparing_s += time.monotonic() - begun_s
                if "timing" in data:
                    yield data["timing"] and _timing(data["timing"])
                self._meanwhile()
                if data.get("unwell"):
                    self._worker.replace()
                    return
        except WorkerFailed as failure:
            raise _Stopped(str(failure), prepared, failure) from failure

    def _message(
        self, problem: Problem, items: Sequence[Item], best_s: float | None
    ) -> tuple[dict[str, Any], bytes]:
        """A request with the machine codes that the worker does not have."""
        if self._restarts != self._worker.restarts:
            self._restarts, self._sent = self._worker.restarts, set()
        codes = [(code.rendered.hash, code) for _, code in items if code is not None]
        new = {key: code for key, code in codes if key not in self._sent}
        self._sent.update(new)
        message = {
            "do": "survey", "problem": named(problem), "regime": self._regime, "best_s": best_s,
            "library": len(codes) < len(items), "seed": random.SystemRandom().randrange(2**32),
            "items": [
                {"key": key, "launch": code.rendered.launch and asdict(code.rendered.launch)}
                for key, code in codes
            ],
            "new": [{"key": key, **code.to_json()} for key, code in new.items()],
        }  # fmt: skip
        return message, b"".join(code.code for code in new.values())


def _items(codes: Sequence[tuple[int, Code]]) -> list[Item]:
    """What is to be timed, the library first."""
    return [(LIBRARY, None), *((number, code) for number, code in codes if isinstance(code, CompiledConfig))]


def _timing(told: Mapping[str, Any]) -> Timing:
    """An answer of the worker; the config's number is still to be filled in."""
    time_s, noise = rounded(told["time_s"], TIME_DIGITS), rounded(told["noise"], NOISE_DIGITS)
    outcome = Outcome(told["outcome"])
    if not outcome.failed and time_s <= 0:
        return Timing(0, LIBRARY, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    return Timing(0, LIBRARY, outcome, time_s, noise, told["reason"])
