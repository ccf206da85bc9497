"""The sentinels of a night: timed before it tunes, stored, repeated where suspect, judged."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, TunerError
from tuner.night.causes import Alert, ProblemNight, alerts_of
from tuner.night.detecting import REPEATS, history_of, last_changes
from tuner.night.plan_items import Plan, PlanItem
from tuner.night.sentinels import CONFIRMING, Boards, LocalBoards, Pass, Watched, choose
from tuner.results.record import Champion, new_id, utc_now
from tuner.results.sentinel import BEFORE, CHAMPION, Sentinel, Terms
from tuner.store import Store, watched
from tuner.study import crowns

if TYPE_CHECKING:
    from tuner.night.plan_schema import WatchTable

#: A night goes back by itself only from a champion that is slower by this share in each of its passes.
GO_BACK_BEYOND = 0.02
#: Who says so.
BY_ITSELF = "tuner nightly"
#: Share of a night's time that sentinels may take, and what they cost beside their rounds: seconds to begin,
#: and for each problem, for arrays and checks.
SHARE, BEGIN_S, BESIDE_S = 0.1, 15.0, 0.6
#: Seconds that it takes to begin to confirm new champions.
CONFIRM_BEGIN_S = 5.0


@dataclass
class NightWatch:
    """The sentinels of a night, which begin it, and what they came to.

    Attributes:
        store: The database.
        boards: The night's boards on this machine, of one model.
        plan: The plan's file, in words.
        settings: What is timed, and whether to go back by itself to the champion before one that became slower.
        say: Is told what goes on.
        night: Id of the night.
        sentinels: The night's own, of all boards, without repeats.
        alerts: What changed, and why.
        confirmed: Champions that won again, in words.
        rolled_back: What the night went back from by itself, in words.
        behind: Champions that are slower than the one before in every pass of the night.
        left: Why problems were not timed.
        why_none: Why the night has no sentinels; empty if it has.
        begun_s: When it began, by `time.monotonic`.
        begun_at: The same: ISO 8601, UTC.
    """

    store: Store
    boards: Sequence[DetectedDevice]
    plan: str
    settings: WatchTable
    say: Callable[[str], None]
    night: str = field(default_factory=new_id)
    sentinels: list[Sentinel] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    behind: list[Sentinel] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    why_none: str = ""
    begun_s: float = field(default_factory=time.monotonic, init=False)
    begun_at: str = field(default_factory=utc_now, init=False)
    _candidates: Sequence[PlanItem] = field(default=(), init=False)
    _until_s: float = field(default=math.inf, init=False)
    _noted: bool = field(default=False, init=False)

    def note(self) -> None:
        """Notes that the night has begun; only the first time counts."""
        if not self._noted:
            boards = [board.info.uuid for board in self.boards]
            begun = {"plan": self.plan, "host": platform.node(), "boards": boards}
            watched.note(self.store, watched.NightEvent(self.night, watched.BEGUN, begun, at=self.begun_at))
            self._noted = True

    def begin(self, plan: Plan, left_s: float = math.inf, models: Sequence[Boards] | None = None) -> None:
        """Notes the beginning, and times and judges the sentinels; no trouble with them ends the night.

        Args:
            plan: Its problems may be watched.
            left_s: Seconds that the night has.
            models: Boards of each model; by default those of this machine.
        """
        self.note()
        self._candidates = list({(item.problem, item.regime): item for item in plan.items}.values())
        self._until_s = time.monotonic() + left_s
        most = min(self.settings.problems, self._affordable(SHARE * left_s - BEGIN_S))
        if most == 0:
            short = f"{left_s:.0f} s are too short for them"
            self.why_none = short if self.settings.problems else "the plan asks for none"
            return
        troubles = [
            self._watch(boards, most) for boards in ([LocalBoards(self.boards)] if models is None else models)
        ]
        why_none = "; ".join(dict.fromkeys(filter(None, troubles))) or "no board is there"
        self.why_none = "" if self.sentinels else why_none

    def _affordable(self, seconds: float) -> int:
        """How many problems some seconds hold."""
        each_s = self.settings.seconds + BESIDE_S
        return len(self._candidates) if math.isinf(seconds) else max(0, int(seconds / each_s))

    def _watch(self, boards: Boards, most: int) -> str:
        """Times and judges sentinels on boards of a model; returns why there are none."""
        device = boards.info
        uses = {wanted.problem: wanted.saves_s for wanted in watched.demand(self.store, device=device.name)}
        chosen, left = choose(self.store, device, self._candidates, uses, most)
        why = "" if chosen else "no problem has a champion to watch yet"
        try:
            if chosen:
                self._judge(self._timed(boards, chosen))
        except DeviceTrouble as error:
            why = f"the device cannot be used: {error}"
        except TunerError as error:
            why = str(error)
        self.left += left
        return why

    def _timed(self, boards: Boards, chosen: Sequence[Watched]) -> dict[str, list[ProblemNight]]:
        """Times and stores the sentinels of each board, and again, in fresh processes, what is suspect.

        Raises:
            DeviceTrouble: No board can be opened; what one of several cannot is told in `left`.
        """
        answers = boards.timed(dict.fromkeys(boards.names, chosen), [self._pass(1)])
        troubles = {name: answer for name, answer in answers.items() if isinstance(answer, DeviceTrouble)}
        if len(troubles) == len(answers):
            raise next(iter(troubles.values()))
        self.left += [f"{name}: {error}" for name, error in troubles.items()]
        first = {name: answer[0] for name, answer in answers.items() if not isinstance(answer, DeviceTrouble)}
        for sentinels in first.values():
            watched.add(self.store, sentinels)
        changes = last_changes(self.store)
        nights = {
            name: [ProblemNight(history_of(self.store, sentinel, changes), sentinel) for sentinel in sentinels]
            for name, sentinels in first.items()
        }
        self._repeat(boards, nights, chosen)
        return nights

    def _repeat(self, boards: Boards, nights: dict[str, list[ProblemNight]], chosen: Sequence[Watched]) -> None:
        suspects = {
            name: [(night, what) for night, what in zip(problems, chosen, strict=True) if night.suspect]
            for name, problems in nights.items()
        }
        wanted = {name: [what for _, what in pairs] for name, pairs in suspects.items() if pairs}
        if not wanted:
            return
        for name, problems in wanted.items():
            self.say(
                f"{name}: repeated in fresh processes: {', '.join(str(what.problem) for what in problems)}"
            )
        passes = [self._pass(process) for process in range(2, 2 + REPEATS)]
        for name, answer in boards.timed(wanted, passes).items():
            for sentinels in [] if isinstance(answer, DeviceTrouble) else answer:
                watched.add(self.store, sentinels)
                for (night, _), sentinel in zip(suspects[name], sentinels, strict=True):
                    night.again.append(sentinel)

    def _pass(self, process: int, processes: int | None = None) -> Pass:
        made = Pass(self.night, process, Terms(self.settings.seconds))
        return made if processes is None else Pass(made.night, process, made.terms, processes)

    def _judge(self, of_boards: Mapping[str, Sequence[ProblemNight]]) -> None:
        """Notes what all boards of a model came to; champions that won are confirmed."""
        nights = [night for board in of_boards.values() for night in board]
        self.sentinels += [night.tonight for night in nights]
        self.left += [f"{night.tonight.problem}: {night.wrong}" for night in nights if night.wrong]
        self.alerts += alerts_of({board[0].tonight.device.uuid: board for board in of_boards.values()})
        self.behind += [night.tonight for night in nights if night.again and night.behind == BEFORE]
        self.confirmed += confirm_again(self.store, nights)
        if self.settings.rollback == "automatic":
            self.rolled_back += go_back(self.store, nights)

    def versions(self) -> Mapping[str, str] | None:
        """Versions of compiler, driver and library as the open device told them; None if it told nothing."""
        return dict(self.sentinels[0].versions) if self.sentinels else None

    def confirm_new(self, problems: Sequence[Mapping[str, Any]]) -> None:
        """Has this night's new champions win again in a fresh process, while there is time.

        The sentinels of the next night confirm the others.

        Args:
            problems: What the night's problems came to, as JSON.
        """
        new = [result for result in problems if result["state"] == "tuned" and result["verdict"] in NEW]
        fresh = [item for item in self._candidates if any(_is_of(item, result) for result in new)]
        most = self._affordable(self._until_s - time.monotonic() - CONFIRM_BEGIN_S)
        if not self.boards or not fresh or not most:
            return
        chosen, _ = choose(self.store, self.boards[0].info, fresh, {}, most)
        boards = LocalBoards(self.boards[:1])
        try:
            again = boards.timed(dict.fromkeys(boards.names, chosen), [self._pass(CONFIRMING, 1)])
            (answer,) = again.values()
            if isinstance(answer, DeviceTrouble):
                raise answer
            watched.add(self.store, answer[0])
            self.confirmed += confirm_again(self.store, [ProblemNight([], each) for each in answer[0]])
        except TunerError as error:
            self.say(f"new champions were not confirmed: {error}")


#: Verdicts on a champion that did not reign before.
NEW = ("first", "faster")


def _is_of(item: PlanItem, problem: Mapping[str, Any]) -> bool:
    """True if an item is the problem of a night's result."""
    named = {**item.problem.to_json(), "regime": item.regime}
    return all(problem.get(name) == value for name, value in named.items())


def confirm_again(store: Store, nights: Iterable[ProblemNight]) -> list[str]:
    """Confirms champions that won again in a fresh process, or notes that they did not.

    One that did not on one of several boards is not confirmed by another.

    Args:
        store: The database.
        nights: Of all boards of a model.

    Returns:
        The problems whose champion was confirmed, in words.
    """
    verdicts: dict[str, list[tuple[bool, str]]] = {}
    champions: dict[str, Champion] = {}
    for night in nights:
        now = night.tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        champion = reign.champion
        if champion is None or champion.id in reign.rules.confirmed:
            continue
        won, why = has_won(now, champion, reign)
        if won is not None:
            champions[champion.id] = champion
            verdicts.setdefault(champion.id, []).append((won, why))
    for known, of_boards in verdicts.items():
        # False comes first.
        crowns.confirm(store, champions[known], *min(of_boards), BY_ITSELF)
    return [str(champions[known].record.problem) for known, of_boards in verdicts.items() if min(of_boards)[0]]


def has_won(sentinel: Sentinel, champion: Champion, reign: crowns.Reign) -> tuple[bool | None, str]:
    """Whether a champion won again in a fresh process; None if that is not known yet.

    Against the one before it must be faster again; the first of a problem must be correct.
    """
    player = next((each for each in sentinel.players if each.name == CHAMPION), None)
    record = champion.record
    if player is None or (player.kernel, dict(player.config)) != (record.kernel, dict(record.config)):
        return None, ""
    if player.wrong:
        return False, f"in a fresh process: {player.wrong}"
    if reign.beaten is None:
        told = "correct in a fresh process; there is no champion before it to beat"
        return (True, told) if player.rounds_s else (None, "")
    shift = sentinel.shift(CHAMPION, BEFORE)
    if shift is None:
        return None, ""
    verdict = sentinel.verdict(BEFORE)
    told = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    if verdict == "slower":
        return False, told
    return (True if shift.high < 0 else None), told


def go_back(store: Store, nights: Iterable[ProblemNight]) -> list[str]:
    """Goes back from champions that are slower than the one before in all passes of two nights in a row.

    Args:
        store: The database.
        nights: Of all boards of a model; each that timed a champion beside the one before must say so.

    Returns:
        What it went back from, in words.
    """
    of_places: dict[tuple[object, ...], list[ProblemNight]] = {}
    for night in nights:
        now = night.tonight
        if now.shift(CHAMPION, BEFORE) is not None:
            of_places.setdefault((now.problem, now.device.name, now.regime), []).append(night)
    rolled_back = []
    for beside in of_places.values():
        now = beside[0].tonight
        reign = crowns.reign(store, now.problem, now.device.name, now.regime)
        if reign.rules.pinned or reign.before is None or not all(map(goes_back, beside)):
            continue
        slower = min(shift.log_ratio for night in beside if (shift := night.tonight.shift(CHAMPION, BEFORE)))
        passes = sum(1 + len(night.again) for night in beside)
        why = f"{slower:.1%} slower than the champion before, in each of {passes} passes, and in the last night"
        crowns.rollback(store, reign, why, BY_ITSELF)
        rolled_back.append(f"{now.problem}: {why}")
    return rolled_back


def goes_back(night: ProblemNight) -> bool:
    """True if the champion is slower than the one before in all passes of this night, and was in the last.

    All passes of a night share what the night does: only another one tells it from a champion's own slowness.
    """
    shifts = [each.shift(CHAMPION, BEFORE) for each in (night.tonight, *night.again)]
    far = all(each is not None and each.log_ratio >= math.log1p(GO_BACK_BEYOND) for each in shifts)
    return far and bool(night.again) and night.behind == BEFORE and night.was_behind
