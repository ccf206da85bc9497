"""Sets what a model says of its losses right, by problems drawn after its fit.

A survey times few configs at a problem, each for a moment: what its problems say of losses rests on what a
study is likely to find beyond them, and on the least of many short timings. At drawn problems the answer, a
study's champion and the library were timed in turn (`tuner lookup-quality --drawn --measure`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.model.calibrate import HELD, LEAST, PRIOR
from tuner.model.fitted import Model
from tuner.model.predict import Predictor
from tuner.results.distance import Floats
from tuner.results.measurement import SLOWER

#: Drawn problems without which nothing is said.
FEWEST = 16


@dataclass(frozen=True)
class DrawnCase:
    """A drawn problem and what was timed there, in turn.

    Attributes:
        problem: The problem.
        kernel: Of the answer.
        config: Likewise.
        kernel_s: Seconds of that config; infinite where it failed.
        library_s: Of the library; infinite without one.
        champion_s: Of a study's champion; infinite without one.
    """

    problem: Problem
    kernel: str
    config: Config
    kernel_s: float
    library_s: float
    champion_s: float

    @property
    def best_s(self) -> float:
        """The least of all."""
        return min(self.kernel_s, self.library_s, self.champion_s)


@dataclass(frozen=True)
class Figures:
    """What was said and what was true at drawn problems.

    Attributes:
        cases: How many there are.
        said: Mean of the expected losses.
        true: Mean of the true ones.
        loss_held: Share of the 80 % intervals of the loss that hold it.
        time_held: The same of the answer's time.
        slower: Share of the answers that are more than 3 % slower than the library.
    """

    cases: int
    said: float
    true: float
    loss_held: float
    time_held: float
    slower: float


@dataclass(frozen=True)
class _Said:
    """What a model says at drawn problems, and what is true there; one value for each that counts.

    Attributes:
        expected: Expected losses.
        most: Ends of their 80 % intervals.
        lost: True losses.
        low: Lower ends of the 80 % intervals of log(true / predicted) time of what is answered.
        high: Upper ends.
        error: log(true / predicted).
        behind: Time of the answer over the library's, minus 1.
    """

    expected: Floats
    most: Floats
    lost: Floats
    low: Floats
    high: Floats
    error: Floats
    behind: Floats

    @classmethod
    def of(cls, model: Model, kernels: Mapping[str, Kernel], cases: Sequence[DrawnCase]) -> _Said:
        """Asks a model; a case at which it answers another config than was timed does not count."""
        predictor, rows = Predictor(model, kernels), []
        for case in cases:
            said = predictor.answer(case.problem)
            if said.best is None or (said.best.kernel, said.best.config) != (case.kernel, case.config):
                continue
            foreseen_s = said.library_s if said.by_library else said.best.time_s
            true_s = case.library_s if said.by_library else case.kernel_s
            if math.isfinite(true_s):
                logs = (math.log(each / foreseen_s) for each in (*said.time_interval_s, true_s))
                behind = true_s / case.library_s - 1
                rows.append(
                    (said.expected_loss, said.loss_interval[1], 1 - case.best_s / true_s, *logs, behind)
                )
        return cls(*np.array(rows).reshape(-1, 7).T)

    def figures(self) -> Figures:
        """All of it in a few figures."""
        within = (self.low <= self.error) & (self.error <= self.high)
        return Figures(
            len(self.lost), float(self.expected.mean()), float(self.lost.mean()),
            float((self.lost <= self.most).mean()), float(within.mean()), float((self.behind > SLOWER).mean()),
        )  # fmt: skip


def figures(model: Model, kernels: Mapping[str, Kernel], cases: Sequence[DrawnCase]) -> Figures:
    """What a model says at problems, and what is true there; not at those where it answers another config.

    Args:
        model: The model.
        kernels: By name, as they are now.
        cases: Problems that the model knows, and was not fitted to.
    """
    return _Said.of(model, kernels, cases).figures()


def calibrated(
    model: Model, kernels: Mapping[str, Kernel], cases: Sequence[DrawnCase]
) -> tuple[Model, Figures, Figures]:
    """A model whose expected losses and intervals are those of drawn problems.

    The configs that it answers stay the same, and so does when it answers the library. What earlier drawn
    problems said is left out.

    Args:
        model: The model.
        kernels: By name, as they are now.
        cases: Problems that were drawn after the fit. Those at which the model answers another config now do
            not count.

    Returns:
        The model, and what it says at these problems: before, and now.

    Raises:
        InputError: Too few cases count.
    """
    plain = replace(model, calibration=replace(model.calibration, drawn=0, scale=1.0, held=(1.0, 1.0)))
    known = [each for each in cases if model.knows(each.problem)]
    before, said = (_Said.of(each, kernels, known) for each in (model, plain))
    count = len(said.lost)
    if count < FEWEST:
        raise InputError(
            f"drawn problems tell of losses from {FEWEST} on, got {count} of {len(cases)} at which the model "
            "answers what was timed there; draw more by `tuner lookup-quality --drawn --measure`"
        )
    some = PRIOR * said.expected.mean()  # counts like so many cases at which what was said was true
    scale = float((said.lost.sum() + some) / (said.expected.sum() + some))
    of_loss = said.lost / (scale * said.most)
    of_time = said.error / np.where(said.error > 0, said.high, said.low)
    held = max(_holding(of_loss), LEAST), max(_holding(of_time), LEAST)
    found = replace(plain, calibration=replace(plain.calibration, drawn=count, scale=scale, held=held))
    return found, before.figures(), _Said.of(found, kernels, known).figures()


def _holding(ratios: Floats) -> float:
    """What holds 80 % of some ratios of a value to an interval's end; rounding puts none outside."""
    return float(np.quantile(ratios, HELD, method="higher")) * (1 + 1e-9)
