"""What answers of a model cost, measured at problems that it was not fitted to.

A case is such a problem: left out of the fit in turn, drawn after it, or of a later survey. A new answer is
expected to lose what the cases lost that are most like it, and its intervals end where they hold four of five
residuals of the cases, each over what was expected of it (split conformal prediction).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.results.distance import Floats
from tuner.results.measurement import SLOWER

#: Gains that must be predicted before a kernel is preferred to the library, tried on cases; the last: never.
MARGINS = np.array([*np.arange(0.0, 0.2, 0.01), 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 9.0])
#: Shares of the doubt that what was timed near by casts on a prediction, tried on cases; the careful one first.
DOUBTS = (1.0, 0.5, 0.25, 0.1, 0.0)
#: An answer slower than the library (`SLOWER`) breaks the promise of callables, and counts as a loss of so much
#: more when the margin is chosen. At most this share of the cases may be slower.
PENALTY, MOST_SLOWER = 0.2, 1 / 32
#: Cases that speak for an answer, and the weight of the mean of all beside them.
NEAREST, PRIOR = 40, 5.0
#: Log of the predicted gain, and of a dim, that make two cases differ.
GAIN_SCALE, DIM_SCALE = 0.15, 2.0
#: Losses and errors below this are noise.
LEAST = 0.002
#: Drawn problems without which nothing is said of losses.
FEWEST_DRAWN = 16
#: Doublings of the timings at a case from what a survey makes to what finds the best. Of 54,313 timings of gemm
#: on an H200, with 20 or 40 kept of a problem's 81, answers lost 7.0 and 8.2 % by the cases; this says 11.5 and
#: 10.4 %, and at 368 other problems they lost 11.3 and 10.4 % by all of their timings.
UNTIMED = 2.0
#: Share of cases that an interval holds; rounding puts none outside.
HELD, ROUNDED = 0.8, 1 + 1e-9


class Forecast(NamedTuple):
    """What a model predicts at a problem, before kernel or library is chosen.

    Attributes:
        kernel_log_s: Log of the best config's seconds; infinite where no config is legal.
        library_log_s: The same of the library; infinite where there is none.
        near: log(library / config) by what was timed near by; -inf where it is not known.
    """

    kernel_log_s: float
    library_log_s: float
    near: float

    @property
    def gain(self) -> float:
        """Predicted log(library / config); -inf where no config is legal."""
        return self.library_log_s - self.kernel_log_s if self.kernel_log_s < math.inf else -math.inf


#: A problem, what was predicted, and seconds as in `Cases.times_s`.
Case = tuple[Problem, Forecast, tuple[float, float, float]]


@dataclass(frozen=True)
class Cases:
    """Problems that were predicted by a model that did not know them.

    Attributes:
        dims: Logs of the dims, shape (cases, dims).
        gain: Predicted log(library / best config); -inf where no config is legal.
        near: The same by what was timed near by.
        error: log(true / predicted) time of the best config and of the library, shape (cases, 2).
        times_s: True time of the config that was predicted to be best; of the library, infinite without one;
            and the least that is known. Shape (3, cases).
    """

    dims: Floats
    gain: Floats
    near: Floats
    error: Floats
    times_s: Floats

    @classmethod
    def of(cls, forecasts: Sequence[Case]) -> Cases:
        """Cases by problem, what was predicted, and what was timed as in `times_s`."""
        dims = np.log([[size for _, size in problem.shape] for problem, *_ in forecasts])
        rows = [[*forecast, forecast.gain, *times_s] for _, forecast, times_s in forecasts]
        kernel_log_s, library_log_s, near, gain, *times_s = np.array(rows).reshape(-1, 7).T
        with np.errstate(invalid="ignore"):
            error = np.log(times_s[:2]) - np.array([kernel_log_s, library_log_s])
        error = np.nan_to_num(error, posinf=0.0, neginf=0.0)
        return cls(dims, gain, near, error.T, np.array(times_s))

    def doubted(self, doubt: float) -> Cases:
        """The cases with gains that `doubted` lessens."""
        return replace(self, gain=doubted(self.gain, self.near, doubt))

    def answered(self, margin: float) -> tuple[Floats, Floats, Floats]:
        """Of what is answered where a kernel must be faster by a margin.

        Returns:
            Its true time over the library's; the fraction of speed that is lost, 1 - best / answered; and
            log(true / predicted).
        """
        by_kernel, (kernel_s, library_s, best_s) = self.gain > margin, self.times_s
        answered_s = np.where(by_kernel, kernel_s, library_s)
        error = np.where(by_kernel, self.error[:, 0], self.error[:, 1])
        return answered_s / library_s, 1 - best_s / answered_s, error


def doubted(gain: Floats | float, near: Floats | float, doubt: float) -> Floats:
    """Predicted gains, less a share of what they exceed those near by: all of it gives the lesser of both.

    Trees know what a shape is like, alignment of rows and all, but extrapolate; what was timed near by does
    not, but is of other shapes. Which of the two is to be trusted more hinges on how densely was surveyed.

    Args:
        gain: Predicted log(library / config).
        near: The same by what was timed near by; -inf where it is not known.
        doubt: The share, 0 to 1.
    """
    lesser = np.asarray(np.minimum(gain, near))
    if doubt in (0.0, 1.0):  # gains may be infinite
        return lesser if doubt else np.asarray(gain)
    return (1 - doubt) * np.asarray(gain) + doubt * lesser


@dataclass(frozen=True)
class Calibration:
    """How much to trust predictions.

    Attributes:
        margin: Log(library / kernel) above which the kernel is answered.
        places: Per case: where it lies, by `_places`.
        losses: Per case: fraction of speed that its answer lost.
        errors: Per case: log(true / predicted) of its answer.
        reach: What the 80 % interval of the loss ends at, over the expected loss.
        spread: Ends of the 80 % interval of log(true / predicted), over its expected size.
        drawn: Problems drawn after the fit at which answers were timed beside studies; 0: none were.
        scale: True loss there over the expected one, by means; without any by how losses grow with timings.
        doubt: Share of what a predicted log(library / kernel) exceeds the one near by that is taken off it; see
            `doubted`.
    """

    margin: float
    places: Floats
    losses: Floats
    errors: Floats
    reach: float
    spread: tuple[float, float]
    drawn: int = 0
    scale: float = 1.0
    doubt: float = 1.0

    def figures(self, dims: Floats, gain: float) -> tuple[float, float, tuple[float, float]]:
        """What is said of an answer.

        Args:
            dims: Logs of the problem's dims.
            gain: Predicted log(library / kernel).

        Returns:
            Expected loss, a fraction of speed; end of its 80 % interval, which begins at 0; and of
            log(true / predicted) time the 80 % interval.
        """
        (expected,), (size,) = self.expected(_places(dims[None], np.array([gain])))
        return float(expected), float(self.reach * expected), (self.spread[0] * size, self.spread[1] * size)

    def expected(self, places: Floats, own: bool = False) -> tuple[Floats, Floats]:
        """Expected losses and sizes of errors at places; if `own`, those of the cases, each without itself."""
        apart = ((places[:, None, :] - self.places[None, :, :]) ** 2).sum(axis=2)
        if own:
            np.fill_diagonal(apart, np.inf)
        count = min(NEAREST, apart.shape[1] - 2)
        farthest = np.partition(apart, count, axis=1)[:, count, None] + 1e-12
        weights = np.maximum(1 - apart / farthest, 0.0)
        total = weights.sum(axis=1) + PRIOR
        losses, sizes = (
            np.maximum((weights @ values + PRIOR * values.mean()) / total, LEAST)
            for values in (self.losses, np.abs(self.errors))
        )
        return self.scale * losses, sizes

    def ending(self, losses: Floats, errors: Floats, expected: tuple[Floats, Floats]) -> Calibration:
        """The same with intervals that hold `HELD` of some losses and errors, over what is expected of them."""
        of_loss, of_error = losses / expected[0], errors / expected[1]
        reach = np.quantile(of_loss, HELD, method="higher") * ROUNDED
        low = np.quantile(of_error, (1 - HELD) / 2, method="lower") * ROUNDED
        high = np.quantile(of_error, (1 + HELD) / 2, method="higher") * ROUNDED
        return replace(self, reach=max(float(reach), 1.0), spread=(min(low, -LEAST), max(high, LEAST)))

    def corrected(self, cases: Cases) -> tuple[Calibration, dict[str, float]]:
        """The same with losses and intervals as drawn problems have them, whatever earlier ones said.

        Returns:
            It, and of the cases the mean loss: ``before`` and ``now`` as it is said, and ``true``.

        Raises:
            InputError: There are too few.
        """
        count = len(cases.gain)
        if count < FEWEST_DRAWN:
            raise InputError(
                f"drawn problems tell of losses from {FEWEST_DRAWN} on, got {count} at which the model answers "
                "what was timed there; draw more by `tuner lookup-quality --drawn --measure`"
            )
        plain, known = replace(self, scale=1.0), cases.doubted(self.doubt)
        _, losses, errors = known.answered(self.margin)
        expected, size = plain.expected(_places(known.dims, known.gain))
        prior = PRIOR * expected.mean()  # counts like so many cases at which what was said was true
        scale = float((losses.sum() + prior) / (expected.sum() + prior))
        made = replace(plain, drawn=count, scale=scale).ending(losses, errors, (scale * expected, size))
        means = {"before": self.scale, "now": scale}
        said = {name: factor * float(expected.mean()) for name, factor in means.items()}
        return made, {**said, "true": float(losses.mean())}


def _places(dims: Floats, gain: Floats) -> Floats:
    return np.column_stack([dims / DIM_SCALE, 2 * np.tanh(np.clip(gain, -9, 9) / GAIN_SCALE)])


def calibrate(known: Cases, halved: Cases) -> Calibration:
    """Chooses doubt and margin, by which answers cost least and are seldom slower than the library.

    A loss is against the best of few configs that were timed, and so too small: it grows with each doubling of
    these by what it grew by with the last one.

    Args:
        known: At least a few dozen cases, with gains as they are predicted. They tell what answers cost, too.
        halved: The same with half of the timings.
    """

    def cost(of: tuple[float, float]) -> tuple[bool, float]:
        doubt, margin = of
        behind, losses, _ = known.doubted(doubt).answered(margin)
        slower = (behind > 1 + SLOWER).mean()
        return bool(slower > MOST_SLOWER), float(losses.mean() + PENALTY * slower)

    doubt, margin = min(((doubt, float(margin)) for doubt in DOUBTS for margin in MARGINS), key=cost)
    cases = known.doubted(doubt)
    (_, losses, errors), places = cases.answered(margin), _places(cases.dims, cases.gain)
    trust = Calibration(margin, places, losses, errors, 1.0, (-1.0, 1.0), doubt=doubt)
    trust = trust.ending(losses, errors, trust.expected(places, own=True))
    _, few, _ = halved.doubted(doubt).answered(margin)
    growth = max(1 - few.mean() / max(losses.mean(), LEAST), 0.0)
    return replace(trust, scale=1 + UNTIMED * growth)


def spread_of(losses: Floats) -> dict[str, float]:
    """Mean, median, ninetieth percentile and worst; empty without any."""
    if not len(losses):
        return {}
    return {
        "mean": float(losses.mean()), "median": float(np.median(losses)),
        "p90": float(np.quantile(losses, 0.9)), "worst": float(losses.max()),
    }  # fmt: skip


def spread_text(spread: Mapping[str, float]) -> str:
    """What `spread_of` gives, for people."""
    return ", ".join(f"{name} {value:.1%}" for name, value in spread.items())
