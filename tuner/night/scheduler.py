"""Decides what is worked on next: the problems of a plan, on any number of places with devices of any model.

A place is where a slice runs: this process, or a worker of a cluster. The scheduler knows no difference.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.night.claims import patiently
from tuner.night.plan import Plan, PlanItem, asks_for
from tuner.night.slices import LEAST_SLICE_S, Slices
from tuner.night.work import Assignment, Done, NightItem, Place, Runner, Standing, kernels_of
from tuner.search import Budget
from tuner.store import Store
from tuner.study.session import check_fits

#: Reason for finishing a problem whose search could go on.
TIME_IS_UP = "the night's time is up"
#: Reason why a problem was not reached.
TOO_LATE = "the deadline came first"
#: A problem that so many places in a row did not survive is not handed out again.
MOST_LOST = 3
#: Seconds after which places that have come or gone are looked for.
POLL_S = 0.5
#: A step of the night: a problem, the parts of its slice (none for finals), and why its finals are due.
_Step = tuple[NightItem, tuple[float, ...], str]


@dataclass
class Night:
    """One run through a plan.

    Attributes:
        plan: The plan to tune.
        store: Where records go.
        seed: Seed of the searches.
        deadline_s: Time of the clock at which to stop; None without a deadline.
        again: True to continue problems that are done, too.
        said: Called after each slice with the problem, its number of slices, and the share that this one
            gained; None if nothing was measured before.
        warned: Called before any tuning if the night is too short for the plan.
        clock: Tells the time in seconds.
        lanes: Model of device -> its problems.
    """

    plan: Plan
    store: Store
    seed: int = 0
    deadline_s: float | None = None
    again: bool = False
    said: Callable[[PlanItem, int, float | None], None] = lambda item, slices, gain: None
    warned: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    lanes: dict[str, Lane] = field(default_factory=dict, init=False)
    _enlisted: set[int] = field(default_factory=set, init=False)

    def run(self, runner: Runner, before: Callable[[], None] = lambda: None) -> Iterator[NightItem]:
        """Hands out work until nothing is left, and yields each problem's result as soon as it is known.

        Problems with a stale champion come first, then the others in the plan's order. A problem that fails for
        a reason of its own does not end the night. If a champion is provisional, its finals are repeated after
        all others, if time allows, and again in later nights.

        Args:
            runner: Where work runs; it is stopped at the end.
            before: Called before any problem.

        Raises:
            DeviceTrouble: No place is left, and none can come.
            EnvironmentTrouble: A cluster's scheduler is gone.
            StoreTrouble: The database stays away.
            Interrupted: SIGINT or SIGTERM came.
        """
        try:
            before()
            while True:
                for place in runner.gone():
                    self._lane_of(place, runner).gone(place)
                for place in runner.free():
                    work = self._lane_of(place, runner).next(place)
                    if work is not None:
                        runner.start(place, work)
                for lane in self.lanes.values():
                    lane.expire()
                    yield from lane.results()
                if all(lane.over for lane in self.lanes.values()):
                    break
                for place, _, done in runner.wait(POLL_S):
                    lane = self._lane_of(place, runner)
                    lane.take(place, done)
                    yield from lane.results()
            yield from self._without_device(TOO_LATE if self.left_s() <= 0 else "")
        finally:
            for place, _, done in runner.stop("the night was stopped"):
                self._lane_of(place, runner).count(place, done)

    def preview(self, place: Place) -> Iterator[NightItem]:
        """What the night would do with each problem, without a device: it is done, to be tuned, or stale."""
        lane, standing = Lane(self), Standing(self.store, place.info, place.versions)
        for number, item in enumerate(self.plan.items):
            problem = NightItem(item, "not reached", why=self._no_device(item))
            if asks_for(item.devices, place.info):
                problem = lane.enlist(f"{number}: {item.problem}", item, place.info, standing)
            if problem.state == "waiting":
                problem.ended("stale" if problem.stale else "to tune", problem.stale)
            yield problem

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        begun = [problem for lane in self.lanes.values() for problem in lane.unfinished(why)]
        return [*begun, *self._without_device(why)]

    def left_s(self) -> float:
        """Seconds left; infinite without an end."""
        return math.inf if self.deadline_s is None else self.deadline_s - self.clock()

    @property
    def left(self) -> int:
        """Number of problems that have no result yet."""
        return sum(lane.left for lane in list(self.lanes.values()))

    def wants(self, device: DeviceInfo) -> bool:
        """True if some problem asks for a device."""
        return any(asks_for(item.devices, device) for item in self.plan.items)

    @staticmethod
    def _no_device(item: PlanItem) -> str:
        return f"it asks for {', '.join(item.devices) or 'a device'}, and none is in this night"

    def _without_device(self, why: str) -> Iterator[NightItem]:
        """Problems for which no place came."""
        for number, item in enumerate(self.plan.items):
            if number not in self._enlisted:
                yield NightItem(item, "not reached", why=why or self._no_device(item))

    def _lane_of(self, place: Place, runner: Runner) -> Lane:
        """The lane of a place's model; the first place of a model opens it."""
        model = place.info.name
        if model not in self.lanes:
            self.lanes[model] = patiently(lambda: self._new_lane(place, lambda: runner.places_of(model)))
        return self.lanes[model]

    def _new_lane(self, place: Place, places: Callable[[], int]) -> Lane:
        """A lane with the plan's problems for the model of a place, and what is stored of them."""
        lane, standing = Lane(self, places), Standing(self.store, place.info, place.versions)
        for number, item in enumerate(self.plan.items):
            if asks_for(item.devices, place.info):
                self._enlisted.add(number)
                lane.enlist(f"{number}: {item.problem}", item, place.info, standing)
        lane.begin(standing)
        return lane


class Lane:
    """The problems of a plan on one model of device."""

    def __init__(self, night: Night, places: Callable[[], int] = lambda: 1) -> None:
        """Begins without problems: `enlist` adds them, then `begin` orders them.

        Args:
            night: Its settings hold for all problems.
            places: Number of places of this model now.
        """
        self._night, self._places = night, places
        # A plan may have many thousand problems, and no step may look at each of them.
        self._unfinished: dict[str, NightItem] = {}
        self._open_at: dict[str, NightItem] = {}
        self._at_work: dict[str, NightItem] = {}
        self._in_doubt: dict[str, NightItem] = {}
        self._ended: list[NightItem] = []

    def enlist(self, name: str, item: PlanItem, device: DeviceInfo, standing: Standing) -> NightItem:
        """Adds a problem; its state is not ``waiting`` if there is nothing to do for it.

        Looking up finished work takes milliseconds, and a plan may have many thousand problems.

        Args:
            name: Unique in the night.
            item: The plan's item.
            device: A device of this model.
            standing: What is stored of the plan on this model.
        """
        problem = NightItem(item, name=name, limit_s=math.inf if item.seconds is None else item.seconds)
        if self._night.left_s() <= 0:
            problem.ended("not reached", TOO_LATE)
        else:
            problem.before = standing.champion(item)
            self._look_up(problem, device, standing)
        if problem.state == "waiting":
            self._unfinished[name] = problem
        else:
            self._ended.append(problem)
        return problem

    def _look_up(self, problem: NightItem, device: DeviceInfo, standing: Standing) -> None:
        item = problem.item
        try:
            problem.kernels = kernels_of(item, device.kind)
            # Opening the device may find further ones that do not fit.
            if device.memory_bytes:
                check_fits(item.problem, device.memory_bytes, device)
        except InputError as error:
            problem.ended("failed", str(error))
            return
        if not self._night.again and standing.is_done(item, problem.kernels, problem.before):
            problem.ended("done before", "")
        else:
            problem.stale = standing.why_stale(item, problem.before)

    def begin(self, standing: Standing) -> None:
        """Begins, once all are enlisted: stale champions first, the most used first, then the plan's order."""
        problems, left_s = self._unfinished, self._night.left_s()
        urgency = {
            name: (not problem.stale, -standing.uses(problem.item) if problem.stale else 0.0)
            for name, problem in problems.items()
        }
        self._budget = Budget(sorted(problems, key=lambda name: urgency[name]))
        self._slices = Slices(self._night.left_s, problems.values(), self._places)
        count, holds = len(problems), self._slices.holds
        if holds < count:
            self._night.warned(
                f"{count} problems are to be tuned, and {max(left_s, 0.0):.0f} s hold about {holds} of "
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

    def next(self, place: Place) -> Assignment | None:
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
        due = (problem for problem in self._slices.begun.values() if problem.due and problem.idle)
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
        problem = here or next((begun for begun in self._slices.begun.values() if begun.idle), None)
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
        if self._night.left_s() <= 0 and not self._places():
            self._leave_all()
            self._again()

    def _again(self) -> _Step | None:
        """Repeats finals with a provisional champion after all others, if there is time."""
        for name, problem in list(self._in_doubt.items()):
            if not problem.idle:
                continue
            if self._night.left_s() >= problem.finals_s + problem.opening_s:
                return problem, (), problem.why
            self._ended.append(self._in_doubt.pop(name))
        return None

    def _work(self, place: Place, problem: NightItem, parts: tuple[float, ...], why: str) -> Assignment:
        night, left_s, turn = self._night, self._night.left_s(), problem.turn
        if not problem.begun:
            self._slices.begin(problem)
        self.gone(place, but=problem)
        self._open_at[place.name] = self._at_work[place.name] = problem
        problem.place, problem.at_work, problem.turn = place.name, True, turn + 1
        seconds = min(problem.rest_s, left_s)
        return Assignment(
            problem.name, problem.item, problem.kernels, turn, parts, why,
            seconds=None if math.isinf(seconds) else max(seconds, 1.0),
            finals_s=min(problem.finals_s, max(left_s, 1.0)), library=problem.libraries.get(place.info.uuid),
            seed=night.seed, sampler=night.plan.defaults.sampler,
        )  # fmt: skip

    def gone(self, place: Place, but: NightItem | None = None) -> None:
        """The study that was open on a place is closed, unless it is this one."""
        problem = self._open_at.get(place.name)
        if problem is not None and problem is not but:
            del self._open_at[place.name]
            problem.place = ""

    def count(self, place: Place, done: Done) -> NightItem:
        """Counts what was done for a problem on a place, which is free then; the study may be open."""
        problem = self._at_work.pop(place.name)
        problem.at_work = False
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
            self._night.said(problem.item, number, gain)
        problem.due = self._budget.why_stopped(problem.name)
        if not problem.due and not self._slices.spare:
            problem.due = TIME_IS_UP

    def _lost(self, problem: NightItem, why: str) -> None:
        """Hands the work out again, unless too many places were lost on it."""
        problem.lost += 1
        if problem.lost >= MOST_LOST and problem.name in self._unfinished:
            all_lost = f"{problem.lost} places in a row were lost on it, the last: {why}"
            self._end(problem.ended("failed", all_lost))

    def _finish(self, problem: NightItem, done: Done) -> None:
        """A problem has failed, or had its finals; if its champion is provisional, they are repeated once."""
        finished, repeated = done.finished, self._in_doubt.pop(problem.name, None) is not None
        if finished is not None and finished.champion is not None:
            problem.ended("tuned", problem.due or TIME_IS_UP)
            problem.after, problem.front = finished.champion, finished.front
        elif not repeated:
            reasons = finished.reasons if finished is not None else {}
            failures = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            nothing = f"nothing measured: {failures or problem.due or TIME_IS_UP}"
            problem.ended("failed", nothing if finished is not None else done.failed)
        is_doubted = problem.state == "tuned" and problem.after is not None and bool(problem.after.doubts)
        self._end(problem, later=is_doubted and not repeated)

    def _end(self, problem: NightItem, later: bool = False) -> None:
        """A problem has its result, or will have it once its finals are repeated."""
        if self._unfinished.pop(problem.name, None) is not None:
            self._budget.stop(problem.name)
            self._slices.leave(problem)
        if later:
            self._in_doubt[problem.name] = problem
        else:
            self._ended.append(problem)
