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
from tuner.night.plan_items import PlanItem
from tuner.night.slices import LEAST_SLICE_S, Share, Slices
from tuner.night.standing import Standing, kernels_of
from tuner.night.work import Done, Place, Runner, Work
from tuner.results.measurement import Measurement
from tuner.results.objectives import Front, told
from tuner.results.record import Champion
from tuner.search import Budget
from tuner.study.session import check_fits


@dataclass
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


@dataclass(eq=False)
class NightItem(Share):
    """One problem of a night, from its place in the queue to its result.

    Attributes:
        item: The plan's item.
        state: ``waiting``; in the end ``tuned``, ``done before``, ``failed`` or ``not reached``: without
            finals, for lack of time or because the night was interrupted. Its trials still count.
        before: The champion before this night.
        after: The champion now.
        why: For ``tuned``, why the study ended; else the message.
        trials: ``total``, ``measured`` and ``failed`` trials, then each outcome's count, including earlier
            nights. Empty if it was not opened.
        front: Its Pareto front, if it has several objectives and was tuned.
        spells: Place -> the time that it spent on it.
        stale: What had changed since the champion before; empty if nothing had.
        name: Unique in the night.
        kernels: The competing kernels.
        libraries: Board -> the library's measurement from when the problem was first opened there.
        turn: How often it was worked on.
        place: Name of the place where its study is open; empty if it is not.
        at_work: True while a place works on it.
        due: Why its finals are due; empty if they are not.
        lost: Number of places in a row that were lost while working on it.
    """

    item: PlanItem
    state: str = "waiting"
    before: Champion | None = None
    after: Champion | None = None
    why: str = ""
    trials: Mapping[str, int] = field(default_factory=dict)
    front: Front | None = None
    spells: dict[str, Spell] = field(default_factory=dict)
    stale: str = ""
    name: str = ""
    kernels: tuple[Kernel, ...] = ()
    libraries: dict[str, Measurement] = field(default_factory=dict)
    turn: int = 0
    place: str = ""
    at_work: bool = False
    due: str = ""
    lost: int = 0

    @property
    def idle(self) -> bool:
        """True if no place works on it, and none holds its study open."""
        return not self.at_work and not self.place

    def worked(self, place: Place, slices: int, seconds: float) -> None:
        """Counts time that was spent on it."""
        self.slices += slices
        self.spent_s += seconds
        spell = self.spells.setdefault(place.name, Spell(place.name, place.info.uuid))
        spell.slices += slices
        spell.seconds += seconds

    def ended(self, state: str, why: str) -> NightItem:
        """Gives it a result in which the champion before still reigns; returns it."""
        self.state, self.why, self.after = state, why, self.before
        return self

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
        """Returns the result as a JSON object."""
        wanted = self.item.wanted
        return {
            **self.item.problem.to_json(),
            "regime": self.item.regime,
            "wanted": wanted and {"calls": wanted.calls, "saves_s": wanted.saves_s},
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
            "places": [asdict(spell) for spell in self.spells.values()],
            **(self.front.as_keys() if self.front else {}),
        }


def _champion_json(champion: Champion) -> dict[str, Any]:
    record = champion.record
    return {
        "kernel": record.kernel, "config": dict(record.config), "time_s": record.measurement.time_s,
        "tflops": record.tflops, "gbps": record.gbps, "speedup": champion.speedup or None,
        "record_id": record.id, "provisional_reasons": list(champion.doubts),
    }  # fmt: skip


#: Reason for finishing a problem whose search could go on.
TIME_IS_UP = "the night's time is up"
#: Reason why a problem was not reached.
TOO_LATE = "the deadline came first"
#: A problem that so many places in a row did not survive is not handed out again.
MOST_LOST = 3
#: Seconds after which places that have come or gone are looked for.
POLL_S = 0.5


@dataclass(frozen=True)
class NightRules:
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


#: A step of the night: a problem, the parts of its slice (none for finals), and why its finals are due.
_Step = tuple[NightItem, tuple[float, ...], str]


class Lane:
    """The problems of a plan on one model of device."""

    def __init__(self, rules: NightRules, places: Callable[[], int] = lambda: 1) -> None:
        """Begins without problems: `enlist` adds them, then `begin` orders them.

        Args:
            rules: What holds for all problems.
            places: Number of places of this model now.
        """
        self.rules = rules
        self._places = places
        self._unfinished: dict[str, NightItem] = {}
        # A plan may have many thousand problems, and no step may look at each of them.
        self._begun: dict[str, NightItem] = {}
        self._open_at: dict[str, NightItem] = {}
        self._at_work: dict[str, NightItem] = {}
        self._in_doubt: dict[str, NightItem] = {}
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
        limit_s = math.inf if item.seconds is None else item.seconds
        problem = NightItem(item, before=standing.champion(item), name=name, limit_s=limit_s)
        try:
            problem.kernels = kernels_of(item, device.kind)
            # Opening the device may find further ones that do not fit.
            if device.memory_bytes:
                check_fits(item.problem, device.memory_bytes, device)
        except InputError as error:
            return problem.ended("failed", str(error))
        if not self.rules.again and standing.is_done(item, problem.kernels, problem.before):
            return problem.ended("done before", "")
        problem.stale = standing.why_stale(item, problem.before)
        self._unfinished[name] = problem
        return None

    def tell(self, ended: NightItem | None) -> None:
        """Adds a result that is known already."""
        self._ended += [] if ended is None else [ended]

    def begin(self, standing: Standing) -> None:
        """Begins, once all are enlisted: stale champions first, the most used first, then the plan's order."""
        problems, left_s = self._unfinished, self.rules.left_s()
        urgency = {
            name: (not problem.stale, -standing.uses(problem.item) if problem.stale else 0.0)
            for name, problem in problems.items()
        }
        self._budget = Budget(sorted(problems, key=lambda name: urgency[name]))
        self._slices = Slices(self.rules.left_s, problems.values(), self._places)
        count, held = len(problems), self._slices.holds
        if held < count:
            self.rules.warned(
                f"{count} problems are to be tuned, and {max(left_s, 0.0):.0f} s hold about {held} of "
                f"them: each needs to open the device, {LEAST_SLICE_S:.0f} s at least and its finals. Others "
                f"are reported as not reached; give more time, or a shorter plan"
            )

    @property
    def over(self) -> bool:
        """True if nothing is left to do, and all results were taken."""
        return not (self._unfinished or self._in_doubt or self._at_work or self._ended)

    @property
    def left(self) -> int:
        """Number of problems that have no result yet."""
        return len(self._unfinished) + len(self._in_doubt)

    def results(self) -> list[NightItem]:
        """Returns the results that became known since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        begun = [problem.ended("not reached", why) for problem in self._unfinished.values()]
        return [*self.results(), *begun, *self._in_doubt.values()]

    def next(self, place: Place) -> Work | None:
        """Returns what a free place is to do; None if there is nothing for it now."""
        here = self._open_at.get(place.name)
        step = self._due(here) or self._slice(here) or self._time_is_up(here)
        if step is None:
            self._leave_all()
        step = step or self._again()
        return None if step is None else self._work(place, *step)

    def _due(self, here: NightItem | None) -> _Step | None:
        """Finals whose search has ended: of the problem open here, or of one whose place was lost."""
        if here is not None and here.due:
            return here, (), here.due
        due = (problem for problem in self._begun.values() if problem.due and problem.idle)
        return next(((problem, (), problem.due) for problem in due), None)

    def _slice(self, here: NightItem | None) -> _Step | None:
        """A slice of the most valuable problem; if there is time for all, the open one continues."""
        chosen = self._slices.next_of(self._candidates(here), here)
        if chosen is None:
            return None
        problem, seconds = chosen
        # The first slice has two halves: only the second shows what a problem gains.
        return problem, (seconds,) if problem.slices else (seconds / 2, seconds / 2), ""

    def _candidates(self, here: NightItem | None) -> Iterator[NightItem]:
        if here is not None and not here.due and not self._slices.contended:
            yield here
        for name in itertools.chain(self._budget.waiting, self._budget.running):
            problem = self._unfinished[name]
            # What is open on another free place, that place goes on with, or gives up.
            if not problem.due and (problem.idle or problem is here):
                yield problem

    def _time_is_up(self, here: NightItem | None) -> _Step | None:
        """Finals of a begun problem for which there is no time to go on."""
        problem = here or next((begun for begun in self._begun.values() if begun.idle), None)
        return None if problem is None else (problem, (), TIME_IS_UP)

    def _leave_all(self) -> None:
        """Leaves all, unless some place is at work: the remaining time only shrinks.

        A study that is open on another free place goes on there.
        """
        if not self._at_work and not self._open_at:
            for problem in list(self._unfinished.values()):
                self._end(problem.ended("not reached", TOO_LATE))

    def expire(self) -> None:
        """Ends what no place is left to end, once the time is up."""
        if self.rules.left_s() <= 0 and not self._places():
            self._leave_all()
            self._again()

    def _again(self) -> _Step | None:
        """Repeats finals with a provisional champion after all others, if there is time."""
        for name, problem in list(self._in_doubt.items()):
            if not problem.idle:
                continue
            if self.rules.left_s() >= problem.finals_s + problem.opening_s:
                return problem, (), problem.why
            self._ended.append(self._in_doubt.pop(name))
        return None

    def _work(self, place: Place, problem: NightItem, parts: tuple[float, ...], why: str) -> Work:
        left_s, turn = self.rules.left_s(), problem.turn
        if not problem.begun:
            self._slices.begin(problem)
            self._begun[problem.name] = problem
        self.gone(place, but=problem)
        self._open_at[place.name] = self._at_work[place.name] = problem
        problem.place, problem.at_work, problem.turn = place.name, True, turn + 1
        seconds = min(problem.rest_s, left_s)
        return Work(
            problem.name, problem.item, problem.kernels, turn, parts, why,
            seconds=None if math.isinf(seconds) else max(seconds, 1.0),
            finals_s=min(problem.finals_s, max(left_s, 1.0)), library=problem.libraries.get(place.info.uuid),
            seed=self.rules.seed, sampler=self.rules.sampler, storage_url=self.rules.storage_url,
        )  # fmt: skip

    def gone(self, place: Place, but: NightItem | None = None) -> None:
        """The study that was open on a place is closed, unless it is this one."""
        problem = self._open_at.get(place.name)
        if problem is not None and problem is not but:
            del self._open_at[place.name]
            problem.place, problem.open = "", False

    def count(self, place: Place, done: Done) -> NightItem:
        """Counts what was done for a problem on a place, which is free then; the study may be open."""
        problem = self._at_work.pop(place.name)
        problem.at_work, problem.open = False, bool(problem.place)
        if done.opening_s is not None:
            self._slices.opened(problem, done.opening_s)
        if done.library is not None:
            problem.libraries.setdefault(place.info.uuid, done.library)
        if not done.lost:
            planned_s = sum(part.seconds for part in done.parts) if done.parts else problem.finals_s
            self._slices.worked(done.spent_s - (done.opening_s or 0.0) - planned_s)
        problem.trials = done.trials or problem.trials
        problem.worked(place, len(done.parts), done.spent_s)
        return problem

    def take(self, place: Place, done: Done) -> None:
        """Takes what came of the work of a place."""
        problem = self.count(place, done)
        if done.lost:
            self.gone(place)
            if not done.cut:
                self._lost(problem, done.lost)
        elif done.failed or done.finished is not None:
            self.gone(place)
            self._finish(problem, done)
        else:
            problem.lost = 0
            self._report(problem, done)

    def _report(self, problem: NightItem, done: Done) -> None:
        for number, part in enumerate(done.parts, problem.slices - len(done.parts) + 1):
            gain = self._budget.report(problem.name, part.objective, part.trials, part.why, part.seconds)
            self.rules.said(problem.item, number, gain)
        problem.due = self._budget.why_stopped(problem.name)
        if not problem.due and not self._slices.spare:
            problem.due = TIME_IS_UP

    def _lost(self, problem: NightItem, why: str) -> None:
        """Hands the work out again, unless too many places were lost on it."""
        problem.lost += 1
        if problem.lost >= MOST_LOST and problem.name in self._unfinished:
            told = f"{problem.lost} places in a row were lost on it, the last: {why}"
            self._end(problem.ended("failed", told))

    def _finish(self, problem: NightItem, done: Done) -> None:
        """A problem has failed, or had its finals; if its champion is provisional, they are repeated once."""
        finished, repeated = done.finished, self._in_doubt.pop(problem.name, None) is not None
        if finished is not None and finished.champion is not None:
            problem.ended("tuned", problem.due or TIME_IS_UP)
            problem.after, problem.front = finished.champion, finished.front
        elif not repeated:
            reasons = finished.reasons if finished is not None else {}
            told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            nothing = f"nothing measured: {told or problem.due or TIME_IS_UP}"
            problem.ended("failed", nothing if finished is not None else done.failed)
        is_doubted = problem.state == "tuned" and problem.after is not None and bool(problem.after.doubts)
        self._end(problem, later=is_doubted and not repeated)

    def _end(self, problem: NightItem, later: bool = False) -> None:
        """A problem has its result, or will have it once its finals are repeated."""
        if problem.name in self._unfinished:
            self._budget.stop(problem.name)
            self._slices.leave(problem)
            self._begun.pop(problem.name, None)
            del self._unfinished[problem.name]
        if later:
            self._in_doubt[problem.name] = problem
        else:
            self._ended.append(problem)


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
