"""The sentinels of a night on all boards of a model: timed, stored, repeated where suspect, judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tuner.errors import DeviceTrouble
from tuner.night.analysing import Alert, Watch, alerts_of
from tuner.night.detecting import REPEATS, history_of, last_changes
from tuner.night.sentinels import CONFIRMING, Boards, Pass, Watched
from tuner.results.record import Champion, new_id
from tuner.results.sentinel import BEFORE, CHAMPION, Sentinel, Terms
from tuner.store import Store, watched
from tuner.study import crowns

#: A night goes back by itself only from a champion that is slower by this share in each of its passes.
GO_BACK_BEYOND = 0.02
#: Who says so.
BY_ITSELF = "tuner nightly"


def confirm_again(store: Store, watches: Iterable[Watch]) -> list[str]:
    """Confirms champions that won again in a fresh process, or notes that they did not.

    One that did not on one of several boards is not confirmed by another.

    Args:
        store: The database.
        watches: Of all boards of a model.

    Returns:
        The problems whose champion was confirmed, in words.
    """
    told: dict[str, list[tuple[bool, str]]] = {}
    champions: dict[str, Champion] = {}
    for watch in watches:
        now = watch.tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        champion = reign.champion
        if champion is None or champion.id in reign.rules.confirmed:
            continue
        won, why = has_won(watch, champion, reign)
        if won is not None:
            champions[champion.id] = champion
            told.setdefault(champion.id, []).append((won, why))
    for known, verdicts in told.items():
        # False comes first.
        crowns.confirm(store, champions[known], *min(verdicts), BY_ITSELF)
    won_again = (champions[known] for known, verdicts in told.items() if min(verdicts)[0])
    return [str(each.record.problem) for each in won_again]


def go_back(store: Store, watches: Iterable[Watch]) -> list[str]:
    """Goes back from champions that are slower than the one before in all passes of two nights in a row.

    Args:
        store: The database.
        watches: Of all boards of a model; each that timed a champion beside the one before must say so.

    Returns:
        What it went back from, in words.
    """
    places: dict[tuple[object, ...], list[Watch]] = {}
    for watch in watches:
        now = watch.tonight
        if now.shift(CHAMPION, BEFORE) is not None:
            places.setdefault((now.problem, now.device.name, now.regime), []).append(watch)
    found = []
    for beside in places.values():
        now = beside[0].tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        if reign.rules.pinned or reign.before is None or not all(map(goes_back, beside)):
            continue
        shifts = [shift for watch in beside if (shift := watch.tonight.shift(CHAMPION, BEFORE)) is not None]
        slower = min(each.log_ratio for each in shifts)
        passes = sum(1 + len(watch.again) for watch in beside)
        why = f"{slower:.1%} slower than the champion before, in each of {passes} passes, and in the last night"
        crowns.rollback(store, reign, why, BY_ITSELF)
        found.append(f"{now.problem}: {why}")
    return found


def goes_back(watch: Watch) -> bool:
    """True if the champion is slower than the one before in all passes of this night, and was in the last.

    All passes of a night share what the night does: only another one tells it from a champion's own slowness.
    """
    shifts = [each.shift(CHAMPION, BEFORE) for each in (watch.tonight, *watch.again)]
    far = all(each is not None and each.log_ratio >= math.log1p(GO_BACK_BEYOND) for each in shifts)
    return far and bool(watch.again) and watch.is_behind and watch.was_behind


def has_won(watch: Watch, champion: Champion, reign: crowns.Reign) -> tuple[bool | None, str]:
    """Whether a champion won again in a fresh process; None if that is not known yet.

    Against the one before it must be faster again; the first of a problem must be correct.
    """
    tonight = watch.tonight
    player = next((each for each in tonight.players if each.name == CHAMPION), None)
    record = champion.record
    if player is None or (player.kernel, dict(player.config)) != (record.kernel, dict(record.config)):
        return None, ""
    if player.wrong:
        return False, f"in a fresh process: {player.wrong}"
    if not player.rounds_s:
        return None, ""
    if reign.beaten is None:
        return True, "correct in a fresh process; there is no champion before it to beat"
    verdict = tonight.verdict(BEFORE)
    shift = tonight.shift(CHAMPION, BEFORE)
    if shift is None:
        return None, ""
    told = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    if verdict == "slower":
        return False, told
    return (True, told) if shift.high < 0 else (None, told)


@dataclass(frozen=True)
class Rules:
    """How a night watches.

    Attributes:
        terms: When a problem's sentinel stops.
        automatic: True to go back by itself to the champion before one that became slower than it.
    """

    terms: Terms = field(default_factory=Terms)
    automatic: bool = False

    @classmethod
    def of(cls, seconds: float, automatic: bool) -> Rules:
        """By a plan: seconds of each problem's rounds, and whether it goes back by itself."""
        return cls(Terms(seconds), automatic)


@dataclass
class Watching:
    """What the sentinels of a night came to.

    Attributes:
        night: Id of the night.
        sentinels: The night's own, of all boards, without repeats.
        alerts: What changed, and why.
        confirmed: Champions that won again, in words.
        rolled_back: What the night went back from by itself, in words.
        behind: Champions that are slower than the one before in every process of the night.
        left: Why problems were not timed.
        why_none: Why the night has no sentinels; empty if it has.
    """

    night: str = field(default_factory=new_id)
    sentinels: list[Sentinel] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    behind: list[Sentinel] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    why_none: str = ""


def joined(parts: Sequence[Watching], night: str) -> Watching:
    """What the sentinels of several models of device came to, as one.

    Args:
        parts: Of each model.
        night: Id of the night.
    """
    found = Watching(night)
    for name in ("sentinels", "alerts", "confirmed", "rolled_back", "behind", "left"):
        setattr(found, name, [each for part in parts for each in getattr(part, name)])
    if not found.sentinels:
        found.why_none = "; ".join(dict.fromkeys(filter(None, (part.why_none for part in parts))))
        found.why_none = found.why_none or "no board is there"
    return found


class NightWatch:
    """Times and judges sentinels on boards of one model."""

    def __init__(self, store: Store, boards: Boards, rules: Rules, say: Callable[[str], None]) -> None:
        """Opens nothing yet.

        Args:
            store: Where sentinels, and what was said of nights, are kept.
            boards: The boards.
            rules: How it watches.
            say: Is told what goes on.
        """
        self._store, self._boards, self._rules, self._say = store, boards, rules, say

    def run(self, chosen: Sequence[Watched], night: str) -> Watching:
        """Times all problems on all boards, and judges them.

        Args:
            chosen: The problems.
            night: Id of the night.

        Raises:
            DeviceTrouble: No board can be opened; what one of several cannot is told in `left`.
        """
        found = Watching(night)
        if not chosen:
            found.why_none = "no problem has a champion to watch yet"
            return found
        told = self._boards.timed(dict.fromkeys(self._boards.names, chosen), [self._pass(night, 1)])
        troubles = {name: each for name, each in told.items() if isinstance(each, DeviceTrouble)}
        first = {name: each[0] for name, each in told.items() if not isinstance(each, DeviceTrouble)}
        found.left += [f"{name}: {error}" for name, error in troubles.items()]
        if not first:
            raise next(iter(troubles.values()))
        of_boards = self._judged(first)
        self._repeat(of_boards, chosen, night)
        self._take(found, of_boards)
        return found

    def _pass(self, night: str, process: int) -> Pass:
        return Pass(night, process, self._rules.terms)

    def _judged(self, first: dict[str, list[Sentinel]]) -> dict[str, list[Watch]]:
        """Stores the night's own sentinels of each board, and compares them with the nights before."""
        for timed in first.values():
            watched.add(self._store, timed)
        said = last_changes(self._store)
        return {
            name: [Watch(history_of(self._store, each, said), each, []) for each in timed]
            for name, timed in first.items()
        }

    def _repeat(self, of_boards: dict[str, list[Watch]], chosen: Sequence[Watched], night: str) -> None:
        """Times again, in fresh processes, what is suspect."""
        suspects = {
            name: [(watch, what) for watch, what in zip(watches, chosen, strict=True) if watch.suspect]
            for name, watches in of_boards.items()
        }
        wanted = {name: [what for _, what in found] for name, found in suspects.items() if found}
        for name, problems in wanted.items():
            named = ", ".join(str(what.problem) for what in problems)
            self._say(f"{name}: repeated in fresh processes: {named}")
        passes = [self._pass(night, process) for process in range(2, 2 + REPEATS)]
        for name, told in self._boards.timed(wanted, passes).items() if wanted else ():
            for again in [] if isinstance(told, DeviceTrouble) else told:
                watched.add(self._store, again)
                for (watch, _), each in zip(suspects[name], again, strict=True):
                    watch.again.append(each)

    def _take(self, found: Watching, of_boards: dict[str, list[Watch]]) -> None:
        """Notes what all boards came to; champions that won are confirmed."""
        every = [watch for watches in of_boards.values() for watch in watches]
        found.sentinels = [each.tonight for each in every]
        found.left += [f"{each.tonight.problem}: {each.wrong}" for each in every if each.wrong]
        found.alerts = alerts_of({watches[0].tonight.device.uuid: watches for watches in of_boards.values()})
        found.behind = [each.tonight for each in every if each.again and each.is_behind]
        found.confirmed = confirm_again(self._store, every)
        if self._rules.automatic:
            found.rolled_back = go_back(self._store, every)

    def confirm(self, chosen: Sequence[Watched], night: str) -> list[str]:
        """Has new champions win again in a fresh process on the first board.

        Args:
            chosen: Their problems.
            night: Id of the night.

        Returns:
            The problems whose champion was confirmed, in words.

        Raises:
            DeviceTrouble: The board cannot be used.
        """
        if not chosen:
            return []
        name = self._boards.names[0]
        again = Pass(night, CONFIRMING, self._rules.terms, processes=1)
        told = self._boards.timed({name: chosen}, [again])[name]
        if isinstance(told, DeviceTrouble):
            raise told
        watched.add(self._store, told[0])
        return confirm_again(self._store, [Watch([], each, []) for each in told[0]])
