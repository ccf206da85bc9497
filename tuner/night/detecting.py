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

from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Sentinel
from tuner.store import Store, watched

Floats = NDArray[np.float64]

#: Participants in the order of every vector here.
ORDER = (CHAMPION, BEFORE, LIBRARY)
#: Expected deviation of a kernel's time from process to process: at 10 us, and how it falls with the time.
KERNEL_SIGMA, FALLS_WITH = 0.0030, 0.5
#: Long runs reach the board's power limit, where clocks vary: it rises with the time beyond this one.
LONG_S, RISES_WITH = 1e-3, 0.5
#: It is never expected to be less or more.
LEAST_SIGMA, MOST_SIGMA = 0.0006, 0.0050
#: The library varies more by this factor.
LIBRARY_FACTOR = 2.0
#: Deviation of what all have in common: mostly clocks.
COMMON_SIGMA = 0.0020
#: Of a difference's variance, each of the two has at least this part.
LEAST_PART = 0.1
#: The expectation counts like so many nights.
PRIOR_NIGHTS = 6.0


@dataclass(frozen=True)
class Noise:
    """Variances of the logarithms of times from night to night, as each longer stretch of nights tells them.

    Attributes:
        own: A row for each stretch: of each participant of `ORDER`; infinite for one that does not take part.
        common: For each stretch: of what all have in common.
        freedom: For each stretch, how well they are known: degrees of freedom.
    """

    own: Floats
    common: Floats
    freedom: Floats


def levels(sentinel: Sentinel) -> Floats:
    """Logarithms of the participants' times, in `ORDER`; NaN for those without one."""
    found = np.full(len(ORDER), np.nan)
    for place, name in enumerate(ORDER):
        player = sentinel.player(name)
        if player is not None:
            found[place] = _middle(player.rounds_s)
    return found


def _middle(rounds_s: Sequence[float]) -> float:
    """Mean of the logarithms without the outermost tenths: rounds come in steps of the timer."""
    logs = np.sort(np.log(np.asarray(rounds_s)))
    cut = len(logs) // 10
    return float(np.mean(logs[cut : len(logs) - cut]))


def expected(times: Floats) -> Floats:
    """Expected variances of participants with these logarithms of times."""
    sigma = KERNEL_SIGMA * (np.exp(times) / 1e-5) ** -FALLS_WITH
    long = LEAST_SIGMA * np.maximum(np.exp(times) / LONG_S, 1.0) ** RISES_WITH
    sigma = np.clip(np.maximum(sigma, long), LEAST_SIGMA, MOST_SIGMA) * np.array([1.0, 1.0, LIBRARY_FACTOR])
    found: Floats = sigma**2
    return found


def noise_of(history: Floats, least: int) -> Noise:
    """The noise of one problem on one board, from its first `least` nights, from one more, and so on to all.

    Args:
        history: A row for each night, as from `levels`; NaN in all rows for who does not take part.
        least: Nights of the first stretch, 2 or more.
    """
    counts = np.arange(least, len(history) + 1, dtype=np.float64)
    weight = PRIOR_NIGHTS + counts - 1
    prior = expected(history.mean(axis=0))
    there = [place for place in range(len(ORDER)) if not np.isnan(prior[place])]

    def between(one: int, other: int) -> Floats:
        squares = _squares(history[:, one] - history[:, other], counts)
        found: Floats = (PRIOR_NIGHTS * (prior[one] + prior[other]) + squares) / weight
        return found

    own = np.full((len(counts), len(ORDER)), np.inf)
    for place in there:
        others = [each for each in there if each != place]
        if not others:
            own[:, place] = prior[place]
        elif len(others) == 1:
            own[:, place] = between(place, others[0]) * prior[place] / (prior[place] + prior[others[0]])
        else:
            first, second = between(place, others[0]), between(place, others[1])
            found = (first + second - between(*others)) / 2
            own[:, place] = np.maximum(found, LEAST_PART * np.minimum(first, second))
    squares = _squares(history[:, there].mean(axis=1), counts)
    explained = (counts - 1) * own[:, there].sum(axis=1) / len(there) ** 2
    common = (PRIOR_NIGHTS * COMMON_SIGMA**2 + np.maximum(squares - explained, 0.0)) / weight
    return Noise(own, common, weight)


def _squares(values: Floats, counts: Floats) -> Floats:
    """Sums of squares around the mean, of the first so many values."""
    centred = values - values[0]
    ends = counts.astype(int) - 1
    found: Floats = np.cumsum(centred**2)[ends] - np.cumsum(centred)[ends] ** 2 / counts
    return np.maximum(found, 0.0)


#: Nights of a stretch at the least, and nights that are cut at all.
LEAST_STRETCH, LEAST_NIGHTS = 2, 6
#: Cost of a change point, in variances of a night, times the logarithm of the number of nights.
PENALTY = 6.0


@dataclass(frozen=True)
class Stretch:
    """Nights of equal level.

    Attributes:
        first: Index of its first night.
        last: Index of its last night.
        level: Mean of the logarithms.
    """

    first: int
    last: int
    level: float


def stretches(values: Sequence[float]) -> list[Stretch]:
    """Cuts one series into stretches of equal level.

    Args:
        values: A logarithm for each night, the first first.
    """
    series = np.asarray(values, dtype=np.float64)
    ends = [len(series)]
    if len(series) >= LEAST_NIGHTS:
        ends = _cuts(series)
    starts = [0, *ends[:-1]]
    return [
        Stretch(start, end - 1, float(series[start:end].mean()))
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]


def _cuts(series: Floats) -> list[int]:
    import ruptures  # type: ignore[import-untyped]

    # The deviation of a night, from neighbours: a change of level hardly counts in it.
    sigma = float(np.median(np.abs(np.diff(series)))) * 1.4826 / np.sqrt(2.0)
    if sigma == 0.0:
        return [len(series)]
    penalty = PENALTY * np.log(len(series))
    search = ruptures.Pelt(model="l2", min_size=LEAST_STRETCH, jump=1).fit(series / sigma)
    return [int(each) for each in search.predict(pen=penalty)]


def history_of(store: Store, tonight: Sentinel, said: dict[tuple[str, str], str]) -> list[Sentinel]:
    """The board's own sentinels of earlier nights, since the last change of the problem that was said.

    Args:
        store: The database.
        tonight: The night's own sentinel.
        said: Problem in words and board -> when the last change was said.
    """
    since = said.get((str(tonight.problem), tonight.device.uuid), "")
    found = watched.sentinels(store, tonight.problem, tonight.regime, since=since)
    return [
        each
        for each in found
        if each.process == 1 and each.night != tonight.night and each.device.uuid == tonight.device.uuid
        if each.measured_at < tonight.measured_at and each.player(CHAMPION) is not None
    ]


def last_changes(store: Store) -> dict[tuple[str, str], str]:
    """Problem in words and board -> the beginning of the night in which its last change was said."""
    found: dict[tuple[str, str], str] = {}
    begun: dict[str, str] = {}
    for event in watched.events(store):
        if event.event == watched.BEGUN:
            begun[event.night] = event.at
            continue
        for alert in event.data.get("alerts", ()):
            for each in alert["problems"]:
                found[each["problem"], each["board"]] = begun.get(event.night, event.at)
    return found


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
