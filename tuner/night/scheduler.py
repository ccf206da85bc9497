"""Decides what is worked on next: the problems of a plan on one model of device, on any number of places.

A place is where a slice runs: this process, or a worker of a cluster. The lane knows no difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.errors import InputError
from tuner.night.plan.items import PlanItem
from tuner.night.slices import LEAST_SLICE_S, Share, Slices
from tuner.night.standing import Standing, kernels_of
from tuner.night.work import Done, Place, Runner, Work
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front, told
from tuner.results.record import Champion
from tuner.search import Budget
from tuner.study.session import check_fits


@dataclass(frozen=True)
class Spell:
    """The time that one place spent on a problem.

    Attributes:
        place: The place's name; on a cluster, the worker's.
        board: The device's UUID.
        slices: Number of slices.
        seconds: Seconds of them, with opening and finals.
    """

    place: str
    board: str
    slices: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class NightItem:
    """The result of one problem.

    Attributes:
        item: The plan's item.
        state: ``tuned``, ``done before``, ``failed`` or ``not reached``: without finals, for lack of time or
            because the night was interrupted. Its trials still count.
        before: The champion before this night.
        after: The champion now.
        why: For ``tuned``, why the study ended; else the message.
        slices: Number of slices that it had.
        spent_s: Seconds that it took, including finals.
        trials: ``total``, ``measured`` and ``failed`` trials, then each outcome's count, including earlier
            nights. Empty if it was not opened.
        front: Its Pareto front, if it has several objectives and was tuned.
        spells: Where it was worked on, and for how long.
        stale: What had changed since the champion before; empty if nothing had.
    """

    item: PlanItem
    state: str
    before: Champion | None = None
    after: Champion | None = None
    why: str = ""
    slices: int = 0
    spent_s: float = 0.0
    trials: Mapping[str, int] = field(default_factory=dict)
    front: Front | None = None
    spells: tuple[Spell, ...] = ()
    stale: str = ""

    @property
    def improvement(self) -> float | None:
        """Time of the earlier champion over that of the current one; None if one is missing.

        The two were measured in different runs. Whether a difference is real is shown by the verdict of the
        finals.
        """
        if self.before is None or self.after is None:
            return None
        before_s, after_s = self.before.record.measurement.time_s, self.after.record.measurement.time_s
        return before_s / after_s if before_s and after_s else None

    def to_json(self) -> dict[str, Any]:
        """Returns the item as a JSON object."""
        return {
            **self.item.problem.to_json(),
            "regime": self.item.regime,
            "wanted": self.item.wanted
            and {"calls": self.item.wanted.calls, "saves_s": self.item.wanted.saves_s},
            "state": self.state,
            "why": self.why,
            "slices": self.slices,
            "spent_s": self.spent_s,
            "trials": dict(self.trials),
            "before": self.before and _champion_json(self.before),
            "after": self.after and _champion_json(self.after),
            "improvement": self.improvement,
            "verdict": self.after.verdict if self.after and self.state == "tuned" else None,
            "stale": self.stale or None,
            "error_limit": told(self.after.record.measurement) if self.after else None,
            "places": [asdict(each) for each in self.spells],
            **(self.front.as_keys() if self.front else {}),
        }


def _champion_json(champion: Champion) -> dict[str, Any]:
    record = champion.record
    return {
        "kernel": record.kernel, "config": dict(record.config), "time_s": record.measurement.time_s,
        "tflops": record.tflops, "gbps": record.gbps, "speedup": champion.speedup or None,
        "record_id": record.id, "provisional_reasons": list(champion.doubts),
    }  # fmt: skip


@dataclass(eq=False)
class Entry:
    """An unfinished problem.

    Attributes:
        name: Unique in the night.
        item: The plan's item.
        kernels: The competing kernels.
        before: The champion before this night.
        share: Its share of the night.
        trials: Counts so far.
        libraries: Board -> the library's measurement from when the problem was first opened there.
        turn: How often it was worked on.
        place: Name of the place where its study is open; empty if it is not.
        at_work: True while a place works on it.
        due: Why its finals are due; empty if they are not.
        lost: Number of places in a row that were lost while working on it.
        spells: Where it was worked on.
        stale: What has changed since its champion; empty if nothing has.
    """

    name: str
    item: PlanItem
    kernels: tuple[Kernel, ...]
    before: Champion | None
    share: Share
    trials: Mapping[str, int] = field(default_factory=dict)
    libraries: dict[str, Measurement] = field(default_factory=dict)
    turn: int = 0
    place: str = ""
    at_work: bool = False
    due: str = ""
    lost: int = 0
    spells: dict[str, Spell] = field(default_factory=dict)
    stale: str = ""

    @property
    def idle(self) -> bool:
        """True if no place works on it, and none holds its study open."""
        return not self.at_work and not self.place

    def worked(self, place: Place, slices: int, seconds: float) -> None:
        """Counts time that was spent on it."""
        self.share.slices += slices
        self.share.spent_s += seconds
        before = self.spells.get(place.name, Spell(place.name, place.info.uuid))
        self.spells[place.name] = Spell(
            place.name, place.info.uuid, before.slices + slices, before.seconds + seconds
        )

    def ended(
        self, state: str, why: str, after: Champion | None = None, front: Front | None = None
    ) -> NightItem:
        """Returns the report on it at its end."""
        share = self.share
        return NightItem(
            self.item, state, self.before, after or self.before, why, share.slices, share.spent_s, self.trials,
            front, tuple(self.spells.values()), self.stale,
        )  # fmt: skip


#: Reason for finishing a problem whose search could go on.
TIME_IS_UP = "the night's time is up"
#: Reason why a problem was not reached.
TOO_LATE = "the deadline came first"
#: A problem that so many places in a row did not survive is not handed out again.
MOST_LOST = 3
#: Seconds after which places that have come or gone are looked for.
POLL_S = 0.5


@dataclass(frozen=True)
class Rules:
    """What holds for all problems of a night.

    Attributes:
        left_s: Seconds left; infinite without an end.
        seed: Seed of the searches.
        sampler: Name of the search strategy.
        storage_url: Database for Optuna's tables; None to keep none.
        again: True to continue problems that are done, too.
        said: Called after each slice with the problem, its number of slices, and the share that this one
            gained; None if nothing was measured before.
        warned: Called before any tuning if the night is too short for the plan.
    """

    left_s: Callable[[], float]
    seed: int
    sampler: str
    storage_url: str | None = None
    again: bool = False
    said: Callable[[PlanItem, int, float | None], None] = lambda item, slices, gain: None
    warned: Callable[[str], None] = lambda text: None


#: Stands for the study that is open on a place where none is.
NOTHING_OPEN = Share(0.0)
#: A step of the night: a problem, the parts of its slice (none for finals), and why its finals are due.
_Step = tuple[Entry, tuple[float, ...], str]


class Lane:
    """The problems of a plan on one model of device."""

    def __init__(self, rules: Rules, places: Callable[[], int] = lambda: 1) -> None:
        """Begins without problems: `enlist` adds them, then `begin` orders them.

        Args:
            rules: What holds for all problems.
            places: Number of places of this model now.
        """
        self.rules = rules
        self._places = places
        self._entries: dict[str, Entry] = {}
        # A plan may have many thousand problems, and no step may look at each of them.
        self._begun: dict[str, Entry] = {}
        self._open_at: dict[str, Entry] = {}
        self._at_work: dict[str, Entry] = {}
        self._in_doubt: dict[str, tuple[Entry, NightItem]] = {}
        self._ended: list[NightItem] = []

    def enlist(self, name: str, item: PlanItem, device: DeviceInfo, standing: Standing) -> NightItem | None:
        """Adds a problem; if there is nothing to do for it, returns its result.

        Looking up finished work takes milliseconds, and a plan may have many thousand problems.

        Args:
            name: Unique in the night.
            item: The plan's item.
            device: A device of this model.
            standing: What is stored of the plan on this model.
        """
        if self.rules.left_s() <= 0:
            return NightItem(item, "not reached", why=TOO_LATE)
        before = standing.champion(item)
        try:
            kernels = kernels_of(item, device.kind)
            # Opening the device may find further ones that do not fit.
            if device.memory_bytes:
                check_fits(item.problem, device.memory_bytes, device)
        except InputError as error:
            return NightItem(item, "failed", before, before, str(error))
        if not self.rules.again and standing.is_done(item, kernels, before):
            return NightItem(item, "done before", before, before)
        share = Share(math.inf if item.seconds is None else item.seconds)
        self._entries[name] = Entry(name, item, kernels, before, share)
        return None

    def tell(self, ended: NightItem | None) -> None:
        """Adds a result that is known already."""
        self._ended += [] if ended is None else [ended]

    def begin(self, standing: Standing) -> None:
        """Begins, once all are enlisted: stale champions first, the most used first, then the plan's order."""
        entries, left_s = self._entries, self.rules.left_s()
        for each in entries.values():
            each.stale = standing.why_stale(each.item, each.before)
        urgency = {
            name: (not each.stale, -standing.uses(each.item) if each.stale else 0.0)
            for name, each in entries.items()
        }
        self._budget = Budget(sorted(entries, key=lambda name: urgency[name]))
        self._of = {entry.share: entry for entry in entries.values()}
        self._slices = Slices(self.rules.left_s, self._of, self._places)
        count, held = len(entries), self._slices.holds
        if held < count:
            self.rules.warned(
                f"{count} problems are to be tuned, and {max(left_s, 0.0):.0f} s hold about {held} of "
                f"them: each needs to open the device, {LEAST_SLICE_S:.0f} s at least and its finals. Others "
                f"are reported as not reached; give more time, or a shorter plan"
            )

    @property
    def over(self) -> bool:
        """True if nothing is left to do, and all results were taken."""
        return not (self._entries or self._in_doubt or self._at_work or self._ended)

    @property
    def left(self) -> int:
        """Number of problems that have no result yet."""
        return len(self._entries) + len(self._in_doubt)

    def results(self) -> list[NightItem]:
        """Returns the results that became known since the last call."""
        found, self._ended = self._ended, []
        return found

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        begun = [entry.ended("not reached", why) for entry in self._entries.values()]
        return [*self.results(), *begun, *(ended for _, ended in self._in_doubt.values())]

    def next(self, place: Place) -> Work | None:
        """Returns what a free place is to do; None if there is nothing for it now."""
        here = self._open_at.get(place.name)
        step = self._due(here) or self._slice(here) or self._time_is_up(here)
        if step is None:
            self._leave_all()
        step = step or self._again()
        return None if step is None else self._work(place, *step)

    def _due(self, here: Entry | None) -> _Step | None:
        """Finals whose search has ended: of the problem open here, or of one whose place was lost."""
        if here is not None and here.due:
            return here, (), here.due
        due = (each for each in self._begun.values() if each.due and each.idle)
        return next(((each, (), each.due) for each in due), None)

    def _slice(self, here: Entry | None) -> _Step | None:
        """A slice of the most valuable problem; if there is time for all, the open one continues."""
        chosen = self._slices.next_of(self._candidates(here), here.share if here else NOTHING_OPEN)
        if chosen is None:
            return None
        entry, seconds = self._of[chosen[0]], chosen[1]
        # The first slice has two halves: only the second shows what a problem gains.
        return entry, (seconds,) if entry.share.slices else (seconds / 2, seconds / 2), ""

    def _candidates(self, here: Entry | None) -> Iterator[Share]:
        if here is not None and not here.due and not self._slices.contended:
            yield here.share
        for name in itertools.chain(self._budget.waiting, self._budget.running):
            entry = self._entries[name]
            # What is open on another free place, that place goes on with, or gives up.
            if not entry.due and (entry.idle or entry is here):
                yield entry.share

    def _time_is_up(self, here: Entry | None) -> _Step | None:
        """Finals of a begun problem for which there is no time to go on."""
        entry = here or next((each for each in self._begun.values() if each.idle), None)
        return None if entry is None else (entry, (), TIME_IS_UP)

    def _leave_all(self) -> None:
        """Leaves all, unless some place is at work: the remaining time only shrinks.

        A study that is open on another free place goes on there.
        """
        if self._at_work or self._open_at:
            return
        for entry in list(self._entries.values()):
            self._leave(entry)
            self._ended.append(entry.ended("not reached", TOO_LATE))

    def expire(self) -> None:
        """Ends what no place is left to end, once the time is up."""
        if self.rules.left_s() <= 0 and not self._places():
            self._leave_all()
            self._again()

    def _again(self) -> _Step | None:
        """Repeats finals with a provisional champion after all others, if there is time."""
        for name, (entry, ended) in list(self._in_doubt.items()):
            if not entry.idle:
                continue
            if self.rules.left_s() >= entry.share.finals_s + entry.share.opening_s:
                return entry, (), ended.why
            del self._in_doubt[name]
            self._ended.append(ended)
        return None

    def _work(self, place: Place, entry: Entry, parts: tuple[float, ...], why: str) -> Work:
        item, share, left_s, turn = entry.item, entry.share, self.rules.left_s(), entry.turn
        if not share.begun:
            self._slices.begin(share)
            self._begun[entry.name] = entry
        self.gone(place, but=entry)
        self._open_at[place.name] = self._at_work[place.name] = entry
        entry.place, entry.at_work, entry.turn = place.name, True, turn + 1
        limits = [each for each in (share.rest_s, left_s) if not math.isinf(each)]
        return Work(
            entry.name, item, entry.kernels, turn, parts, why,
            seconds=max(min(limits), 1.0) if limits else None,
            finals_s=min(share.finals_s, max(left_s, 1.0)), library=entry.libraries.get(place.info.uuid),
            seed=self.rules.seed, sampler=self.rules.sampler, storage_url=self.rules.storage_url,
        )  # fmt: skip

    def gone(self, place: Place, but: Entry | None = None) -> None:
        """The study that was open on a place is closed, unless it is this one."""
        entry = self._open_at.get(place.name)
        if entry is not None and entry is not but:
            del self._open_at[place.name]
            entry.place, entry.share.open = "", False

    def count(self, place: Place, done: Done) -> Entry:
        """Counts what was done for a problem on a place, which is free then; the study may be open."""
        entry = self._at_work.pop(place.name)
        entry.at_work, entry.share.open = False, bool(entry.place)
        if done.opening_s is not None:
            self._slices.opened(entry.share, done.opening_s)
        if done.library is not None:
            entry.libraries.setdefault(place.info.uuid, done.library)
        if not done.lost:
            given_s = sum(part.seconds for part in done.parts) if done.parts else entry.share.finals_s
            self._slices.worked(done.spent_s - (done.opening_s or 0.0) - given_s)
        entry.trials = done.trials or entry.trials
        entry.worked(place, len(done.parts), done.spent_s)
        return entry

    def take(self, place: Place, done: Done) -> None:
        """Takes what came of the work of a place."""
        entry = self.count(place, done)
        if done.lost:
            self.gone(place)
            if not done.cut:
                self._lost(entry, done.lost)
        elif done.failed or done.finished is not None:
            self.gone(place)
            self._finish(entry, done)
        else:
            entry.lost = 0
            self._report(entry, done)

    def _report(self, entry: Entry, done: Done) -> None:
        for number, part in enumerate(done.parts, entry.share.slices - len(done.parts) + 1):
            gain = self._budget.report(entry.name, part.objective, part.trials, part.why, part.seconds)
            self.rules.said(entry.item, number, gain)
        entry.due = self._budget.why_stopped(entry.name)
        if not entry.due and not self._slices.spare:
            entry.due = TIME_IS_UP

    def _lost(self, entry: Entry, why: str) -> None:
        """Hands the work out again, unless too many places were lost on it."""
        entry.lost += 1
        if entry.lost >= MOST_LOST and entry.name in self._entries:
            self._leave(entry)
            self._ended.append(
                entry.ended("failed", f"{entry.lost} places in a row were lost on it, the last: {why}")
            )

    def _finish(self, entry: Entry, done: Done) -> None:
        """A problem has failed, or had its finals; if its champion is provisional, they are repeated."""
        ended, doubted = self._ended_as(entry, done), self._in_doubt.pop(entry.name, None)
        if doubted is not None:
            self._ended.append(ended if ended.state == "tuned" else doubted[1])
            return
        self._leave(entry)
        if ended.state == "tuned" and ended.after is not None and ended.after.doubts:
            self._in_doubt[entry.name] = entry, ended
        else:
            self._ended.append(ended)

    def _ended_as(self, entry: Entry, done: Done) -> NightItem:
        finished, why = done.finished, entry.due or TIME_IS_UP
        if finished is None:
            return entry.ended("failed", done.failed)
        if finished.champion is None:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in finished.reasons.items())
            return entry.ended("failed", f"nothing measured: {reasons or why}")
        return entry.ended("tuned", why, finished.champion, finished.front)

    def _leave(self, entry: Entry) -> None:
        """Nothing is left to do for a problem."""
        self._budget.stop(entry.name)
        self._slices.leave(entry.share)
        self._begun.pop(entry.name, None)
        del self._entries[entry.name]


def play(
    lane_of: Callable[[Place], Lane], lanes: Callable[[], Collection[Lane]], runner: Runner
) -> Iterator[NightItem]:
    """Hands out work until nothing is left, and yields each problem's result as soon as it is known.

    Args:
        lane_of: The lane of a place's model.
        lanes: All lanes.
        runner: Where work runs.

    Raises:
        DeviceTrouble: No place is left, and none can come.
        Interrupted: SIGINT or SIGTERM came.
    """
    while True:
        for place in runner.gone():
            lane_of(place).gone(place)
        for place in runner.free():
            work = lane_of(place).next(place)
            if work is not None:
                runner.start(place, work)
        for lane in lanes():
            lane.expire()
            yield from lane.results()
        if all(lane.over for lane in lanes()):
            return
        for place, _, done in runner.wait(POLL_S):
            lane = lane_of(place)
            lane.take(place, done)
            yield from lane.results()
