"""Answers from tuned problems, where no survey was made: the configs that were good near by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.lookup.answers import (
    PREDICTED,
    RECKONED,
    SIMILAR_DEVICE,
    UNMEASURED,
    Answer,
    Loss,
    Predicted,
    Question,
)
from tuner.lookup.legality import Choices
from tuner.lookup.tuned import Timed, Tuned
from tuner.model.evidence import Evidence
from tuner.model.physics import limits
from tuner.results.distance import distances, log_dims

#: A problem is near another one if no dim differs by a larger factor.
NEAR = 4.0
#: Near problems with the library's time that must speak for a kernel.
LEAST_NEAR = 3
#: How many times as fast as the library a config must have been.
LEAD = 1 / (1 - RECKONED)


@dataclass(frozen=True)
class NearConfig:
    """A config that was good near a problem.

    Attributes:
        kernel: Its kernel.
        config: It is legal for the problem and device.
        near: The nearest problem at which it was timed.
        behind: How much slower than the best it was there.
        predicted: What is expected of it here.
        stale: Whether its kernel has changed since.
    """

    kernel: str
    config: Config
    near: Tuned
    behind: float
    predicted: Predicted
    stale: bool


class TunedNear:
    """The tuned problems of one operation, dtype and regime on one device.

    Attributes:
        tuned: The problems, at least one.
    """

    def __init__(self, tuned: Sequence[Tuned], kernels: Iterable[Kernel]) -> None:
        """Takes what was tuned.

        Args:
            tuned: At least one problem.
            kernels: The kernels that may answer, as they are now.
        """
        self.tuned = tuned
        self._sources = {each.name: each.source_hash for each in kernels}
        columns = list(dict.fromkeys(column for each in tuned for column in each.times))
        self._columns, number = columns, {column: at for at, column in enumerate(columns)}
        self._choices = Choices(columns, kernels)
        self._kinds = list(dict.fromkeys(each.problem.layout for each in tuned))
        best_s = np.array([each.best_s for each in tuned])
        self._limits = limits([each.problem for each in tuned], best_s)
        behind = [np.log([time.time_s / each.best_s for time in each.times.values()]) for each in tuned]
        self._evidence = Evidence(
            np.array([log_dims(each.problem.shape) for each in tuned]),
            np.array([self._kinds.index(each.problem.layout) for each in tuned], np.int32),
            np.array([math.log(each.library_s / each.best_s) for each in tuned]),
            np.cumsum([0, *map(len, behind)]).astype(np.int32),
            np.array([number[column] for each in tuned for column in each.times], np.int32),
            np.maximum(np.concatenate(behind), 0.0),
        )  # fmt: skip

        self._standing = replace(self._evidence, library=np.zeros(len(tuned)))

    def best(self, problem: Problem, device: DeviceInfo) -> NearConfig | None:
        """The legal config that is expected to lose least; None where none was good near by."""
        kind = self._kinds.index(problem.layout) if problem.layout in self._kinds else -1
        behind, gains = self._evidence.around(problem, kind, len(self._columns))
        legal = self._choices.legal(problem, device)
        legal = legal[np.isfinite(behind[legal])]
        if not len(legal):
            return None
        # A config that was good at some of the near problems should not be bad at others.
        behind -= self._standing.around(problem, kind, len(self._columns))[1]
        at = int(legal[np.argmin(behind[legal])])
        name, config = self._choices.named(at)
        near, time = self._nearest(problem, name, config)
        rooflines = [self._limits.roofline_s(each) for each in (problem, near.problem)]
        kernel_s = time.time_s * rooflines[0] / rooflines[1]
        library_s = kernel_s * math.exp(gains[at]) if math.isfinite(gains[at]) else None
        return NearConfig(
            name, config, near, time.time_s / near.best_s, Predicted(kernel_s, library_s, None),
            time.source_hash != self._sources[name],
        )  # fmt: skip

    def near(self, problem: Problem) -> int:
        """How many of the problems are near this one and have the library's time."""
        here = log_dims(problem.shape)
        apart = [np.abs(log_dims(each.problem.shape) - here) for each in self.tuned if each.library_s > 0]
        return sum(bool((each <= math.log2(NEAR)).all()) for each in apart)

    def _nearest(self, problem: Problem, kernel: str, config: Config) -> tuple[Tuned, Timed]:
        """The nearest problem at which a config was timed, and its time."""
        here = log_dims(problem.shape)
        there = [each for each in self.tuned if (kernel, config) in each.times]
        near = min(there, key=lambda each: float(distances(log_dims(each.problem.shape), here)))
        return near, near.times[kernel, config]

    def answer(self, question: Question, problem: Problem, alike: str = "") -> Answer | None:
        """What tuned problems answer; None where no legal config was good near by.

        The library is to be used unless the config is expected to be faster by more than a figure that nobody
        has measured may be off; on another CPU always.

        Args:
            question: What is asked.
            problem: The same as it is declared now.
            alike: In what the device of the problems is like the question's; empty where it is the same.
        """
        found = self.best(problem, question.device)
        if found is None:
            return None
        baseline = problem.operation.baselines.get(question.device.kind)
        library = baseline.named(problem) if baseline else ""
        faster = found.predicted.speedup > LEAD
        if (
            faster
            and self.near(problem) >= LEAST_NEAR
            and not (alike and kind_of(question.device.kind).is_host)
        ):
            library = ""
        place = f"{found.near.problem} on {found.near.device.name}"
        slower = "the best" if found.behind < 1.0005 else f"{found.behind - 1:.1%} slower than the best"
        rests = f"no survey was made, but {len(self.tuned)} problems were tuned"
        reasons = [*([alike] if alike else []), f"{rests}: {found.kernel} was {slower} at {place}"]
        if library:
            reasons.append(
                f"{library} is the safer choice: what such answers lose was not measured, and a lead "
                f"of {LEAD:.2f} x is not known from {LEAST_NEAR} problems with all dims within {NEAR:g} x"
            )
        stale = f"kernel {found.kernel!r} has changed since; tune again" if found.stale else ""
        said = "not measured: it would take a survey of the operation on this device"
        return Answer(
            None, SIMILAR_DEVICE if alike else PREDICTED, Loss(UNMEASURED, 0, said), stale=found.stale,
            stale_reason=stale, question=question, default=(found.kernel, found.config), library=library,
            reasons=tuple(reasons), predicted=found.predicted,
        )  # fmt: skip
