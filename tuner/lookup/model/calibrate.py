"""What predictions cost, from problems that the predicting model was not fitted to.

Each case is such a problem: how much faster the best config was predicted to be than the library, what the
answer lost against the best of all that was timed there, and how far its time was off. A new answer is expected
to lose what the cases lost that are most like it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.lookup.features import Floats

#: Gains that must be predicted before a kernel is preferred to the library, tried on the cases.
MARGINS = np.arange(0.0, 0.2, 0.01)
#: An answer slower than the library by more than this breaks the promise of callables...
SLOWER = 0.03
#: ...and counts as a loss of so much more when the margin is chosen.
PENALTY = 0.2
#: Cases that speak for an answer, and the weight of the mean of all beside them.
NEAREST, PRIOR = 40, 5.0
#: Log of the predicted gain, and of a dim, that make two cases differ.
GAIN_SCALE, DIM_SCALE = 0.15, 2.0
#: Losses and errors below this are noise.
LEAST = 0.002
#: Share of cases that an interval holds.
HELD = 0.8
#: First-use list: configs that are timed.
FIRST = 8


@dataclass(frozen=True)
class Cases:
    """Problems that were predicted by a model that did not know them.

    Attributes:
        dims: Logs of the dims, shape (cases, dims).
        gain: Predicted log(library / best config); -inf where no config is legal.
        error: log(true / predicted) time of the best config and of the library, shape (cases, 2).
        kernel_s: True time of the config that was predicted to be best.
        first_s: The least true time among the configs that were predicted to be the best eight.
        library_s: True time of the library.
        best_s: The least time of all.
    """

    dims: Floats
    gain: Floats
    error: Floats
    kernel_s: Floats
    first_s: Floats
    library_s: Floats
    best_s: Floats

    def used(self, margin: float) -> NDArray[np.bool_]:
        """Where a kernel is answered."""
        found: NDArray[np.bool_] = self.gain > margin
        return found

    def answered_s(self, margin: float) -> Floats:
        """True time of what is answered."""
        return np.where(self.used(margin), self.kernel_s, self.library_s)

    def loss(self, margin: float) -> Floats:
        """Time of the answer over the best, minus 1."""
        found: Floats = self.answered_s(margin) / self.best_s - 1
        return found

    def lost(self, margin: float) -> Floats:
        """The fraction of speed that the answer loses: 1 - best / answered."""
        return 1 - self.best_s / self.answered_s(margin)

    def first_loss(self) -> Floats:
        """The same when the best eight and the library are timed."""
        found: Floats = np.minimum(self.first_s, self.library_s) / self.best_s - 1
        return found


def cases(dims: Floats, predicted: tuple[Floats, Floats], times: Floats, library_s: Floats) -> Cases:
    """Cases from predictions.

    Args:
        dims: Logs, shape (cases, dims).
        predicted: Logs of seconds of configs, shape (cases, configs), and of the library, shape (cases,).
        times: True seconds, shape (cases, configs); NaN where a config was not timed, which it then cannot be
            answered either.
        library_s: True seconds, shape (cases,); infinite where there is no library.
    """
    ranked = np.where(np.isfinite(times), predicted[0], np.inf)
    order, rows = np.argsort(ranked, axis=1, kind="stable")[:, :FIRST], np.arange(len(times))
    true = np.where(np.isfinite(times), times, np.inf)
    first = np.take_along_axis(true, order, axis=1)
    foreseen = ranked[rows, order[:, 0]]
    with np.errstate(invalid="ignore"):
        error = np.log(np.array([first[:, 0], library_s])) - np.array([foreseen, predicted[1]])
    return Cases(
        dims, predicted[1] - foreseen, np.nan_to_num(error.T, posinf=0.0, neginf=0.0), first[:, 0],
        first.min(axis=1), library_s, np.fmin(true.min(axis=1), library_s),
    )  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """How much to trust predictions.

    Attributes:
        margin: Predicted log(library / kernel) above which the kernel is answered.
        places: Per case: where it lies, by `_places`.
        losses: Per case: fraction of speed that its answer lost.
        errors: Per case: log(true / predicted) of its answer.
        reach: What the 80 % interval of the loss ends at, over the expected loss.
        spread: Ends of the 80 % interval of log(true / predicted), over its expected size.
    """

    margin: float
    places: Floats
    losses: Floats
    errors: Floats
    reach: float
    spread: tuple[float, float]

    def figures(self, dims: Floats, gain: float) -> tuple[float, float, tuple[float, float]]:
        """What is said of an answer.

        Args:
            dims: Logs of the problem's dims.
            gain: Predicted log(library / kernel).

        Returns:
            Expected loss, a fraction of speed; end of its 80 % interval, which begins at 0; and of
            log(true / predicted) time the 80 % interval.
        """
        place = _places(dims[None], np.array([gain]))
        expected, size = (float(each[0]) for each in _near(self, place))
        return expected, self.reach * expected, (self.spread[0] * size, self.spread[1] * size)


def _places(dims: Floats, gain: Floats) -> Floats:
    return np.column_stack([dims / DIM_SCALE, 2 * np.tanh(np.clip(gain, -9, 9) / GAIN_SCALE)])


def _near(of: Calibration, places: Floats, own: bool = False) -> tuple[Floats, Floats]:
    """Expected loss and size of the error at places; if `own`, those of the cases, each without itself."""
    apart = ((places[:, None, :] - of.places[None, :, :]) ** 2).sum(axis=2)
    if own:
        np.fill_diagonal(apart, np.inf)
    count = min(NEAREST, apart.shape[1] - 2)
    reach = np.partition(apart, count, axis=1)[:, count, None] + 1e-12
    weights = np.maximum(1 - apart / reach, 0.0)
    total = weights.sum(axis=1) + PRIOR
    losses, sizes = of.losses, np.abs(of.errors)
    return (
        np.maximum((weights @ losses + PRIOR * losses.mean()) / total, LEAST),
        np.maximum((weights @ sizes + PRIOR * sizes.mean()) / total, LEAST),
    )


def calibrate(known: Cases) -> Calibration:
    """Chooses the margin and measures what answers cost.

    Args:
        known: At least a few dozen cases.
    """

    def cost(margin: float) -> float:
        slower = known.answered_s(margin) > (1 + SLOWER) * known.library_s
        return float(known.loss(margin).mean() + PENALTY * slower.mean())

    margin = float(min(MARGINS, key=cost))
    errors = np.where(known.used(margin), known.error[:, 0], known.error[:, 1])
    places = _places(known.dims, known.gain)
    found = Calibration(margin, places, known.lost(margin), errors, 1.0, (-1.0, 1.0))
    expected, size = _near(found, places, own=True)
    reach = float(np.quantile(found.losses / expected, HELD))
    low, high = np.quantile(errors / size, [(1 - HELD) / 2, (1 + HELD) / 2])
    return Calibration(margin, places, found.losses, errors, max(reach, LEAST), (float(low), float(high)))
