"""The sentinels of a night: timed before it tunes, stored, repeated where suspect, judged."""

import itertools
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, TunerError
from tuner.night import stored
from tuner.night.changes import REPEATS, ProblemNight, alerts_of, arguments, history, last_told
from tuner.night.plan import Plan, PlanItem
from tuner.night.sentinels import CONFIRMING, PROCESSES, Boards, Pass, Watched, choose, local_boards
from tuner.night.work import NightItem
from tuner.results.record import new_id, utc_now
from tuner.results.sentinel import BEFORE, CHAMPION, LIBRARY
from tuner.results.verdict import Act
from tuner.store import Store
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
        alerts: What changed, and why; see `tuner.night.changes.alerts_of`.
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
    sentinels: list[stored.Sentinel] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
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
        stored.note(self.store, self.night, stored.BEGUN, begun)

    def begin(self, left_s: float = math.inf, models: Sequence[Boards] | None = None) -> None:
        """Times and judges the sentinels; no trouble with them ends the night.

        Args:
            left_s: Seconds that the night has.
            models: Boards of each model; by default those of this machine.
        """
        self._until_s = time.monotonic() + left_s
        candidates = list({(item.key[0], item.regime): item for item in self.plan.items}.values())
        most = min(self.plan.watch.problems, self._affordable(SHARE * left_s - BEGIN_S, len(candidates)))
        if most == 0:
            short = f"{left_s:.0f} s are too short for them"
            self.why_none = short if self.plan.watch.problems else "the plan asks for none"
            return
        troubles = [
            self._watch(boards, candidates, most)
            for boards in ([local_boards(self.boards)] if models is None else models)
        ]
        why_none = "; ".join(dict.fromkeys(filter(None, troubles))) or "no board is there"
        self.why_none = "" if self.sentinels else why_none

    def _affordable(self, seconds: float, problems: int) -> int:
        """How many of some problems some seconds hold."""
        one_s = self.plan.watch.seconds + BESIDE_S
        return problems if math.isinf(seconds) else max(0, int(seconds / one_s))

    def _watch(self, boards: Boards, candidates: Sequence[PlanItem], most: int) -> str:
        """Times and judges sentinels on boards of a model; returns why there are none."""
        chosen, left = choose(self.store, boards.info, candidates, most)
        self.left += left
        try:
            if chosen:
                self._judge(self._timed(boards, chosen))
        except DeviceTrouble as error:
            return f"the device cannot be used: {error}"
        except TunerError as error:
            return str(error)
        return "" if chosen else "no problem has a champion to watch yet"

    def _timed(self, boards: Boards, chosen: Sequence[Watched]) -> list[list[ProblemNight]]:
        """Times and stores the sentinels of each board, and again, in fresh processes, what is suspect.

        Raises:
            DeviceTrouble: No board can be opened; what one of several cannot is told in `left`.
        """
        nights = self._nights(boards, chosen, self._pass(1))
        suspects = {name: [night for night in of_board if night.suspect] for name, of_board in nights.items()}
        wanted = {name: [night.watched for night in again if night.watched] for name, again in suspects.items()}
        wanted = {name: problems for name, problems in wanted.items() if problems}
        for name, problems in wanted.items():
            names = ", ".join(str(problem.problem) for problem in problems)
            self.say(f"{name}: repeated in fresh processes: {names}")
        repeats = [self._pass(process) for process in range(2, 2 + REPEATS)]
        for name, passes in self._passed(boards, wanted, repeats).items():
            for night, *again in zip(suspects[name], *passes, strict=True):
                night.again = again
        return list(nights.values())

    def _nights(self, boards: Boards, chosen: Sequence[Watched], one: Pass) -> dict[str, list[ProblemNight]]:
        """Board -> its problems after a first pass."""
        passed = self._passed(boards, dict.fromkeys(boards.names, chosen), [one])
        told = last_told(self.store)
        return {
            name: [
                ProblemNight(history(self.store, sentinel, told), sentinel, watched=problem)
                for sentinel, problem in zip(sentinels, chosen, strict=True)
            ]
            for name, (sentinels,) in passed.items()
        }

    def _passed(
        self, boards: Boards, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]
    ) -> dict[str, list[list[stored.Sentinel]]]:
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
        return Pass(self.night, process, self.plan.watch.seconds, processes)

    def _judge(self, boards: Sequence[Sequence[ProblemNight]]) -> None:
        """Notes what all boards of a model came to; champions that won are confirmed."""
        nights = list(itertools.chain(*boards))
        self.sentinels += [night.tonight for night in nights]
        self.left += [f"{night.tonight.problem}: {night.wrong}" for night in nights if night.wrong]
        self.alerts += alerts_of(boards)
        self.behind += [_behind(night, BEFORE) for night in nights if night.again and night.is_behind(BEFORE)]
        for night in nights:
            if told := other_bits(night):
                command = f"tuner tune {arguments(night.tonight)} --bits keep"
                self.behind.append(_behind(night, "bits", told, command))
        for of_problem in zip(*boards, strict=True):
            self.behind += filter(None, [behind_library(self.store, of_problem)])
            self.confirmed += filter(None, [confirm_again(self.store, of_problem)])
            if self.plan.watch.rollback == "automatic":
                self.rolled_back += filter(None, [go_back(self.store, of_problem)])

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
            boards = local_boards(self.boards[:1])
            chosen, _ = choose(self.store, boards.info, [item.item for item in new], most)
            for night in itertools.chain(*self._nights(boards, chosen, self._pass(CONFIRMING, 1)).values()):
                self.confirmed += filter(None, [confirm_again(self.store, [night])])
        except TunerError as error:
            self.say(f"new champions were not confirmed: {error}")


# Of a problem in a night, on all boards of a model, of which each must say so.


def confirm_again(store: Store, nights: Sequence[ProblemNight]) -> str:
    """Confirms a champion that won again in a fresh process, or notes that it did not.

    Returns:
        The problem in words if its champion was confirmed, else nothing.
    """
    reign, verdicts = nights[0].reign, list(filter(None, map(has_won, nights)))
    champion = reign.champion if reign else None
    if not reign or not champion or not verdicts or champion.id in reign.rules.confirmed:
        return ""
    won, why = min(verdicts)  # False comes first
    crowns.enter(store, Act.CONFIRM if won else Act.DOUBT, reign.place, champion.id, why, BY_ITSELF)
    return str(reign.place.problem) if won else ""


def has_won(night: ProblemNight) -> tuple[bool, str] | None:
    """Whether a champion won again in a fresh process, and how; None if that is not known yet.

    Against the one before it must be faster again; the first of a problem must be correct. On every board it
    must have the bits that it had at its finals.
    """
    if night.wrong:
        return False, f"in a fresh process: {night.wrong}"
    if night.reign is None or night.tonight.player(CHAMPION) is None:
        return None
    if told := other_bits(night):
        return False, told
    if night.reign.beaten is None:
        return True, "correct in a fresh process; there is no champion before it to beat"
    shift, verdict = night.tonight.shift(CHAMPION, BEFORE), night.tonight.verdict(BEFORE)
    if shift is None or (verdict != "slower" and shift.high >= 0):
        return None
    why = f"{-shift.log_ratio:+.2%} faster than the one before in a fresh process: {verdict}"
    return verdict != "slower", why


def other_bits(night: ProblemNight) -> str:
    """How a champion's bits on a board differ from those at its finals; empty unless they do."""
    player, champion = night.tonight.player(CHAMPION), night.reign.champion if night.reign else None
    known = champion.record.measurement.bits if champion else ""
    if not player or not champion or not known or player.bits in ("", known):
        return ""
    here, there = night.tonight.device.uuid, champion.record.device.uuid
    return f"its bits are of class {player.bits} on board {here}, and were {known} at its finals on {there}"


def _behind(night: ProblemNight, other: str, told: str = "", command: str = "") -> dict[str, str]:
    now = night.tonight
    return {
        "problem": str(now.problem), "board": now.device.uuid, "behind": other,
        "told": told or "the champion is slower than the one before",
        "command": command or f"tuner champions rollback {arguments(now)} --why '...'",
    }  # fmt: skip


def behind_library(store: Store, nights: Sequence[ProblemNight]) -> dict[str, str] | None:
    """Tells of a champion than which the library is faster in each pass, though it was not at its finals.

    Lookups name the library from then on, until the problem is tuned again. A library that is less exact than
    it was is another one: it is told, and does not answer.
    """
    night, reign = nights[0], nights[0].reign
    library, champion = night.tonight.player(LIBRARY), reign.champion if reign else None
    if champion is None or library is None:
        return None
    if not all(night.again and night.is_behind(LIBRARY, BEHIND_LIBRARY) for night in nights):
        return None
    error = champion.baseline.measurement.error if champion.baseline else None
    less_exact = (library.rms_rel or 0.0) / error.rms_rel if error and error.rms_rel else 0.0
    if less_exact > LESS_EXACT:
        told = f"{library.kernel} is another one than at the champion's finals, {less_exact:.0f} x less exact"
        return _behind(night, LIBRARY, f"{told}, and faster than the champion", "tuner doctor")
    if champion.speedup < 1.0 or store.is_behind(champion):
        return None
    told = f"in each pass of a night {library.kernel} was faster than the champion"
    crowns.enter(store, Act.BEHIND, crowns.Throne.of(champion), champion.id, told, BY_ITSELF)
    command = f"tuner tune {arguments(night.tonight)}"
    return _behind(night, LIBRARY, f"{told}, and answers until it is tuned again", command)


def go_back(store: Store, nights: Sequence[ProblemNight]) -> str:
    """Goes back from a champion that is slower than the one before in all passes of two nights in a row.

    Returns:
        What it went back from, in words; empty if it did not.
    """
    reign = nights[0].reign
    compared = [night for night in nights if night.tonight.shift(CHAMPION, BEFORE) is not None]
    if not reign or reign.rules.pinned or not compared or not all(map(goes_back, compared)):
        return ""
    passes = sum(len(night.passes) for night in compared)
    why = f"slower than the champion before, in each of {passes} passes, and in the last night"
    crowns.rollback(store, reign, why, BY_ITSELF)
    return f"{reign.place.problem}: {why}"


def goes_back(night: ProblemNight) -> bool:
    """True if the champion is slower than the one before in all passes of this night, and was in the last.

    All passes of a night share what the night does: only another one tells it from a champion's own slowness.
    """
    return bool(night.again) and night.is_behind(BEFORE, GO_BACK_BEYOND) and night.was_behind
