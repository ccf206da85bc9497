"""Times a survey's turns by the worker of a device, which has its next requests before it is done with one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tuner.declare.problem import Problem
from tuner.model.survey_design import Turn
from tuner.results.measurement import Measurement, Outcome
from tuner.results.survey import LIBRARY, Timing
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import DeviceWorker
from tuner.workers.process import WorkerFailed

#: Seconds that one answer may take: arrays and a reference of a large problem are made in that time, too.
ANSWER_LIMIT_S = 60.0
#: Digits of a time and of its noise that are kept, far below the noise: they are stored as short texts.
DIGITS = 5


def named(problem: Problem) -> dict[str, object]:
    """A problem as workers are told it."""
    return {**problem.to_json(), "origin": str(problem.operation.origin or "")}


@dataclass(frozen=True)
class _Step:
    """What a worker is asked: to prepare a problem, or to time the library or a config there.

    Attributes:
        turn: Of which turn.
        config: Number of the config, or `LIBRARY`; None to prepare the problem.
        code: Of a config.
    """

    turn: Turn
    config: int | None = None
    code: CompiledConfig | None = None


class Timer:
    """Times turns one after the other through one device worker.

    A config that crashes costs itself: a fresh worker goes on with the next one.

    Attributes:
        turns: How many turns were begun and have not ended.
    """

    def __init__(self, worker: DeviceWorker, regime: str) -> None:
        """Takes the device.

        Args:
            worker: The device.
            regime: How time is taken.
        """
        self._worker, self._regime = worker, regime
        self._steps = deque[_Step]()
        # Hashes of the sources whose machine code the worker has.
        self._sent = set[str]()
        self.turns = 0

    def begin(self, turn: Turn, codes: Mapping[int, CompiledConfig]) -> None:
        """Asks for the times of the library and of configs, behind what was asked for before.

        Args:
            turn: Takes the timings.
            codes: Config's number -> its code.
        """
        steps = [_Step(turn), _Step(turn, LIBRARY), *(_Step(turn, *item) for item in codes.items())]
        self.turns += 1
        self._steps += steps
        for step in steps:
            self._send(step)

    def take(self) -> Turn | None:
        """Waits for the next answer; returns its turn if that has ended with it.

        Raises:
            DeviceTrouble: The device stays unwell.
        """
        step, restarts = self._steps.popleft(), self._worker.restarts
        try:
            answer = self._worker.answer(ANSWER_LIMIT_S)
            step.turn.prepared = True
            if step.config is not None and answer["measurement"] is not None:
                step.turn.timings.append(_timing(step.config, Measurement.from_json(answer["measurement"])))
        except WorkerFailed as failure:
            if step.config is None:
                self._steps = deque(other for other in self._steps if other.turn is not step.turn)
            else:
                outcome = Outcome.TIMED_OUT if failure.timed_out or failure.alarmed else Outcome.CRASHED
                step.turn.timings.append(Timing(0, step.config, outcome, reason=str(failure)))
        has_ended = not self._steps or self._steps[0].turn is not step.turn
        if self._worker.restarts > restarts:
            self._sent.clear()
            if not has_ended:
                self._steps.appendleft(_Step(step.turn))
            for lost in self._steps:
                self._send(lost)
        self.turns -= has_ended
        return step.turn if has_ended else None

    def _send(self, step: _Step) -> None:
        if step.config is None:
            self._worker.send({
                "do": "prepare_survey", "problem": named(step.turn.problem), "regime": self._regime,
                "seed": random.SystemRandom().randrange(2**32), "checked": bool(step.turn.configs),
            })  # fmt: skip
            return
        message: dict[str, Any] = {"do": "survey", "key": ""}
        if step.code is not None:
            launch, key = step.code.rendered.launch, step.code.rendered.hash
            message |= {"key": key, "launch": launch and asdict(launch)}
            if key not in self._sent:
                message |= {**step.code.to_json(), "code": step.code.code}
                self._sent.add(key)
        self._worker.send(message)


def _timing(config: int, measurement: Measurement) -> Timing:
    time_s, outcome = measurement.time_s or 0.0, measurement.outcome
    if outcome.failed:
        return Timing(0, config, outcome, reason=measurement.reason)
    if time_s <= 0:
        return Timing(0, config, Outcome.LAUNCH_FAILED, reason="a clock told no time")
    digits = f".{DIGITS}g"
    return Timing(0, config, outcome, float(format(time_s, digits)), float(format(measurement.noise, digits)))
