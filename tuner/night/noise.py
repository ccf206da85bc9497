"""How much the times of a sentinel vary where nothing has changed, before its own nights tell.

The logarithm of each participant's time in a night is its level, plus what all have in common in that night,
plus its own share of the process (where arrays and code lie) and of the rounds. The figures were fitted to
recorded nights in which nothing changed: `scripts/bench/watch_power --fit` prints them, and docs/nights.md says
how far they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
