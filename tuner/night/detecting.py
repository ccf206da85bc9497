"""Did a problem's times change? One board's nights in, findings out; pure arithmetic.

A night's times are compared with what the board's earlier nights predict, for each thing that may have moved:
the champion alone, the library alone, or all. The test of one night is Student's; over the nights the same
residuals go into a CUSUM, which finds small changes that stay, and creep. Both are repeated in a fresh process
before anything is said, and false discoveries are limited over all problems of a night.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from tuner.night.noise import Floats, Noise, noise_of

#: What may move -> whether champion, the one before and library do.
MOVES = {"champion": (1.0, 0.0, 0.0), "library": (0.0, 0.0, 1.0), "all": (1.0, 1.0, 1.0)}
#: Nights that a prediction needs.
LEAST_HISTORY = 5
#: Nights before the present that count, the latest ones.
MOST_HISTORY = 60
#: Passes, each in fresh processes, that repeat what is suspect.
REPEATS = 2
#: A repeat in a fresh process is worth its time below this p, or above this share of a CUSUM's limit.
SUSPECT_P, SUSPECT_CUSUM = 0.03, 0.7
#: Rate of false discoveries among a night's findings.
FALSE_DISCOVERIES = 5e-4
#: Slack and limit of the CUSUM, in deviations.
SLACK, LIMIT = 0.5, 8.0
#: A residual counts at most so many deviations in the CUSUM: a change of one night is the other test's.
CAPPED = 4.0
#: No p is taken for less.
LEAST_P = 1e-300
#: What crept must show in this night, too.
STILL_P = 0.05
#: Changes below this share are of no interest, however certain.
LEAST_CHANGE = {"champion": 0.003, "library": 0.003, "all": 0.01}


@dataclass(frozen=True)
class Residual:
    """How far a night is from what the nights before predict, if one thing moved.

    Attributes:
        change: Estimated change of the logarithm of the time.
        error: Its standard error.
        p: Chance of one as large where nothing moved, two-sided.
        z: It in deviations of a normal, with the change's sign.
    """

    change: float
    error: float
    p: float
    z: float

    @property
    def interval(self) -> tuple[float, float]:
        """Change with a confidence of 95 %, as a share of the time."""
        return math.expm1(self.change - 1.96 * self.error), math.expm1(self.change + 1.96 * self.error)


@dataclass(frozen=True)
class Finding:
    """What is known of one problem after a night.

    Attributes:
        moved: A key of `MOVES`: what explains the night best.
        residual: That explanation.
        cusum: The largest CUSUM over the nights, in deviations, with its sign; of the same explanation.
        nights: How long the CUSUM has been rising: 1 for a change of this night.
        history: Number of nights that the prediction rests on.
        residuals: All explanations.
    """

    moved: str
    residual: Residual
    cusum: float
    nights: int
    history: int
    residuals: dict[str, Residual] = field(default_factory=dict)

    @property
    def suspect(self) -> bool:
        """True if it is worth repeating in a fresh process."""
        return self.residual.p < SUSPECT_P or abs(self.cusum) > SUSPECT_CUSUM * LIMIT

    @property
    def crept(self) -> bool:
        """True if the nights together say so."""
        return abs(self.cusum) > LIMIT


def examine(nights: Floats, tonight: Floats) -> Finding | None:
    """Judges one problem's night on one board.

    Args:
        nights: A row for each earlier night, the first first, since the last change that was said.
        tonight: One row for each process of this night.

    Returns:
        None while there are too few nights.
    """
    history = nights[-MOST_HISTORY:]
    if len(history) < LEAST_HISTORY:
        return None
    usable = np.asarray(~np.isnan(np.vstack([history, tonight])).any(axis=0), dtype=np.bool_)
    if not usable[0]:
        return None
    history = np.where(usable, history, np.nan)
    noise, away, spread = _innovations(history, tonight, usable)
    found, sums = {}, {}
    for moved, parts in MOVES.items():
        direction = np.array(parts) * usable
        if direction.any():
            change, error = _explained(away, noise, spread, direction)
            t = change / error
            p = np.maximum(2.0 * special.stdtr(noise.freedom, -np.abs(t)), LEAST_P)
            z = np.sign(t) * -special.ndtri(p / 2.0)
            found[moved] = Residual(float(change[-1]), float(error[-1]), float(p[-1]), float(z[-1]))
            sums[moved] = _cusum(z)
    best = max(found, key=lambda moved: max(abs(found[moved].z), abs(sums[moved][0]) * 0.5))
    return Finding(best, found[best], *sums[best], len(history), found)


def _innovations(history: Floats, tonight: Floats, usable: NDArray[np.bool_]) -> tuple[Noise, Floats, Floats]:
    """Each night less the mean of those before it, with the noise that they tell.

    Returns:
        Noise, differences, and by how much the variance of a difference exceeds that of a night; the present
        night is the last.
    """
    counts = np.arange(LEAST_HISTORY, len(history) + 1, dtype=np.float64)
    noise = noise_of(history, LEAST_HISTORY)
    means = np.cumsum(history, axis=0)[LEAST_HISTORY - 1 :] / counts[:, None]
    values = np.vstack([history[LEAST_HISTORY:], tonight.mean(axis=0)])
    spread = 1.0 / counts + 1.0
    # What a night has in common, its processes share: repeats do not average it out.
    spread[-1], whole = spread[-1] + 1.0 / len(tonight) - 1.0, spread[-1]
    noise.common[-1] *= whole / spread[-1]
    return noise, np.where(usable, values - means, 0.0), spread


def _explained(away: Floats, noise: Noise, spread: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Generalised least squares: how far one thing moved in each night, and the standard error.

    The covariance is diagonal but for what all have in common, so that it is inverted by hand (Sherman and
    Morrison).
    """
    inverse = 1.0 / noise.own
    shared = noise.common / (1.0 + noise.common * inverse.sum(axis=1))
    along = inverse * direction
    weights = along - inverse * (shared * along.sum(axis=1))[:, None]
    known = weights @ direction
    return (weights * away).sum(axis=1) / known, np.sqrt(spread / known)


def _cusum(z: Floats) -> tuple[float, int]:
    """The larger of both CUSUMs at the end of the nights, with its sign, and for how many nights it rose."""
    up = down = 0.0
    up_since = down_since = 0
    for each in np.clip(z, -CAPPED, CAPPED).tolist():
        up, up_since = (up + each - SLACK, up_since + 1) if up + each > SLACK else (0.0, 0)
        down, down_since = (down - each - SLACK, down_since + 1) if down - each > SLACK else (0.0, 0)
    return (up, up_since) if up >= down else (-down, down_since)


def confirmed(nights: Floats, tonight: Floats, again: Floats) -> Finding | None:
    """Judges a night again, with its repeats in fresh processes.

    Args:
        nights: A row for each earlier night.
        tonight: The row of this night's own process.
        again: A row for each repeat.

    Returns:
        The finding of all processes together; None if the repeats alone do not point the same way.
    """
    found = examine(nights, np.vstack([tonight[None], again]))
    alone = examine(nights, again)
    if found is None or alone is None or found.moved not in alone.residuals:
        return None
    same_way = alone.residuals[found.moved].change * found.residual.change > 0
    return found if same_way else None


def discoveries(findings: Sequence[Finding | None]) -> list[bool]:
    """Which findings of a night are told, so that few of them are false.

    Benjamini and Hochberg over the problems (1995); a finding by its CUSUM counts by itself. Changes too small
    to matter are not told.

    Args:
        findings: One for each problem, after repeats; None where too little is known.
    """
    tests = [each for each in findings if each is not None]
    ordered = sorted(each.residual.p * len(each.residuals) for each in tests)
    limit = 0.0
    for rank, p in enumerate(ordered, 1):
        if p <= FALSE_DISCOVERIES * rank / len(findings):
            limit = p
    return [
        each is not None
        and abs(each.residual.change) >= LEAST_CHANGE[each.moved]
        and (each.residual.p * len(each.residuals) <= limit or (each.crept and each.residual.p < STILL_P))
        for each in findings
    ]
