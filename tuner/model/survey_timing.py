"""Times configs at one problem in one request to the device's worker; a crash costs the config that it was."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.results.measurement import Measurement, Outcome
from tuner.results.survey import LIBRARY, Timing, rounded
from tuner.workers.bench import CompiledConfig, survey_first_limit_s
from tuner.workers.compile_pool import CompilePool, ruled_out, workers_for
from tuner.workers.device_worker import Crew, DeviceWorker
from tuner.workers.process import WorkerFailed

#: Sources that wait or are compiled for each compile worker.
BACKLOG = 4


@dataclass(frozen=True)
class Code:
    """A config for one problem.

    Attributes:
        key: Names the machine code.
        rendered: Source, and the launch for the problem.
        compiled: The machine code, or why there is none.
    """

    key: str
    rendered: Rendered
    compiled: CompiledConfig | Measurement


class SurveyCode:
    """Compiles a survey's configs.

    Attributes:
        compiled: Sources that have been compiled.
    """

    def __init__(self, crew: Crew, configs: Sequence[tuple[Kernel, Config]]) -> None:
        """Takes the configs; compile workers start at first use.

        Args:
            crew: The device's workers.
            configs: Kernels and configs by number; more may come.
        """
        self._crew, self._configs = crew, configs
        self._info = crew.devices[0].info
        self._pool: CompilePool | None = None
        self._keys: list[str] = []
        self._found: dict[str, CompiledConfig | Measurement | None] = {}
        self._rendered: dict[tuple[Problem, int], tuple[str, Rendered]] = {}
        self._registers: dict[int, int] = {}
        self.compiled = 0

    @property
    def room(self) -> int:
        """Sources that may be asked for now, if compile workers are to have enough to do and no more."""
        size = workers_for(len(os.sched_getaffinity(0)), 1) if self._pool is None else self._pool.size
        return BACKLOG * size - self.pending

    @property
    def pending(self) -> int:
        """Compilations that are not done."""
        return 0 if self._pool is None else self._pool.pending

    def want(self, problem: Problem, numbers: Iterable[int]) -> None:
        """Compiles configs that are to be timed at a problem, those that are not compiled yet."""
        for number in numbers:
            rendered = render(self._configs[number][0], problem, self._configs[number][1])
            key = hashlib.sha256("\0".join((rendered.text, *rendered.options)).encode()).hexdigest()[:24]
            self._rendered[problem, number] = key, rendered
            if key not in self._found:
                self._found[key] = None
                self._keys.append(key)
                self._of(problem).submit(len(self._keys) - 1, rendered, self._named(problem))

    def _named(self, problem: Problem) -> dict[str, object]:
        return {**problem.to_json(), "origin": str(problem.operation.origin or "")}

    def _of(self, problem: Problem) -> CompilePool:
        if self._pool is None:
            self._pool = self._crew.pool(self._named(problem))
        return self._pool

    def collect(self) -> None:
        """Takes what has been compiled.

        Raises:
            DeviceTrouble: The compiler is not there.
        """
        for each in self._pool.ready() if self._pool is not None else ():
            self.compiled += 1
            self._found[self._keys[each.ticket]] = self._checked(each.compiled_config) or each.failure

    def _checked(self, found: CompiledConfig | None) -> CompiledConfig | Measurement | None:
        """What can be launched, or why it cannot. What spills is timed: a model learns that it is slow."""
        refused = ruled_out(found, self._info) if found is not None else None
        return refused if refused is not None and refused.outcome is not Outcome.PRUNED else found

    def ready(self, problem: Problem, numbers: Iterable[int]) -> bool:
        """Whether all that is to be timed at a problem is compiled, or failed."""
        return all(self._found[self._rendered[problem, number][0]] is not None for number in numbers)

    def of(self, problem: Problem, number: int) -> Code:
        """A config at a problem; asked once."""
        key, rendered = self._rendered.pop((problem, number))
        found = self._found[key]
        assert found is not None, "it is ready"
        if isinstance(found, CompiledConfig):
            self._registers[number] = found.compiled.registers
            found = replace(found, rendered=replace(found.rendered, launch=rendered.launch))
        return Code(key, rendered, found)

    def registers(self, number: int) -> int:
        """Registers of a config by the compiler's report; 0 if it did not compile."""
        return self._registers.get(number, 0)


#: Seconds that one answer may take: arrays and a reference of a large problem are made in that time, too.
ANSWER_LIMIT_S = 60.0
#: Digits of a time and of its noise that are kept; the noise of three samples is some percent.
TIME_DIGITS, NOISE_DIGITS = 6, 3
#: A problem, and number and machine code of each config that is to be timed there.
Asked = tuple[Problem, Sequence[tuple[int, Code]]]


@dataclass(frozen=True)
class _Item:
    """What is to be timed: a config by its number, or the library, which has no code."""

    number: int
    code: Code | None = None


@dataclass(frozen=True)
class _Ended:
    """How a request ended early.

    Attributes:
        reason: Why.
        prepared: Whether the problem's arrays were there.
        told: Whether the one that spoilt the worker was answered for.
        timed_out: Whether an answer took too long.
        alarmed: Whether the worker ended itself, as a first run took too long.
    """

    reason: str
    prepared: bool = True
    told: bool = False
    timed_out: bool = False
    alarmed: bool = False

    def timing(self, number: int, best_s: float | None) -> Timing:
        """What is kept of the config that was under way; one that was stopped is at least so slow."""
        if self.alarmed:
            return Timing(
                0, number, Outcome.PRUNED, survey_first_limit_s(best_s), 0.0, "stopped in its first run"
            )
        outcome = Outcome.TIMED_OUT if self.timed_out else Outcome.CRASHED
        return Timing(0, number, outcome, reason=self.reason)


@dataclass(frozen=True)
class _Sent:
    """A request that the worker has, behind the one that it answers.

    Attributes:
        problem: What it times at.
        numbers: What it times.
        restarts: How often the worker had been replaced: a fresh one does not have it.
    """

    problem: Problem
    numbers: tuple[int, ...]
    restarts: int


def _nothing() -> None:
    """Does nothing."""


class Timer:
    """Times configs at problems through one device worker.

    Attributes:
        preparing_s: Seconds until the arrays and references of problems were there.
    """

    def __init__(self, worker: DeviceWorker, regime: str, meanwhile: Callable[[], None] = _nothing) -> None:
        """Takes the device.

        Args:
            worker: The device.
            regime: How time is taken.
            meanwhile: Called after each answer, while the device goes on with the next config.
        """
        self._worker, self._regime, self._meanwhile = worker, regime, meanwhile
        self._sent: set[str] = set()
        self._ahead: _Sent | None = None
        self.preparing_s = 0.0

    def time(
        self,
        problem: Problem,
        codes: Sequence[tuple[int, Code]],
        following: Asked | None = None,
    ) -> list[Timing]:
        """Times the library and configs at a problem.

        Args:
            problem: What is computed.
            codes: Number and machine code of each config.
            following: What will be asked next; the device goes on with that without waiting to be asked.

        Returns:
            A timing for the library, unless there is none, and one for each config; the problem's number is 0.

        Raises:
            InputError: The problem cannot be prepared.
            DeviceTrouble: The device stays unwell.
        """
        found, waiting = _apart(codes)
        best_s: float | None = None
        while waiting:
            answers, ended = self._asked(problem, waiting, best_s, following)
            found += [each for each in answers if each is not None]
            waiting = waiting[len(answers) :]
            best_s = min((each.time_s for each in found if not each.outcome.failed), default=None)
            if ended is not None and not ended.prepared:
                if not found:
                    raise InputError(f"{problem} cannot be prepared: {ended.reason}; shorten its dims")
                break
            if ended is not None and not ended.told and waiting:
                found.append(ended.timing(waiting.pop(0).number, best_s))
        return found

    def _asked(
        self, problem: Problem, items: Sequence[_Item], best_s: float | None, following: Asked | None
    ) -> tuple[list[Timing | None], _Ended | None]:
        """Answers for the first items, None where there is no library; and how it ended if that was early."""
        answers: list[Timing | None] = []
        prepared, begun_s = False, time.monotonic()
        try:
            if not self._has(problem, items):
                self._worker.send(*self._message(problem, items, best_s))
            self._ahead = None if following is None else self._sent_ahead(*following)
            for data in self._worker.answers(ANSWER_LIMIT_S):
                if "trouble" in data:
                    self._replace()
                    return answers, _Ended(data["trouble"], prepared)
                if not prepared:
                    self.preparing_s += time.monotonic() - begun_s
                prepared = True
                if "timing" in data:
                    told = data["timing"]
                    answers.append(_timing(items[len(answers)].number, told) if told is not None else None)
                self._meanwhile()
                if data.get("unwell"):
                    self._replace()
                    return answers, _Ended("the device was left unwell", told=True)
        except WorkerFailed as failure:
            self._sent.clear()
            return answers, _Ended(str(failure), prepared, False, failure.timed_out, failure.alarmed)
        return answers, None

    def _has(self, problem: Problem, items: Sequence[_Item]) -> bool:
        """Whether the worker has this request already; it is replaced if it has another one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.restarts != self._worker.restarts:
            return False
        if (ahead.problem, ahead.numbers) != (problem, _numbers(items)):
            self._replace()
            return False
        return True

    def _sent_ahead(self, problem: Problem, codes: Sequence[tuple[int, Code]]) -> _Sent | None:
        """Sends what follows, behind the request under way."""
        items = _apart(codes)[1]
        if self._worker.send_ahead(*self._message(problem, items, None)):
            return _Sent(problem, _numbers(items), self._worker.restarts)
        self._sent.clear()
        return None

    def _replace(self) -> None:
        self._sent.clear()
        self._worker.replace()

    def _message(
        self, problem: Problem, items: Sequence[_Item], best_s: float | None
    ) -> tuple[dict[str, Any], bytes]:
        codes = [each.code for each in items if each.code is not None]
        compiled = {code.key: code.compiled for code in codes if isinstance(code.compiled, CompiledConfig)}
        new = {key: each for key, each in compiled.items() if key not in self._sent}
        self._sent.update(new)
        named = {**problem.to_json(), "origin": str(problem.operation.origin or "")}
        launches = [code.rendered.launch for code in codes]
        message = {
            "do": "survey", "problem": named, "regime": self._regime, "best_s": best_s,
            "library": len(codes) < len(items), "seed": random.SystemRandom().randrange(2**32),
            "items": [
                {"key": code.key, "launch": launch and asdict(launch)}
                for code, launch in zip(codes, launches, strict=True)
            ],
            "new": [{"key": key, **each.to_json()} for key, each in new.items()],
        }  # fmt: skip
        return message, b"".join(each.code for each in new.values())


def _apart(codes: Sequence[tuple[int, Code]]) -> tuple[list[Timing], list[_Item]]:
    """Timings of what cannot be timed, and what is to be timed, the library first."""
    failed, items = [], [_Item(LIBRARY)]
    for number, code in codes:
        if isinstance(code.compiled, Measurement):
            failed.append(Timing(0, number, code.compiled.outcome, reason=code.compiled.reason))
        else:
            items.append(_Item(number, code))
    return failed, items


def _numbers(items: Sequence[_Item]) -> tuple[int, ...]:
    return tuple(each.number for each in items)


def _timing(number: int, told: Mapping[str, Any]) -> Timing:
    time_s, noise = rounded(told["time_s"], TIME_DIGITS), rounded(told["noise"], NOISE_DIGITS)
    outcome = Outcome(told["outcome"])
    if not outcome.failed and time_s <= 0:
        return Timing(0, number, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    return Timing(0, number, outcome, time_s, noise, told["reason"])
