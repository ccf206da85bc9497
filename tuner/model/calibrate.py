"""What predictions cost, from problems that the predicting model was not fitted to.

Each case is such a problem: how much faster the best config was predicted to be than the library, what the
answer lost against the best of all that was timed there, and how far its time was off. A new answer is expected
to lose what the cases lost that are most like it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tuner.model.evidence import WEIGHT
from tuner.results.distance import Floats, Numbers
from tuner.results.measurement import SLOWER

if TYPE_CHECKING:
    from tuner.model.table import Table

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
#: Share of cases that an interval holds.
HELD = 0.8
#: A problem with so many times the timings that this share of problems have is one at which the search went on.
SEARCHED, USUAL = 3.0, 0.9
#: Tries of a study of some seconds; problems with so many tries tell what more of them find, so many for each.
STUDIED, LEAST_TRIED, SPEAK = 250, 16, 5
#: First-use list: configs that are timed.
FIRST = 8


@dataclass(frozen=True)
class Cases:
    """Problems that were predicted by a model that did not know them.

    Attributes:
        dims: Logs of the dims, shape (cases, dims).
        gain: Predicted log(library / best config); -inf where no config is legal.
        near: The same by what was timed near by.
        error: log(true / predicted) time of the best config and of the library, shape (cases, 2).
        kernel_s: True time of the config that was predicted to be best.
        first_s: The least true time among the configs that were predicted to be the best eight.
        library_s: True time of the library.
        best_s: The least time of all; where the search did not go on, less what it is likely to have missed.
        searched: Problems at which the search went on.
    """

    dims: Floats
    gain: Floats
    near: Floats
    error: Floats
    kernel_s: Floats
    first_s: Floats
    library_s: Floats
    best_s: Floats
    searched: int = 0

    def doubted(self, doubt: float) -> Cases:
        """The cases with gains that `doubted` lessens."""
        return replace(self, gain=doubted(self.gain, self.near, doubt))

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


@dataclass(frozen=True)
class Said:
    """What a model said of a survey's rows, fitted to other problems.

    Attributes:
        log_s: Logs of seconds, shape (times,); infinite where a config is not one that could be answered.
        behind: How far behind the fastest it is expected to be by what was timed near by.
        gain: log(library / config) near by.
        library_log_s: Logs of seconds of the library, shape (problems,); infinite where there is none.
        weight: Of `behind`, beside `log_s`.
    """

    log_s: Floats
    behind: Floats
    gain: Floats
    library_log_s: Floats
    weight: float = WEIGHT


def cases(numbers: Numbers, dims: Floats, data: Table, said: Said) -> Cases:
    """Cases from predictions.

    Args:
        numbers: Of the problems that are cases.
        dims: Logs, of all problems, shape (problems, dims).
        data: The survey.
        said: What was predicted.
    """
    ends = np.searchsorted(data.problem, np.arange(len(dims) + 1))
    found, left = [], Left(dims, data)
    for number in numbers:
        rows = np.arange(ends[number], ends[number + 1])
        rows = rows[np.isfinite(said.log_s[rows])]
        order = rows[np.argsort(said.log_s[rows] + said.weight * said.behind[rows], kind="stable")][:FIRST]
        library_s = data.library_s[number] if np.isfinite(data.library_s[number]) else np.inf
        best_s = min(data.time_s[ends[number] : ends[number + 1]].min(), library_s) * np.exp(-left.gap(number))
        if len(order):
            times, foreseen = data.time_s[order], said.log_s[order[0]]
            gain, near = said.library_log_s[number] - foreseen, said.gain[order[0]]
            found.append((number, foreseen, gain, near, times[0], times.min(), library_s, best_s))
        elif np.isfinite(library_s):
            found.append((number, np.inf, -np.inf, -np.inf, np.inf, np.inf, library_s, best_s))
    columns = np.array(found).T
    place, (foreseen, gain, near, *times_s) = columns[0].astype(np.int64), columns[1:]
    kernel_s, first_s, library_s, best_s = times_s
    with np.errstate(invalid="ignore"):
        error = np.log(np.array([kernel_s, library_s])) - np.array([foreseen, said.library_log_s[place]])
    return Cases(
        dims[place], gain, near, np.nan_to_num(error.T, posinf=0.0, neginf=0.0), kernel_s, first_s, library_s,
        best_s, left.searched,
    )  # fmt: skip


class Left:
    """What a study would find beyond a survey's turn at a problem.

    Where the survey went on for some turns, these tell. Elsewhere it is extrapolated: every other of its
    timings is left out, and what the rest had missed is expected of each further doubling of the tries.

    Attributes:
        searched: Problems at which the search went on.
    """

    def __init__(self, dims: Floats, data: Table) -> None:
        """Looks at what further tries found.

        Args:
            dims: Logs, of all problems, shape (problems, dims).
            data: The survey.
        """
        ends = np.searchsorted(data.problem, np.arange(len(dims) + 1))
        self._counts = np.diff(ends)
        self._dims, gained = dims, np.zeros(len(dims))
        for at in np.flatnonzero(self._counts > 1):
            log_s = np.log(data.time_s[ends[at] : ends[at + 1]])
            cap = np.log(data.library_s[at]) if np.isfinite(data.library_s[at]) else np.inf
            halves = [min(log_s[first::2].min(), cap) for first in (0, 1)]
            gained[at] = np.mean(halves) - min(log_s.min(), cap)
        usual = np.quantile(self._counts[self._counts > 0], USUAL)
        self._deep = self._counts >= SEARCHED * usual
        self._known = np.flatnonzero(self._counts >= LEAST_TRIED)
        self._gained = gained
        # A study tries no config twice.
        self._studied = min(STUDIED, data.parameters.shape[1])
        self.searched = int(self._deep.sum())

    def gap(self, number: int) -> float:
        """Log of time that a study is likely to gain at a problem beyond what was timed there."""
        if self._deep[number] or not self._counts[number] or not len(self._known):
            return 0.0
        apart = ((self._dims[self._known] - self._dims[number]) ** 2).sum(axis=1)
        near = self._known[np.argsort(apart, kind="stable")[:SPEAK]]
        doublings = max(math.log2(self._studied / self._counts[number]), 0.0)
        return float(self._gained[near].mean()) * doublings


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
        searched: Problems at which a longer search told what is left to be found; 0: losses are against the
            survey's configs alone.
        drawn: Problems drawn after the fit at which answers were timed beside studies; 0: none were.
        scale: True loss there over the expected one, by means.
        held: What multiplies the ends of both intervals, of loss and time, so that they hold 80 % there.
        doubt: Share of what a predicted log(library / kernel) exceeds the one near by that is taken off it; see
            `doubted`. Models of earlier versions take the lesser of both.
    """

    margin: float
    places: Floats
    losses: Floats
    errors: Floats
    reach: float
    spread: tuple[float, float]
    searched: int = 0
    drawn: int = 0
    scale: float = 1.0
    held: tuple[float, float] = (1.0, 1.0)
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
        place = _places(dims[None], np.array([gain]))
        expected, size = (float(each[0]) for each in _near(self, place))
        expected *= self.scale
        of_loss, of_time = self.held
        most = self.reach * of_loss
        if self.drawn:  # few cases that lose nothing must not end an interval below what is expected
            most = max(most, 1.0)
        return expected, most * expected, (self.spread[0] * of_time * size, self.spread[1] * of_time * size)


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


def doubted(gain: Floats | float, near: Floats | float, doubt: float) -> Floats:
    """Predicted gains, less a share of what they exceed those near by: all of it gives the lesser of both.

    Trees know what a shape is like, alignment of rows and all, but extrapolate; what was timed near by does
    not, but is of other shapes. Which of the two is to be trusted more hinges on how densely was surveyed.

    Args:
        gain: Predicted log(library / config).
        near: The same by what was timed near by; -inf where it is not known.
        doubt: The share, 0 to 1.
    """
    if doubt in (0.0, 1.0):
        return np.asarray(np.minimum(gain, near) if doubt else gain)
    with np.errstate(invalid="ignore"):
        found = np.asarray(gain - doubt * np.maximum(np.subtract(gain, near), 0.0))
    return np.where(np.isnan(found), np.minimum(gain, near), found)


def choice(known: Cases) -> tuple[float, float]:
    """Doubt and margin with which answers cost least, and are seldom slower than the library.

    Args:
        known: At least a few dozen cases, with gains as they are predicted.
    """

    def cost(of: tuple[float, float]) -> tuple[bool, float]:
        doubt, margin = of
        cases = known.doubted(doubt)
        slower = (cases.answered_s(margin) > (1 + SLOWER) * cases.library_s).mean()
        return bool(slower > MOST_SLOWER), float(cases.lost(margin).mean() + PENALTY * slower)

    return min(((doubt, float(margin)) for doubt in DOUBTS for margin in MARGINS), key=cost)


def calibrate(known: Cases) -> Calibration:
    """Chooses doubt and margin, and measures what answers cost.

    Args:
        known: At least a few dozen cases, with gains as they are predicted.
    """
    doubt, margin = choice(known)
    known = known.doubted(doubt)
    errors = np.where(known.used(margin), known.error[:, 0], known.error[:, 1])
    places = _places(known.dims, known.gain)
    found = Calibration(margin, places, known.lost(margin), errors, 1.0, (-1.0, 1.0))
    expected, size = _near(found, places, own=True)
    reach = float(np.quantile(found.losses / expected, HELD))
    low, high = np.quantile(errors / size, [(1 - HELD) / 2, (1 + HELD) / 2])
    return Calibration(
        margin, places, found.losses, errors, max(reach, LEAST), (float(low), float(high)), known.searched,
        doubt=doubt,
    )  # fmt: skip
