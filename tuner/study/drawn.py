"""What answers cost at problems that nobody tuned, beside a short study and the library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.declare.problem import Problem
from tuner.lookup.answers import UNMEASURED

#: An answer that takes longer than the library by more than this is slower than it.
SLOWER = 0.03


@dataclass(frozen=True)
class Drawn:
    """A drawn problem, what was answered there, and the times of that and of what it is compared with.

    Attributes:
        problem: The problem.
        answer: As `Answer.to_json` tells it; without a device's limits.
        kernel_s: Seconds of the config that the answer names, run or not; None where it failed.
        library_s: Of the library; None without one.
        champion_s: Of the champion of a short study; None where it found none.
        champion: Its kernel and config, for people; empty without one.
        why: What went wrong; empty where nothing did.
    """

    problem: Problem
    answer: dict[str, Any]
    kernel_s: float | None
    library_s: float | None
    champion_s: float | None
    champion: str = ""
    why: str = ""

    @property
    def by_library(self) -> bool:
        """Whether the library is to be used."""
        return bool(self.answer["use"] != "kernel")

    @property
    def answered_s(self) -> float:
        """Seconds of what is to be used; infinite where that failed."""
        return (self.library_s if self.by_library else self.kernel_s) or math.inf

    @property
    def best_s(self) -> float:
        """The least of all times."""
        return min(each for each in (self.kernel_s, self.library_s, self.champion_s, math.inf) if each)

    @property
    def loss(self) -> float:
        """Fraction of speed that the answer loses: 1 - best / answered."""
        return 1 - self.best_s / self.answered_s if math.isfinite(self.best_s) else 1.0

    def over_library(self, time_s: float | None) -> float:
        """How many times as fast as the library something is; NaN without a library or a time."""
        return self.library_s / time_s if self.library_s and time_s and math.isfinite(time_s) else math.nan

    def to_json(self) -> dict[str, Any]:
        """Seconds, fractions."""
        return {
            **self.problem.to_json(),
            **{name: self.answer[name] for name in ("match", "use", "kernel", "config", "predicted")},
            "expected_loss": self.answer["expected_loss"],
            "expected_loss_interval": self.answer["expected_loss_interval"],
            "kernel_time_s": self.kernel_s, "library_time_s": self.library_s,
            "champion_time_s": self.champion_s,
            "champion": self.champion, "loss": self.loss, "why": self.why,
        }  # fmt: skip


@dataclass
class Summary:
    """What the cases tell together.

    Attributes:
        cases: How many.
        loss: Mean, median, ninetieth percentile and worst.
        slower: Answers that are more than 3 % slower than the library.
        answers: Geometric mean of answers over the library; NaN without one.
        champions: The same of the short studies' champions.
        said: Mean of the losses that were said, of the cases of which one was.
        true: Mean of the true losses of the same cases.
        loss_held: Share of the 80 % intervals of the loss that hold it; NaN without any.
        time_held: Share of the 80 % intervals of the answer's time that hold it; NaN without any.
    """

    cases: int
    loss: dict[str, float] = field(default_factory=dict)
    slower: int = 0
    answers: float = math.nan
    champions: float = math.nan
    said: float = math.nan
    true: float = math.nan
    loss_held: float = math.nan
    time_held: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """The fields; null where there is no figure."""
        return {name: None if value != value else value for name, value in vars(self).items()}


def summary(cases: Sequence[Drawn]) -> Summary:
    """What the cases tell together."""
    found = Summary(len(cases))
    if not cases:
        return found
    losses = np.array([each.loss for each in cases])
    found.loss = {
        "mean": float(losses.mean()), "median": float(np.median(losses)),
        "p90": float(np.quantile(losses, 0.9)), "worst": float(losses.max()),
    }  # fmt: skip
    ratios = np.array([each.over_library(each.answered_s) for each in cases])
    found.slower = int(np.sum(ratios < 1 / (1 + SLOWER)))
    found.answers = _geometric(ratios)
    found.champions = _geometric(np.array([each.over_library(each.champion_s) for each in cases]))
    told = [each for each in cases if each.answer["expected_loss"] < UNMEASURED]
    found.said = _mean([each.answer["expected_loss"] for each in told])
    found.true = _mean([each.loss for each in told])
    found.loss_held = _mean([
        float(low <= each.loss <= high + 1e-9)
        for each in cases
        for low, high in [each.answer["expected_loss_interval"] or (math.nan, math.nan)]
        if low == low
    ])  # fmt: skip
    found.time_held = _mean([
        float(low <= each.answered_s <= high)
        for each in cases
        if each.answer["predicted"] and each.answer["predicted"]["time_interval_s"]
        for low, high in [each.answer["predicted"]["time_interval_s"]]
    ])  # fmt: skip
    return found


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _geometric(ratios: Any) -> float:
    known = ratios[np.isfinite(ratios)]
    return math.exp(float(np.log(known).mean())) if len(known) else math.nan
