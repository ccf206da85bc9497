"""The sentinels of a night: timed before it tunes, stored, repeated where suspect, judged."""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, TunerError
from tuner.night import stored
from tuner.night.changes import (
    REPEATS,
    Alert,
    ProblemNight,
    ToldChanges,
    alerts_of,
    arguments,
    own_nights,
    told_changes,
)
from tuner.night.plan import Plan, PlanItem
from tuner.night.sentinels import CONFIRMING, PROCESSES, Boards, LocalBoards, Pass, Watched, choose
from tuner.night.stored import Sentinel
from tuner.night.work import NightItem
from tuner.results.record import Champion, new_id, utc_now
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY, Terms
from tuner.store import Store, watched
from tuner.study import crowns

#: A night goes back by itself only from a champion that is slower by this share in each of its passes.
GO_BACK_BEYOND = 0.02
#: The library answers in place of a champion that is slower by this share in each pass of a night, ...
BEHIND_LIBRARY = 0.03
#: ... unless its error is this multiple of that at the champion's finals, which fresh inputs do not explain.
LESS_EXACT = 4.0
#: Who says so.
BY_ITSELF = "tuner nightly"
#: Share of a night's time that sentinels may take, and what they cost beside their rounds: seconds to begin,
#: and for each problem, for arrays and checks.
SHARE, BEGIN_S, BESIDE_S = 0.1, 15.0, 0.6
#: Seconds that it takes to begin to confirm new champions.
CONFIRM_BEGIN_S = 5.0
#: Verdicts on a champion that did not reign before.
NEW = ("first", "faster")


@dataclass
class NightWatch:
    """The sentinels of a night, and what they came to. That the night has begun is noted at once.

    Attributes:
        store: The database.
        boards: The night's boards on this machine, of one model.
        plan: Its problems may be watched; its table [watch] says how.
        say: Is told what goes on.
        alone: True for a watch, after which nothing is tuned.
        why_none: Why the night has no sentinels; empty if it has.
        night: Id of the night.
        sentinels: The night's own, of all boards, without repeats.
        alerts: What changed, and why.
        confirmed: Champions that won again, in words.
        rolled_back: What the night went back from by itself, in words.
        behind: Champions that are slower than the one before, or the library, in every pass of the night:
            ``problem``, ``board``, ``behind``, what is ``told`` of it, and the ``command`` that helps.
        left: Why problems were not timed.
        begun_s: When it began, by `time.monotonic`.
        begun_at: The same: ISO 8601, UTC.
    """

    store: Store
    boards: Sequence[DetectedDevice]
    plan: Plan
    say: Callable[[str], None]
    alone: bool = False
    why_none: str = ""
    night: str = field(default_factory=new_id)
    sentinels: list[Sentinel] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    behind: list[dict[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic, init=False)
    begun_at: str = field(default_factory=utc_now, init=False)
    _until_s: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        boards = [board.info.uuid for board in self.boards]
        plan, host = str(self.plan.path), platform.node()
        begun: dict[str, Any] = {"plan": plan, "host": host, "boards": boards, "watch": self.alone}
        stored.note(self.store, stored.NightEvent(self.night, stored.BEGUN, begun, at=self.begun_at))

    def begin(self, left_s: float = math.inf, models: Sequence[Boards] | None = None) -> None:
        """Times and judges the sentinels; no trouble with them ends the night.

        Args:
            left_s: Seconds that the night has.
            models: Boards of each model; by default those of this machine.
        """
        self._until_s = time.monotonic() + left_s
        candidates = list({(item.problem, item.regime): item for item in self.plan.items}.values())
        most = min(self.plan.watch.problems, self._affordable(SHARE * left_s - BEGIN_S, len(candidates)))
        if most == 0:
            short = f"{left_s:.0f} s are too short for them"
            self.why_none = short if self.plan.watch.problems else "the plan asks for none"
            return
        troubles = [
            self._watch(boards, candidates, most)
            for boards in ([LocalBoards(self.boards)] if models is None else models)
        ]
        why_none = "; ".join(dict.fromkeys(filter(None, troubles))) or "no board is there"
        self.why_none = "" if self.sentinels else why_none

    def _affordable(self, seconds: float, problems: int) -> int:
        """How many of some problems some seconds hold."""
        one_s = self.plan.watch.seconds + BESIDE_S
        return problems if math.isinf(seconds) else max(0, int(seconds / one_s))

    def _watch(self, boards: Boards, candidates: Sequence[PlanItem], most: int) -> str:
        """Times and judges sentinels on boards of a model; returns why there are none."""
        device, why = boards.info, ""
        uses = {wanted.problem: wanted.saves_s for wanted in watched.demand(self.store, device=device.name)}
        chosen, left = choose(self.store, device, candidates, uses, most)
        try:
            if not chosen:
                return "no problem has a champion to watch yet"
            self._judge(self._timed(boards, chosen))
        except DeviceTrouble as error:
            why = f"the device cannot be used: {error}"
        except TunerError as error:
            why = str(error)
        finally:
            self.left += left
        return why

    def _timed(self, boards: Boards, chosen: Sequence[Watched]) -> list[list[ProblemNight]]:
        """Times and stores the sentinels of each board, and again, in fresh processes, what is suspect.

        Raises:
            DeviceTrouble: No board can be opened; what one of several cannot is told in `left`.
        """
        first = self._passed(boards, dict.fromkeys(boards.names, chosen), [self._pass(1)])
        told = told_changes(self.store)
        nights = {
            name: [ProblemNight(self._history(night, told), night) for night in sentinels]
            for name, (sentinels,) in first.items()
        }
        suspects: dict[str, list[tuple[ProblemNight, Watched]]] = {}
        for name, problems in nights.items():
            pairs = [pair for pair in zip(problems, chosen, strict=True) if pair[0].suspect]
            if pairs:
                suspects[name] = pairs
                names = ", ".join(str(problem.problem) for _, problem in pairs)
                self.say(f"{name}: repeated in fresh processes: {names}")
        wanted = {name: [problem for _, problem in pairs] for name, pairs in suspects.items()}
        repeats = [self._pass(process) for process in range(2, 2 + REPEATS)]
        for name, passes in self._passed(boards, wanted, repeats).items():
            for (night, _), *again in zip(suspects[name], *passes, strict=True):
                night.again = again
        return list(nights.values())

    def _history(self, tonight: Sentinel, told: ToldChanges) -> list[Sentinel]:
        """The board's own nights of a problem before this one, since the last change that was told."""
        since = max(told.get((str(tonight.problem), tonight.device.uuid), {"": 0.0}))
        nights = own_nights(self.store, tonight, since)
        return [night for night in nights if night.measured_at < tonight.measured_at]

    def _passed(
        self, boards: Boards, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]
    ) -> dict[str, list[list[Sentinel]]]:
        """Times problems on boards, and stores the sentinels.

        Raises:
            DeviceTrouble: No board can be used; what one of several cannot is told in `left`.
        """
        answers = boards.timed(wanted, passes) if wanted else {}
        troubles = {name: answer for name, answer in answers.items() if isinstance(answer, DeviceTrouble)}
        timed = {name: answer for name, answer in answers.items() if not isinstance(answer, DeviceTrouble)}
        if troubles and not timed:
            raise next(iter(troubles.values()))
        self.left += [f"{name}: {error}" for name, error in troubles.items()]
        for answer in timed.values():
            stored.add(self.store, itertools.chain(*answer))
        return timed

    def _pass(self, process: int, processes: int = PROCESSES) -> Pass:
        return Pass(self.night, process, Terms(self.plan.watch.seconds), processes)

    def _judge(self, boards: Sequence[Sequence[ProblemNight]]) -> None:
        """Notes what all boards of a model came to; champions that won are confirmed."""
        nights = list(itertools.chain(*boards))
        self.sentinels += [night.tonight for night in nights]
        self.left += [f"{night.tonight.problem}: {night.wrong}" for night in nights if night.wrong]
        self.alerts += alerts_of(boards)
        self.behind += [_behind(night, BEFORE) for night in nights if night.again and night.is_behind(BEFORE)]
        self.behind += behind_library(self.store, nights)
        self.confirmed += confirm_again(self.store, nights)
        if self.plan.watch.rollback == "automatic":
            self.rolled_back += go_back(self.store, nights)

    def versions(self) -> Mapping[str, str] | None:
        """Versions of compiler, driver and library as the open device told them; None if it told nothing."""
        return dict(self.sentinels[0].versions) if self.sentinels else None

    def confirm_new(self, new: Sequence[NightItem]) -> None:
        """Has this night's new champions win again in a fresh process, while there is time.

        The sentinels of the next night confirm the others.

        Args:
            new: The problems with a new champion.
        """
        most = self._affordable(self._until_s - time.monotonic() - CONFIRM_BEGIN_S, len(new))
        if not self.boards or not new or not most:
            return
        try:
            boards = LocalBoards(self.boards[:1])
            chosen, _ = choose(self.store, boards.info, [item.item for item in new], {}, most)
            again = self._passed(boards, dict.fromkeys(boards.names, chosen), [self._pass(CONFIRMING, 1)])
            nights = [ProblemNight([], night) for (sentinels,) in again.values() for night in sentinels]
            self.confirmed += confirm_again(self.store, nights)
        except TunerError as error:
            self.say(f"new champions were not confirmed: {error}")


def confirm_again(store: Store, nights: Iterable[ProblemNight]) -> list[str]:
    """Confirms champions that won again in a fresh process, or notes that they did not.

    One that did not on one of several boards is not confirmed by another.

    Args:
        store: The database.
        nights: Of all boards of a model.

    Returns:
        The problems whose champion was confirmed, in words.
    """
    verdicts: dict[str, tuple[bool, str]] = {}
    champions: dict[str, Champion] = {}
    for reign, night in _reigns(store, nights):
        champion = reign.champion
        verdict = (
            has_won(night.tonight, reign) if champion and champion.id not in reign.rules.confirmed else None
        )
        if champion is not None and verdict is not None:
            champions[champion.id] = champion
            verdicts[champion.id] = min(verdicts.get(champion.id, verdict), verdict)  # False comes first
    for known, (won, why) in verdicts.items():
        crowns.confirm(store, champions[known], won, why, BY_ITSELF)
    return [str(champions[known].record.problem) for known, (won, _) in verdicts.items() if won]


def _reigns(store: Store, nights: Iterable[ProblemNight]) -> Iterator[tuple[crowns.Reign, ProblemNight]]:
    for night in nights:
        now = night.tonight
        yield crowns.reign(store, now.problem, now.device.name, now.regime), night


def has_won(sentinel: Sentinel, reign: crowns.Reign) -> tuple[bool, str] | None:
    """Whether a champion won again in a fresh process, and how; None if that is not known yet.

    Against the one before it must be faster again; the first of a problem must be correct.
    """
    player = next((player for player in sentinel.players if player.name == CHAMPION), None)
    champion = reign.champion
    if player is None or champion is None:
        return None
    record = champion.record
    if (player.kernel, dict(player.config)) != (record.kernel, dict(record.config)):
        return None
    if player.wrong:
        return False, f"in a fresh process: {player.wrong}"
    if reign.beaten is None:
        why = "correct in a fresh process; there is no champion before it to beat"
        return (True, why) if player.rounds_s else None
    shift, verdict = sentinel.shift(CHAMPION, BEFORE), sentinel.verdict(BEFORE)
    if shift is None or (verdict != "slower" and shift.high >= 0):
        return None
    why = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    return verdict != "slower", why


def _behind(night: ProblemNight, other: str, told: str = "", command: str = "") -> dict[str, str]:
    now = night.tonight
    named = arguments(now.problem, now.regime)
    return {
        "problem": str(now.problem), "board": now.device.uuid, "behind": other,
        "told": told or "the champion is slower than the one before",
        "command": command or f"tuner champions rollback {named} --why '...'",
    }  # fmt: skip


def behind_library(store: Store, nights: Iterable[ProblemNight]) -> list[dict[str, str]]:
    """Champions than which the library is faster in each pass, though it was not when they were crowned.

    Lookups name the library from then on, until the problem is tuned again. A library that is less exact than
    it was is another one: it is told, and does not answer.
    """
    pairs = list(_reigns(store, nights))
    ahead = {
        reign.place for reign, night in pairs if not night.again or not night.is_behind(LIBRARY, BEHIND_LIBRARY)
    }
    behind = []
    for reign, night in pairs:
        champion, library = reign.champion, night.tonight.player(LIBRARY)
        if reign.place in ahead or champion is None or library is None:
            continue
        record = champion.baseline.measurement.error if champion.baseline else None
        less_exact = (library.rms_rel or 0.0) / record.rms_rel if record and record.rms_rel else 0.0
        if less_exact > LESS_EXACT:
            told = (
                f"{library.kernel} is another one than at the champion's finals, {less_exact:.0f} x less exact"
            )
            behind.append(_behind(night, LIBRARY, f"{told}, and faster than the champion", "tuner doctor"))
        elif champion.speedup >= 1.0 and not store.is_behind(champion):
            told = f"in each pass of a night {library.kernel} was faster than the champion"
            crowns.fall_behind(store, champion, told, BY_ITSELF)
            command = f"tuner tune {arguments(night.tonight.problem, night.tonight.regime)}"
            behind.append(_behind(night, LIBRARY, f"{told}, and answers until it is tuned again", command))
    return behind


def go_back(store: Store, nights: Iterable[ProblemNight]) -> list[str]:
    """Goes back from champions that are slower than the one before in all passes of two nights in a row.

    Args:
        store: The database.
        nights: Of all boards of a model; each that timed a champion beside the one before must say so.

    Returns:
        What it went back from, in words.
    """
    boards: dict[crowns.Throne, list[tuple[crowns.Reign, ProblemNight]]] = {}
    for reign, night in _reigns(store, nights):
        if night.tonight.shift(CHAMPION, BEFORE) is not None:
            boards.setdefault(reign.place, []).append((reign, night))
    rolled_back = []
    for place, pairs in boards.items():
        reign, passes = pairs[0][0], sum(len(night.passes) for _, night in pairs)
        if reign.rules.pinned or reign.before is None or not all(goes_back(night) for _, night in pairs):
            continue
        why = f"slower than the champion before, in each of {passes} passes, and in the last night"
        crowns.rollback(store, reign, why, BY_ITSELF)
        rolled_back.append(f"{place.problem}: {why}")
    return rolled_back


def goes_back(night: ProblemNight) -> bool:
    """True if the champion is slower than the one before in all passes of this night, and was in the last.

    All passes of a night share what the night does: only another one tells it from a champion's own slowness.
    """
    return bool(night.again) and night.is_behind(BEFORE, GO_BACK_BEYOND) and night.was_behind
