"""The sentinels of a night on all its boards: timed, stored, repeated where suspect, judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble
from tuner.results.record import Champion, new_id
from tuner.results.sentinel import BEFORE, CHAMPION, Sentinel, Terms
from tuner.store import Store, watched
from tuner.study.session import open_workers
from tuner.watch import crowns
from tuner.watch.analysing import Watch, evidence
from tuner.watch.causes import Alert, Evidence, alerts
from tuner.watch.code import Code, Watched
from tuner.watch.detecting import REPEATS
from tuner.watch.timing import Pass

#: Who says so in entries of the crown log that a night makes by itself.
BY_ITSELF = "tuner nightly"


@dataclass(frozen=True)
class Rules:
    """How a night watches.

    Attributes:
        terms: When a problem's sentinel stops.
        automatic: True to go back by itself to the champion before one that became slower than it.
    """

    terms: Terms = field(default_factory=Terms)
    automatic: bool = False


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


class NightWatch:
    """Times and judges sentinels on boards of one model."""

    def __init__(
        self, store: Store, boards: Sequence[DetectedDevice], rules: Rules, say: Callable[[str], None]
    ) -> None:
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
        of_boards: dict[str, list[Watch]] = {}
        troubles: list[DeviceTrouble] = []
        for board in self._boards:
            try:
                of_boards[board.info.uuid] = self._board(board, chosen, night)
            except DeviceTrouble as error:
                troubles.append(error)
                found.left.append(f"{board.spec}: {error}")
        if not of_boards:
            raise troubles[0]
        every = [watch for watches in of_boards.values() for watch in watches]
        found.sentinels = [each.tonight for each in every]
        found.left += [f"{each.tonight.problem}: {each.wrong}" for each in every if each.wrong]
        found.alerts = alerts(_judged(of_boards))
        found.behind = [each.tonight for each in every if each.again and each.behind() == BEFORE]
        self._crown(every, found)
        return found

    def _board(self, board: DetectedDevice, chosen: Sequence[Watched], night: str) -> list[Watch]:
        with open_workers([board]) as (worker,):
            code = Code(board.opening, worker.info.architecture)
        code.compile(chosen)
        timed = Pass(night, 1, self._rules.terms).over(board, code, chosen)
        watched.add(self._store, timed)
        said = last_changes(self._store)
        watches = [Watch(history_of(self._store, each, said), each, []) for each in timed]
        suspects = [(watch, what) for watch, what in zip(watches, chosen, strict=True) if watch.suspect]
        if suspects:
            names = ", ".join(str(what.problem) for _, what in suspects)
            self._say(f"{board.spec}: repeated in fresh processes: {names}")
        for process in range(2, 2 + REPEATS if suspects else 2):
            again = Pass(night, process, self._rules.terms).over(board, code, [what for _, what in suspects])
            watched.add(self._store, again)
            for (watch, _), each in zip(suspects, again, strict=True):
                watch.again.append(each)
        return watches

    def _crown(self, watches: Iterable[Watch], found: Watching) -> None:
        """Confirms champions that won again, and goes back by itself if the plan says so."""
        for watch in watches:
            reign = crowns.reign(
                self._store, watch.tonight.problem, watch.tonight.device.name, watch.tonight.regime
            )
            champion = reign.champion
            if champion is None or champion.id in (reign.rules.pinned, *reign.rules.confirmed):
                continue
            won, why = has_won(watch, champion, reign)
            if won is not None:
                crowns.confirm(self._store, champion, won, why, BY_ITSELF)
            if won:
                found.confirmed.append(str(watch.tonight.problem))
        for watch in watches if self._rules.automatic else ():
            self._go_back(watch, found)

    def _go_back(self, watch: Watch, found: Watching) -> None:
        """Goes back to the champion before if this one is slower in the night's process and all its repeats."""
        tonight = watch.tonight
        reign = crowns.reign(self._store, tonight.problem, tonight.device.name, tonight.regime)
        if len(watch.again) < REPEATS or watch.behind() != BEFORE or reign.rules.pinned or not reign.before:
            return
        shift = tonight.shift(CHAMPION, BEFORE)
        assert shift is not None, "it was timed, since it is behind"
        why = f"{shift.log_ratio:.1%} slower than the champion before in each of {1 + REPEATS} processes"
        crowns.rollback(self._store, reign, why, BY_ITSELF)
        found.rolled_back.append(f"{tonight.problem}: {why}")


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
    if reign.before is None:
        return True, "correct in a fresh process; there is no champion before it"
    verdict = tonight.verdict(BEFORE)
    shift = tonight.shift(CHAMPION, BEFORE)
    if shift is None:
        return None, ""
    told = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    if verdict == "slower":
        return False, told
    return (True, told) if shift.high < 0 else (None, told)


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


def _judged(of_boards: dict[str, list[Watch]]) -> list[Evidence]:
    """The evidence of all boards; each is told what the others did."""
    alone = {board: evidence(watches, {}) for board, watches in of_boards.items()}
    found = []
    for board, watches in of_boards.items():
        others = [each for other, told in alone.items() if other != board for each in told]
        elsewhere = {
            str(watch.tonight.problem): any(
                each.problem == str(watch.tonight.problem) and each.moved == "all" for each in others
            )
            for watch in watches
            if len(of_boards) > 1
        }
        found += evidence(watches, elsewhere)
    return found
