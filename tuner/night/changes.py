"""Did a problem's times change, and why? The sentinels of a board's nights in, alerts with a cause out.

A night's times are compared as ratios: the champion beside the others, the library beside the others, and all
beside the nights before. The nights are cut in two where that explains them best. What is suspect is repeated
in fresh processes before anything is said.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.lookup.answers import Question, tune_command
from tuner.night import stored
from tuner.night.sentinels import Watched
from tuner.night.stored import Sentinel
from tuner.results.distance import Floats
from tuner.results.measurement import BUSY_GPU, OTHERS_CORES, OTHERS_GPU, OTHERS_PROCESSES
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY
from tuner.store import Store
from tuner.study.crowns import Reign

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


# --- did it change? ------------------------------------


def levels(sentinel: Sentinel) -> Floats:
    """Logarithms of the participants' times, in `ORDER`; NaN for those without one.

    Each is the mean of the rounds' logarithms without the outermost tenths: rounds come in steps of the timer.
    """
    return np.array([_level(player.rounds_s) if player else np.nan for player in map(sentinel.player, ORDER)])


def _level(rounds_s: Sequence[float]) -> float:
    logs, cut = np.sort(np.log(rounds_s)), len(rounds_s) // 10
    return float(np.mean(logs[cut : len(logs) - cut]))


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


def _explanations(nights: Floats, passes: Floats) -> dict[str, Finding]:
    """What may have moved -> the best cut of the nights by it."""
    history = nights[-MOST_HISTORY:]
    timed = np.asarray(~np.isnan(np.vstack([history, passes])).any(axis=0), dtype=np.bool_)
    if len(history) < LEAST_HISTORY or not timed[0]:
        return {}
    history, passes = np.where(timed, history, 0.0), np.where(timed, passes, 0.0)
    movers = {moved: np.array(parts) * timed for moved, parts in RATIOS.items()}
    if not timed[1]:
        # Of two, the one whose own time moved more has moved.
        away = np.abs(passes.mean(axis=0) - history.mean(axis=0))
        del movers["library" if away[0] >= away[2] else "champion"]
    findings = {}
    for moved, parts in movers.items():
        ahead, others = np.maximum(parts, 0.0), np.maximum(-parts, 0.0)
        if ahead.any():
            weights = ahead / ahead.sum() - others / (others.sum() or 1.0)
            # What a night has in common, its passes share: repeats do not average it out.
            tonight = passes.mean(axis=0, keepdims=True) if moved == "all" else passes
            findings[moved] = _cut(moved, history @ weights, tonight @ weights)
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


def last_told(store: Store) -> dict[tuple[str, str], str]:
    """Problem in words and board -> beginning of the last night whose report told a change of it."""
    return {
        (problem["problem"], problem["board"]): event.data["begun_at"]
        for event in stored.events(store)
        if event.event == stored.ENDED
        for alert in (*event.data["alerts"], *event.data["improvements"])
        for problem in alert["problems"]
    }


def history(store: Store, tonight: Sentinel, told: Mapping[tuple[str, str], str]) -> list[Sentinel]:
    """The board's own nights of a problem before this one, without repeats, since the last change was told.

    Args:
        store: The database.
        tonight: The night's sentinel of the problem on the board.
        told: As from `last_told`.
    """
    board = tonight.device.uuid
    since = told.get((str(tonight.problem), board), "")
    return [
        night
        for night in stored.sentinels(store, tonight.problem, tonight.regime, since=since)
        if (night.process, night.device.uuid) == (1, board) and night.player(CHAMPION)
        if night.measured_at < tonight.measured_at
    ]


@dataclass(eq=False)
class ProblemNight:
    """One problem on one board in a night.

    Attributes:
        history: The nights before, the first first: the night's own sentinels since the last change.
        tonight: The night's own sentinel.
        again: Its repeats in fresh processes.
        watched: Who took part, and the champions; None for a night of old.
    """

    history: list[Sentinel]
    tonight: Sentinel
    again: list[Sentinel] = field(default_factory=list)
    watched: Watched | None = None

    @property
    def reign(self) -> Reign | None:
        """The problem's champions, as they were when this night began."""
        return self.watched.reign if self.watched else None

    @property
    def passes(self) -> tuple[Sentinel, ...]:
        """The night's own sentinel and its repeats."""
        return self.tonight, *self.again

    @property
    def new_config(self) -> bool:
        """True if the champion is another config or source than in the nights before."""
        return bool(self.history) and _who(self.history[-1], CHAMPION) != _who(self.tonight, CHAMPION)

    @property
    def new_code(self) -> bool:
        """True if the champion's machine code is another than in the nights before."""
        now, before = (night.player(CHAMPION) for night in (self.tonight, self.history[-1]))
        return bool(now and before and now.binary_hash and now.binary_hash != before.binary_hash)

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

    def is_behind(self, other: str, beyond: float = 0.0) -> bool:
        """True if the champion is slower than another, by more than a share, in all passes."""
        shifts = [night.shift(CHAMPION, other) for night in self.passes]
        return all(
            shift is not None and shift.verdict() == "slower" and shift.log_ratio >= math.log1p(beyond)
            for night, shift in zip(self.passes, shifts, strict=True)
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
        behind = self.is_behind(BEFORE) or self.is_behind(LIBRARY)
        return bool(self.wrong) or behind or (finding is not None and finding.suspect)

    @property
    def change(self) -> Finding | None:
        """The change that is told: it was repeated, and is certain.

        A new champion that is faster is no news here: its finals said so.
        """
        finding = self.finding if self.again else None
        if finding is None or not finding.is_told or (self.new_config and finding.change < 0):
            return None
        return finding

    @property
    def share(self) -> float:
        """Share by which the time changed; above 0 it is slower."""
        return math.expm1(self.change.change) if self.change else 0.0

    @property
    def since(self) -> str:
        """First night of the change: ISO 8601, UTC."""
        nights = [*self.history, self.tonight]
        return nights[-min(self.change.nights if self.change else 1, len(nights))].measured_at

    def version(self, name: str) -> str:
        """How the version of driver, library or compiler changed; empty if it did not."""
        before, now = (_version(night, name) for night in (self.history[-1], self.tonight))
        return "" if before == now else f"{before} and is {now}"

    def to_json(self) -> dict[str, Any]:
        """The change as a report has it."""
        now, change = self.tonight, self.change
        return {
            "problem": str(now.problem), "board": now.device.uuid, "change": self.share, "since": self.since,
            "moved": change.moved if change else CHAMPION, "wrong": self.wrong,
            "interval": change.interval if change else (0.0, 0.0),
            "crept": change is not None and change.nights > 1,
        }  # fmt: skip


def _who(sentinel: Sentinel, name: str) -> tuple[object, ...] | None:
    """Identity of a participant: kernel, config and source."""
    for player in sentinel.players:
        if player.name == name:
            return player.kernel, tuple(sorted(player.config.items())), player.source_hash
    return None


def _version(sentinel: Sentinel, name: str) -> str:
    champion = sentinel.player(CHAMPION)
    of_code = champion.compiler if champion is not None and name == "compiler" else ""
    return of_code or sentinel.versions.get(name) or "unknown"


# --- why? ----------------------------------------------

#: Causes, and what they are called.
CAUSES = {
    "neighbour": "something else ran on the same device",
    "clocks": "the device ran at other clocks",
    "driver": "the driver changed",
    "node": "the node or board became slower or faster as a whole",
    "vendor": "the library changed",
    "compiler": "the compiler makes other machine code of the same source",
    "config": "the champion is another config or source than before",
    "board": "the champion alone moved, with the same machine code and driver",
    "wrong": "the champion no longer computes the right result",
}
#: A clock that differs by this share tells something.
CLOCK_CHANGE = 0.005
#: Power beyond that of the nights before, at other problems, that only a neighbour explains.
POWER_CHANGE = 0.12
#: Others' processor time that counts, in cores.
BUSY_CORES = 0.5
#: Bits of NVML's reasons that are a throttle: power, thermal and hardware slowdowns (nvml.h, "clocks event
#: reasons"): software power cap, hardware slowdown, software and hardware thermal, power brake.
THROTTLES = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


def alerts_of(boards: Iterable[Sequence[ProblemNight]]) -> list[dict[str, Any]]:
    """The alerts of a night's boards as its report has them: one for each cause, however many problems it hit.

    Those that tell of the most problems come first.
    """
    groups: dict[tuple[str, str, bool], list[tuple[ProblemNight, str]]] = {}
    for night, power in itertools.chain.from_iterable(map(_changed, boards)):
        cause, why = next(causes_of(night, power))
        board = "" if cause in ("vendor", "compiler") else night.tonight.device.uuid
        groups.setdefault((cause, board, night.share > 0), []).append((night, why))
    alerts = [_alert(cause, slower, group) for (cause, _, slower), group in groups.items()]
    return sorted(alerts, key=lambda alert: (not alert["slower"], -len(alert["problems"])))


def _alert(cause: str, slower: bool, group: Sequence[tuple[ProblemNight, str]]) -> dict[str, Any]:
    nights = sorted((night for night, _ in group), key=lambda night: -abs(night.share))
    return {
        "cause": cause, "told": CAUSES[cause], "why": group[0][1], "slower": slower,
        "change": statistics.median_high(night.share for night in nights),
        "since": min(night.since for night in nights),
        "command": f"tuner watch explain {arguments(nights[0].tonight)}",
        "problems": [night.to_json() for night in nights],
    }  # fmt: skip


def arguments(sentinel: Sentinel) -> str:
    """A sentinel's problem as the command line takes it."""
    question = Question(sentinel.problem, sentinel.device, sentinel.regime)
    return tune_command(question).removeprefix("tuner tune ")


def _changed(nights: Sequence[ProblemNight]) -> Iterator[tuple[ProblemNight, float]]:
    """The problems of a board that changed, or whose champion is wrong, each with the power at others.

    That is the largest share by which the board drew more power there than in the nights before.
    """
    # Where one alone moved, the board's power is that one's own: another algorithm draws another power.
    power = {
        night: share
        for night in nights
        if (change := night.change) is None or change.moved == "all"
        if (share := _share_of_usual(night, "power_w", LEAST_HISTORY)) is not None
    }
    for night in nights:
        if night.change is not None or (night.wrong and all(again.players[0].wrong for again in night.again)):
            yield night, max((share for other, share in power.items() if other is not night), default=0.0)


def causes_of(night: ProblemNight, power: float) -> Iterator[tuple[str, str]]:
    """The causes that explain a change, what tells most first; the last explains any.

    Args:
        night: A problem that changed, or whose champion is wrong.
        power: Share by which the board drew more power at other problems than in the nights before.

    Yields:
        A key of `CAUSES`, and what led to it.
    """
    change = night.change
    if change is None:
        yield "wrong", night.wrong
        return
    is_alone, is_slower = change.moved == "champion", change.change > 0
    driver, library, compiler = map(night.version, ("driver", "library", "compiler"))
    clock = _share_of_usual(night, "sm_clock_hz") or 0.0
    if is_alone and night.new_config:
        yield "config", "the champion is another config or source than in the nights before"
    if is_alone and night.new_code:
        of = f"was {compiler}" if compiler else "is of the same version"
        yield "compiler", f"its machine code is new, of the same source and config; the compiler {of}"
    if is_alone and driver:
        yield "driver", f"the champion's machine code is the same; the driver was {driver}"
    if is_slower and _others(night.tonight) and not any(map(_others, night.history[-5:])):
        yield "neighbour", "others were seen on the device meanwhile"
    if is_slower and power >= POWER_CHANGE:
        yield "neighbour", f"the board drew {power:.0%} more power at other problems than in the nights before"
    if change.moved == "library":
        same = "although its version is the same: what it chooses has changed"
        yield "vendor", f"the library alone moved, {f'and it was {library}' if library else same}"
    if is_slower and _throttled(night.tonight) and not any(map(_throttled, night.history)):
        yield "clocks", "the device was throttled, and was not in the nights before"
    if abs(clock) >= CLOCK_CHANGE and clock * change.change < 0:
        yield "clocks", f"its clock was {clock:+.1%} of that in the nights before"
    if is_alone:
        yield "board", "the champion alone moved; its machine code, driver, clocks and neighbours are the same"
    if driver:
        yield "driver", f"champion and library moved alike, and the driver was {driver}"
    yield "node", "champion and library moved alike, with the same driver and clocks"


def _share_of_usual(night: ProblemNight, reading: str, least: int = 1) -> float | None:
    """Share by which a reading differs from that of the nights before; None if it was read too seldom."""
    usual = [value for sentinel in night.history if (value := sentinel.circumstance(reading))]
    value = night.tonight.circumstance(reading)
    return value / statistics.median(usual) - 1.0 if value and len(usual) >= least else None


def _throttled(sentinel: Sentinel) -> bool:
    reasons = sentinel.circumstances.get("throttle_reasons", ())
    return sum(bool(int(reason) & THROTTLES) for reason in reasons) > len(reasons) / 2


def _others(sentinel: Sentinel) -> bool:
    """True if other processes used the device or the cores meanwhile."""
    gpu, cores, processes = (
        sentinel.seen.get(name, 0.0) for name in (OTHERS_GPU, OTHERS_CORES, OTHERS_PROCESSES)
    )
    return gpu >= BUSY_GPU or cores > BUSY_CORES or processes > 0
