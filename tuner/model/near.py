"""Answers from tuned problems, where no survey was made: the configs that were good near by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from tuner.lookup.tuned import Column, Timed, TunedProblem
from tuner.model.evidence import Evidence
from tuner.model.physics import limits
from tuner.results.distance import distances, log_dims

#: A problem is near another one if no dim differs by a larger factor.
NEAR = 4.0
#: Near problems with the library's time that must speak for a kernel.
LEAST_NEAR = 3
#: How many times as fast as the library a config must have been.
LEAD = 1 / (1 - RECKONED)


class TunedNear:
    """The tuned problems of one operation, dtype and regime on one device.

    Attributes:
        tuned: The problems, at least one.
    """

    def __init__(self, tuned: Sequence[TunedProblem], kernels: Iterable[Kernel]) -> None:
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
        self._rates = limits([each.problem for each in tuned], best_s)
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

    def answer(self, question: Question, problem: Problem, alike: str = "") -> Answer | None:
        """What tuned problems answer; None where no legal config was good near by.

        The library is to be used unless the config is expected to be faster by more than a figure that nobody
        has measured may be off; on another CPU always.

        Args:
            question: What is asked.
            problem: The same as it is declared now.
            alike: In what the device of the problems is like the question's; empty where it is the same.
        """
        best = self._best(problem, question.device)
        if best is None:
            return None
        (kernel, config), gain = best
        near, time = self._nearest(problem, kernel, config)
        kernel_s = time.time_s * self._rates.roofline_s(problem) / self._rates.roofline_s(near.problem)
        predicted = Predicted(kernel_s, kernel_s * math.exp(gain) if math.isfinite(gain) else None, None)
        baseline = problem.operation.baselines.get(question.device.kind)
        library = baseline.named(problem) if baseline else ""
        other_host = alike and kind_of(question.device.kind).is_host
        if predicted.speedup > LEAD and self._count_near(problem) >= LEAST_NEAR and not other_host:
            library = ""
        behind = time.time_s / near.best_s
        slower = "the best" if behind < 1.0005 else f"{behind - 1:.1%} slower than the best"
        rests = f"no survey was made, but {len(self.tuned)} problems were tuned"
        reasons = [f"{rests}: {kernel} was {slower} at {near.problem} on {near.device.name}"]
        if library:
            reasons.append(
                f"{library} is the safer choice: what such answers lose was not measured, and a lead "
                f"of {LEAD:.2f} x is not known from {LEAST_NEAR} problems with all dims within {NEAR:g} x"
            )
        stale = time.source_hash != self._sources[kernel]
        said = "not measured: it would take a survey of the operation on this device"
        return Answer(
            None, SIMILAR_DEVICE if alike else PREDICTED, Loss(UNMEASURED, 0, said), stale=stale,
            stale_reason=f"kernel {kernel!r} has changed since; tune again" if stale else "", question=question,
            default=(kernel, config), library=library, reasons=(*([alike] if alike else []), *reasons),
            predicted=predicted,
        )  # fmt: skip

    def _best(self, problem: Problem, device: DeviceInfo) -> tuple[Column, float] | None:
        """The legal config that is expected to lose least, and log(library / config) near by."""
        kind = self._kinds.index(problem.layout) if problem.layout in self._kinds else -1
        behind, gains = self._evidence.around(problem, kind, len(self._columns))
        legal = self._choices.legal(problem, device)
        legal = legal[np.isfinite(behind[legal])]
        if not len(legal):
            return None
        # A config that was good at some of the near problems should not be bad at others.
        behind -= self._standing.around(problem, kind, len(self._columns))[1]
        at = int(legal[np.argmin(behind[legal])])
        return self._choices.named(at), float(gains[at])

    def _nearest(self, problem: Problem, kernel: str, config: Config) -> tuple[TunedProblem, Timed]:
        """The nearest problem at which a config was timed, and its time."""
        here = log_dims(problem.shape)
        there = [tuned for tuned in self.tuned if (kernel, config) in tuned.times]
        near = min(there, key=lambda tuned: float(distances(log_dims(tuned.problem.shape), here)))
        return near, near.times[kernel, config]

    def _count_near(self, problem: Problem) -> int:
        """How many of the problems are near this one and have the library's time."""
        here = log_dims(problem.shape)
        apart = [np.abs(log_dims(tuned.problem.shape) - here) for tuned in self.tuned if tuned.library_s > 0]
        return sum(bool((dims <= math.log2(NEAR)).all()) for dims in apart)
