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
        self.preparing_s = 0.0

    def time(self, problem: Problem, codes: Sequence[tuple[int, Code]]) -> list[Timing]:
        """Times the library and configs at a problem.

        Args:
            problem: What is computed.
            codes: Number and machine code of each config.

        Returns:
            A timing for the library, unless there is none, and one for each config; the problem's number is 0.

        Raises:
            InputError: The problem cannot be prepared.
            DeviceTrouble: The device stays unwell.
        """
        found: list[Timing] = []
        waiting = [_Item(LIBRARY)]
        for number, code in codes:
            if isinstance(code.compiled, Measurement):
                found.append(Timing(0, number, code.compiled.outcome, reason=code.compiled.reason))
            else:
                waiting.append(_Item(number, code))
        best_s: float | None = None
        while waiting:
            answers, ended = self._asked(problem, waiting, best_s)
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
        self, problem: Problem, items: Sequence[_Item], best_s: float | None
    ) -> tuple[list[Timing | None], _Ended | None]:
        """Answers for the first items, None where there is no library; and how it ended if that was early."""
        answers: list[Timing | None] = []
        prepared, begun_s = False, time.monotonic()
        try:
            for data in self._worker.stream(*self._message(problem, items, best_s), ANSWER_LIMIT_S):
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


def _timing(number: int, told: Mapping[str, Any]) -> Timing:
    time_s, noise = rounded(told["time_s"], TIME_DIGITS), rounded(told["noise"], NOISE_DIGITS)
    outcome = Outcome(told["outcome"])
    if not outcome.failed and time_s <= 0:
        return Timing(0, number, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    return Timing(0, number, outcome, time_s, noise, told["reason"])
