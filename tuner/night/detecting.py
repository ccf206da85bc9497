"""Did a problem's times change? One board's nights in, findings out; pure arithmetic.

A night's times are compared as ratios: the champion beside the others, the library beside the others, and all
beside the nights before. The nights are cut in two where that explains them best. What is suspect is repeated
in fresh processes before anything is said.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.results.measurement import MAD_TO_SIGMA
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Sentinel
from tuner.store import Store, watched

Floats = NDArray[np.float64]

#: Participants in the order of every vector here.
ORDER = (CHAMPION, BEFORE, LIBRARY)
#: What may have moved -> how much each participant counts, against the others: the library varies most.
RATIOS = {"champion": (1.0, -0.8, -0.2), "library": (-0.5, -0.5, 1.0), "all": (1 / 3, 1 / 3, 1 / 3)}
#: Expected deviation of these from night to night; it counts like so many nights.
SIGMA, PRIOR_NIGHTS = {"champion": 0.002, "library": 0.004, "all": 0.003}, 6.0
#: Nights that a comparison needs, and nights before the present that count, the latest ones.
LEAST_HISTORY, MOST_HISTORY = 5, 60
#: Passes, each in fresh processes, that repeat what is suspect.
REPEATS = 2
#: Standard errors beyond which a change is worth a repeat, and beyond which it is told.
SUSPECT, TOLD = 3.0, 6.0
#: Changes below this share are of no interest, however certain.
LEAST_CHANGE = {"champion": 0.003, "library": 0.003, "all": 0.01}


def levels(sentinel: Sentinel) -> Floats:
    """Logarithms of the participants' times, in `ORDER`; NaN for those without one.

    Each is the mean of the rounds' logarithms without the outermost tenths: rounds come in steps of the timer.
    """
    times = np.full(len(ORDER), np.nan)
    for place, name in enumerate(ORDER):
        player = sentinel.player(name)
        if player is not None:
            logs = np.sort(np.log(np.asarray(player.rounds_s)))
            cut = len(logs) // 10
            times[place] = np.mean(logs[cut : len(logs) - cut])
    return times


@dataclass(frozen=True)
class Finding:
    """The change of one problem's times that explains its nights best.

    Attributes:
        moved: ``champion``, ``library`` or ``all``.
        change: Change of the logarithm of the time.
        error: Its standard error.
        nights: For how many nights it has been there: 1 for a change of this night.
    """

    moved: str
    change: float
    error: float
    nights: int

    @property
    def certainty(self) -> float:
        """The change in standard errors."""
        return abs(self.change) / self.error

    @property
    def interval(self) -> tuple[float, float]:
        """Change with a confidence of 95 %, as a share of the time."""
        return math.expm1(self.change - 1.96 * self.error), math.expm1(self.change + 1.96 * self.error)

    @property
    def suspect(self) -> bool:
        """True if it is worth repeating in fresh processes."""
        return self.certainty > SUSPECT

    @property
    def is_told(self) -> bool:
        """True if it is certain, and large enough to matter."""
        return self.certainty > TOLD and abs(self.change) >= LEAST_CHANGE[self.moved]


def examine(nights: Floats, tonight: Floats, again: Floats | None = None) -> Finding | None:
    """Judges one problem's night on one board.

    Args:
        nights: A row for each earlier night, as from `levels`, the first first, since the last change that was
            said.
        tonight: The row of this night's own pass.
        again: A row for each repeat in fresh processes; None without repeats.

    Returns:
        The finding of all passes together; None while there are too few nights, if the champion was not timed,
        or if the repeats alone do not point the same way.
    """
    passes = tonight[None] if again is None else np.vstack([tonight[None], again])
    explanations = _explanations(nights, passes)
    finding = max(explanations.values(), key=lambda one: one.certainty, default=None)
    if finding is not None and again is not None:
        alone = _explanations(nights, again).get(finding.moved)
        return finding if alone and alone.change * finding.change > 0 else None
    return finding


def _explanations(nights: Floats, tonight: Floats) -> dict[str, Finding]:
    """What may have moved -> the best cut of the nights by it."""
    history = nights[-MOST_HISTORY:]
    timed = np.asarray(~np.isnan(np.vstack([history, tonight])).any(axis=0), dtype=np.bool_)
    if len(history) < LEAST_HISTORY or not timed[0]:
        return {}
    history, tonight = np.where(timed, history, 0.0), np.where(timed, tonight, 0.0)
    away = np.abs(tonight.mean(axis=0) - history.mean(axis=0))
    movers = dict(RATIOS)
    if not timed[1]:
        # Of two, the one whose own time moved more has moved.
        del movers["library" if away[0] >= away[2] else "champion"]
    findings = {}
    for moved, parts in movers.items():
        mine = np.array(parts) * timed
        ahead, others = np.maximum(mine, 0.0), np.maximum(-mine, 0.0)
        if not ahead.any():
            continue
        weights = ahead / ahead.sum() - (others / others.sum() if others.any() else 0.0)
        # What a night has in common, its passes share: repeats do not average it out.
        passes = tonight.mean(axis=0, keepdims=True) if moved == "all" else tonight
        findings[moved] = _cut(moved, history @ weights, passes @ weights)
    return findings


def _cut(moved: str, history: Floats, passes: Floats) -> Finding:
    """The cut that explains a series best, and the change there."""
    series = np.concatenate([history, passes])
    best = Finding(moved, 0.0, math.inf, 0)
    for first in range(LEAST_HISTORY, len(history) + 1):
        before, since = series[:first], series[first:]
        squares = PRIOR_NIGHTS * SIGMA[moved] ** 2 + before.var() * len(before) + since.var() * len(since)
        variance = squares / (PRIOR_NIGHTS + len(series) - 2)
        error = math.sqrt(variance * (1 / len(before) + 1 / len(since)))
        finding = Finding(moved, float(since.mean() - before.mean()), error, len(history) - first + 1)
        best = max(best, finding, key=lambda one: one.certainty)
    return best


#: Nights of a stretch at the least, and nights that are cut at all.
LEAST_STRETCH, LEAST_NIGHTS = 2, 6
#: Cost of a change point, in variances of a night, times the logarithm of the number of nights.
PENALTY = 6.0


def level_changes(values: Sequence[float]) -> list[tuple[int, float]]:
    """Cuts a series into stretches of equal level.

    Args:
        values: A logarithm for each night, the first first.

    Returns:
        Index of the first night of each stretch but the first, and the change of the mean there.
    """
    import ruptures  # type: ignore[import-untyped]

    if len(values) < LEAST_NIGHTS:
        return []
    series = np.asarray(values, dtype=np.float64)
    # The deviation of a night, from neighbours: a change of level hardly counts in it.
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(np.diff(series)))) / math.sqrt(2.0)
    search = ruptures.Pelt(model="l2", min_size=LEAST_STRETCH, jump=1).fit(series / (sigma or 1.0))
    cuts = search.predict(pen=PENALTY * math.log(len(series)))[:-1]
    means = [float(part.mean()) for part in np.split(series, cuts)]
    return [(cut, since - before) for cut, (before, since) in zip(cuts, itertools.pairwise(means), strict=True)]


def history_of(store: Store, tonight: Sentinel, changes: Mapping[tuple[str, str], str]) -> list[Sentinel]:
    """The board's own sentinels of earlier nights, since the last change of the problem that was told.

    Args:
        store: The database.
        tonight: The night's own sentinel.
        changes: As from `last_changes`.
    """
    since = changes.get((str(tonight.problem), tonight.device.uuid), "")
    stored = watched.sentinels(store, tonight.problem, tonight.regime, since=since)
    return [
        night
        for night in stored
        if night.process == 1 and night.night != tonight.night and night.device.uuid == tonight.device.uuid
        if night.measured_at < tonight.measured_at and night.player(CHAMPION) is not None
    ]


def last_changes(store: Store) -> dict[tuple[str, str], str]:
    """Problem in words and board -> the beginning of the night in which its last change was told."""
    changes: dict[tuple[str, str], str] = {}
    begun: dict[str, str] = {}
    for event in watched.events(store):
        if event.event == watched.BEGUN:
            begun[event.night] = event.at
            continue
        for alert in event.data.get("alerts", ()):
            for problem in alert["problems"]:
                changes[problem["problem"], problem["board"]] = begun.get(event.night, event.at)
    return changes


@dataclass(eq=False)
class ProblemNight:
    """One problem on one board in a night.

    Attributes:
        history: The nights before, the first first: the night's own sentinels since the last change.
        tonight: The night's own sentinel.
        again: Its repeats in fresh processes.
    """

    history: list[Sentinel]
    tonight: Sentinel
    again: list[Sentinel] = field(default_factory=list)

    @property
    def new_config(self) -> bool:
        """True if the champion is another config or source than in the nights before."""
        return bool(self.history) and _who(self.history[-1], CHAMPION) != _who(self.tonight, CHAMPION)

    @property
    def wrong(self) -> str:
        """What is wrong with the champion; empty if nothing is."""
        return next((player.wrong for player in self.tonight.players if player.name == CHAMPION), "")

    @property
    def finding(self) -> Finding | None:
        """How its times changed, with the repeats if there are some; None if they did not, or it is unknown."""
        again = [sentinel for sentinel in self.again if sentinel.player(CHAMPION)]
        if not self.history or not self.tonight.player(CHAMPION) or (self.again and not again):
            return None
        champion, before = (_who(self.history[-1], name) for name in (CHAMPION, BEFORE))
        changed = [number for number, night in enumerate(self.history) if _who(night, CHAMPION) != champion]
        nights = self._rows(self.history[changed[-1] + 1 if changed else 0 :], before)
        (tonight,) = self._rows([self.tonight], before)
        return examine(nights, tonight, self._rows(again, before) if again else None)

    @staticmethod
    def _rows(sentinels: Iterable[Sentinel], before: tuple[object, ...] | None) -> Floats:
        """A row of levels for each sentinel; another champion before than the usual one does not count."""
        here = np.array([True, False, True])
        return np.array(
            [np.where(here | (_who(night, BEFORE) == before), levels(night), np.nan) for night in sentinels]
        )

    @property
    def behind(self) -> str:
        """Whom the champion is slower than in all passes: ``before``, ``library`` or nobody."""
        passes = (self.tonight, *self.again)
        return next(
            (other for other in (BEFORE, LIBRARY) if all(one.verdict(other) == "slower" for one in passes)), ""
        )

    @property
    def was_behind(self) -> bool:
        """True if the same champion was slower than the same one before in the night before, too."""
        if not self.history:
            return False
        last = self.history[-1]
        same = all(_who(last, name) == _who(self.tonight, name) for name in (CHAMPION, BEFORE))
        return same and last.verdict(BEFORE) == "slower"

    @property
    def suspect(self) -> bool:
        """True if it is worth repeating in fresh processes."""
        finding = self.finding
        return bool(self.wrong) or bool(self.behind) or (finding is not None and finding.suspect)

    @property
    def change(self) -> Finding | None:
        """The change that is told: it was repeated, and is certain.

        A new champion that is faster is no news here: its finals said so.
        """
        finding = self.finding if self.again else None
        if finding is None or not finding.is_told or (self.new_config and finding.change < 0):
            return None
        return finding


def _who(sentinel: Sentinel, name: str) -> tuple[object, ...] | None:
    """Identity of a participant: kernel, config and source."""
    for player in sentinel.players:
        if player.name == name:
            return player.kernel, tuple(sorted(player.config.items())), player.source_hash
    return None
