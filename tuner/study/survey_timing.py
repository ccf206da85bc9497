"""Times configs at one problem in one request to the device's worker; a crash costs the config that it was."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.measuring.bench import CompiledConfig
from tuner.measuring.survey_bench import first_limit_s
from tuner.results.measurement import Measurement, Outcome
from tuner.results.survey import LIBRARY, Timing, rounded
from tuner.study.survey_code import Code
from tuner.workers.device_worker import DeviceWorker, to_json
from tuner.workers.process import WorkerFailed

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
            return Timing(0, number, Outcome.PRUNED, first_limit_s(best_s), 0.0, "stopped in its first run")
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
            "new": [{"key": key, **to_json(each)} for key, each in new.items()],
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
