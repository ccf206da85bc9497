"""Decides what is worked on next: the problems of a plan, on any number of places with devices of any model.

A place is where a slice runs: this process, or a worker of a cluster. The scheduler knows no difference.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.night.claims import patiently
from tuner.night.plan import Plan, PlanItem, asks_for
from tuner.night.stored import savings
from tuner.night.work import Assignment, Done, NightItem, Place, Runner, Standing, kernels_of
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study.progress import finals_share_s
from tuner.study.session import check_fits

#: Reason for finishing a problem whose search could go on.
TIME_IS_UP = "the night's time is up"
#: Reason why a problem was not reached.
TOO_LATE = "the deadline came first"
#: A problem that so many places in a row did not survive is not handed out again.
MOST_LOST = 3
#: Seconds after which places that have come or gone are looked for.
POLL_S = 0.5
#: A step of the night: a problem, and the parts of its slice; none for finals.
_Step = tuple[NightItem, tuple[float, ...]]


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
        warned: Is told of trouble that does not end the night.
        clock: Tells the time in seconds.
        lanes: Model of device -> its problems.
        ended: Problems whose results became known since they were last told.
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
    ended: list[NightItem] = field(default_factory=list, init=False)

    def run(self, runner: Runner, before: Callable[[], None] = lambda: None) -> Iterator[NightItem]:
        """Hands out work until nothing is left, and yields each problem's result as soon as it is known.

        Problems with a stale champion come first, then the others in the plan's order. A problem that fails for
        a reason of its own does not end the night.

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
                    self._lane_of(place, runner).close(place)
                for place in runner.free():
                    work = self._lane_of(place, runner).next(place)
                    if work is not None:
                        runner.start(place, work)
                for lane in self.lanes.values():
                    lane.expire()
                yield from self._results()
                if not self.left:
                    break
                for place, work, done in runner.wait(POLL_S):
                    self._lane_of(place, runner).take(place, work, done)
                    yield from self._results()
            yield from self._without_device(TOO_LATE if self.left_s() <= 0 else "")
        finally:
            for place, work, done in runner.stop("the night was stopped"):
                self._lane_of(place, runner).count(place, work, done)

    def preview(self, place: Place) -> Iterator[NightItem]:
        """What the night would do with each problem, without a device: it is done, to be tuned, or stale."""
        lane = Lane(self, place)
        for number, item in enumerate(self.plan.items):
            problem = NightItem(item, "not reached", why=_no_device(item))
            if asks_for(item.devices, place.info):
                problem = lane.enlist(number, item)
            if problem.state == "waiting":
                problem.ended("stale" if problem.stale else "to tune", problem.stale)
            yield problem

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        for lane in self.lanes.values():
            lane.leave(why)
        return [*self._results(), *self._without_device(why)]

    def left_s(self) -> float:
        """Seconds left; infinite without an end."""
        return math.inf if self.deadline_s is None else self.deadline_s - self.clock()

    @property
    def left(self) -> int:
        """Number of problems that have no result yet."""
        return sum(len(lane.unfinished) for lane in list(self.lanes.values()))

    def wants(self, device: DeviceInfo) -> bool:
        """True if some problem asks for a device."""
        return any(asks_for(item.devices, device) for item in self.plan.items)

    def _results(self) -> list[NightItem]:
        """The results that became known since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def _without_device(self, why: str) -> Iterator[NightItem]:
        """Problems for which no place came."""
        models = [lane.device for lane in self.lanes.values()]
        for item in self.plan.items:
            if not any(asks_for(item.devices, device) for device in models):
                yield NightItem(item, "not reached", why=why or _no_device(item))

    def _lane_of(self, place: Place, runner: Runner) -> Lane:
        """The lane of a place's model; the first place of a model opens it."""
        model = place.info.name
        if model not in self.lanes:
            lane = patiently(lambda: Lane(self, place, lambda: runner.places_of(model)))
            for number, item in enumerate(self.plan.items):
                if asks_for(item.devices, place.info):
                    patiently(functools.partial(lane.enlist, number, item))
            lane.begin()
            self.lanes[model] = lane
        return self.lanes[model]


def _no_device(item: PlanItem) -> str:
    return f"it asks for {', '.join(item.devices) or 'a device'}, and none is in this night"


class Lane:
    """The problems of a plan on one model of device.

    Attributes:
        device: A device of the model.
        unfinished: Name -> problem, of those without a result.
    """

    def __init__(self, night: Night, place: Place, places: Callable[[], int] = lambda: 1) -> None:
        """Begins without problems: `enlist` adds them, then `begin` orders them.

        Args:
            night: Its settings hold for all problems.
            place: A place of this model.
            places: Number of places of this model now.
        """
        self.device = place.info
        self._night, self._places = night, places
        self._standing = Standing(night.store, place.info, place.versions)
        # A plan may have many thousand problems, and no step may look at each of them.
        self._problems: dict[str, NightItem] = {}
        self.unfinished: dict[str, NightItem] = {}
        self._open_at: dict[str, NightItem] = {}

    def enlist(self, number: int, item: PlanItem) -> NightItem:
        """Adds a problem of the plan; its state is not ``waiting`` if there is nothing to do for it.

        Looking up finished work takes milliseconds, and a plan may have many thousand problems.
        """
        problem, standing = NightItem(item, name=f"{number}: {item.problem}"), self._standing
        try:
            if self._night.left_s() <= 0:
                problem.ended("not reached", TOO_LATE)
            else:
                problem.before = standing.champion(item)
                problem.kernels = kernels_of(item, self.device.kind)
                # Opening the device may find further ones that do not fit.
                if self.device.memory_bytes:
                    check_fits(item.problem, self.device.memory_bytes, self.device)
                if not self._night.again and standing.is_done(item, problem.kernels, problem.before):
                    problem.ended("done before", "")
                else:
                    problem.stale = standing.why_stale(item, problem.before)
        except InputError as error:
            problem.ended("failed", str(error))
        self._problems[problem.name] = problem
        if problem.state == "waiting":
            self.unfinished[problem.name] = problem
        else:
            self._night.ended.append(problem)
        return problem

    def begin(self) -> None:
        """Begins, once all are enlisted: stale champions first, the most used first, then the plan's order."""
        has_stale = any(problem.stale for problem in self.unfinished.values())
        saved_s = savings(self._night.store, self.device) if has_stale else {}

        def rank(problem: NightItem) -> tuple[bool, float]:
            key = ProblemKey.of(problem.item.problem)
            return not problem.stale, -saved_s.get(key, 0.0) if problem.stale else 0.0

        self.unfinished = {problem.name: problem for problem in sorted(self.unfinished.values(), key=rank)}
        self._count, self._reported = len(self.unfinished), 0
        self._slices = Slices(self._night.left_s, self.unfinished.values(), self._places)

    def next(self, place: Place) -> Assignment | None:
        """Returns what a free place is to do; None if there is nothing for it now."""
        here = self._open_at.get(place.name)
        step = self._finals(here, due=True) or self._slice(here) or self._finals(here, due=False)
        if step is None:
            self._leave_all()
            return None
        return self._work(place, *step)

    def _finals(self, here: NightItem | None, due: bool) -> _Step | None:
        """Finals of the problem open here, or of one that was begun and is open nowhere.

        Args:
            here: The problem that is open on the place, if one is.
            due: True for one whose search has ended; False for any, as there is no time to go on.
        """
        idle = (problem for problem in self._slices.begun.values() if problem.idle)
        able = itertools.chain([here] if here else [], idle)
        return next(((problem, ()) for problem in able if problem.due or not due), None)

    def _slice(self, here: NightItem | None) -> _Step | None:
        """A slice of the most valuable problem; if there is time for all, the open one continues."""
        chosen = self._slices.next_of(self._candidates(here), here)
        if chosen is None:
            return None
        problem, seconds = chosen
        # The first slice has two halves: only the second shows what a problem gains.
        return problem, (seconds,) if problem.slices else (seconds / 2, seconds / 2)

    def _candidates(self, here: NightItem | None) -> Iterator[NightItem]:
        if here is not None and not here.due and not self._slices.contended:
            yield here
        waiting = (problem for problem in self.unfinished.values() if not problem.gains.slices)
        running = [problem for problem in self._slices.begun.values() if problem.gains.slices]
        running.sort(key=lambda problem: -problem.gains.worth(self._reported, self._count))
        for problem in itertools.chain(waiting, running):
            # What is open on another free place, that place goes on with, or gives up.
            if not problem.due and (problem.idle or problem is here):
                yield problem

    def _leave_all(self) -> None:
        """Leaves all, unless some place is at work or holds a study open: the remaining time only shrinks."""
        if all(problem.idle for problem in self._slices.begun.values()):
            self.leave(TOO_LATE)

    def leave(self, why: str) -> None:
        """Ends all problems that have no result yet."""
        for problem in list(self.unfinished.values()):
            self._end(problem, "searched" if problem.begun else "not reached", why)

    def expire(self) -> None:
        """Ends what no place is left to end, once the time is up."""
        if self._night.left_s() <= 0 and not self._places():
            self._leave_all()

    def _work(self, place: Place, problem: NightItem, parts: tuple[float, ...]) -> Assignment:
        night, left_s, turn = self._night, self._night.left_s(), problem.turn
        if not problem.begun:
            self._slices.begin(problem)
        if self._open_at.get(place.name) is not problem:
            self.close(place)
        self._open_at[place.name] = problem
        problem.place, problem.at_work, problem.turn = place.name, True, turn + 1
        seconds = min(problem.rest_s, left_s)
        return Assignment(
            problem.name, problem.item, problem.kernels, turn, parts,
            seconds=None if math.isinf(seconds) else max(seconds, 1.0),
            finals_s=min(problem.finals_s, max(left_s, 1.0)), library=problem.libraries.get(place.info.uuid),
            seed=night.seed, sampler=night.plan.defaults.sampler,
        )  # fmt: skip

    def close(self, place: Place) -> None:
        """The study that was open on a place is closed."""
        problem = self._open_at.pop(place.name, None)
        if problem is not None:
            problem.place = ""

    def count(self, place: Place, work: Assignment, done: Done) -> NightItem:
        """Counts what was done for a problem on a place, which is free then; the study may be open."""
        problem = self._problems[work.name]
        problem.at_work = False
        if done.library is not None:
            problem.libraries.setdefault(place.info.uuid, done.library)
        if done.opening_s is not None:
            self._slices.opening.add(done.opening_s)
        if not done.lost:
            planned_s = sum(part.seconds for part in done.parts) if done.parts else problem.finals_s
            self._slices.beyond.add(done.spent_s - (done.opening_s or 0.0) - planned_s)
        problem.trials = done.trials or problem.trials
        problem.worked(place, len(done.parts), done.spent_s)
        return problem

    def take(self, place: Place, work: Assignment, done: Done) -> None:
        """Takes what came of the work of a place."""
        problem = self.count(place, work, done)
        if done.lost or done.failed or done.champion is not None:
            self.close(place)
        if done.lost:
            if not done.cut:
                self._lost(problem, done.lost)
        elif done.failed:
            self._end(problem, "failed", done.failed)
        elif done.champion is not None:
            why = "".join(part.why for part in done.parts)
            self._end(problem, "tuned", problem.due or why or TIME_IS_UP)
            problem.after, problem.front = done.champion, done.front
        else:
            problem.lost = 0
            self._report(problem, done)

    def _report(self, problem: NightItem, done: Done) -> None:
        for number, part in enumerate(done.parts, problem.slices - len(done.parts) + 1):
            self._reported += 1
            gain = problem.gains.add(part.objective, part.trials, part.seconds, self._reported)
            self._night.said(problem.item, number, gain)
            problem.due = part.why or problem.gains.converged or problem.due
        if not problem.due and not self._slices.spare:
            problem.due = TIME_IS_UP

    def _lost(self, problem: NightItem, why: str) -> None:
        """Hands the work out again, unless too many places were lost on it."""
        problem.lost += 1
        if problem.lost >= MOST_LOST:
            self._end(problem, "failed", f"{problem.lost} places in a row were lost on it, the last: {why}")

    def _end(self, problem: NightItem, state: str, why: str) -> None:
        """A problem has its result, unless it had one before."""
        if self.unfinished.pop(problem.name, None) is not None:
            self._slices.leave(problem)
            self._night.ended.append(problem.ended(state, why))


# --- slices --------------------------------------------

#: Number of slices into which a problem's seconds are divided, and the bounds of a slice in seconds.
SLICES, LEAST_SLICE_S, MOST_SLICE_S = 6, 10.0, 120.0
#: A problem with fewer seconds is begun if this share of them is left to search.
LEAST_SHARE = 0.25
#: A slice is longer than opening a device by at least this factor.
OPENINGS = 4
#: Seconds assumed for opening a device before it was measured.
OPENING_S = 4.0
#: Problems compete for a night if the plan allows them more than this multiple of the remaining time.
CONTENDED = 1.1
#: The median of so many latest durations is what is usual.
LATEST = 99


class Usual:
    """What something usually takes.

    Attributes:
        s: Seconds.
    """

    def __init__(self, s: float) -> None:
        self.s, self._latest_s = s, deque[float](maxlen=LATEST)

    def add(self, seconds: float) -> None:
        """Takes another duration into account."""
        self._latest_s.append(max(seconds, 0.0))
        self.s = statistics.median(self._latest_s)


class Slices:
    """Divides a night's seconds into slices, and decides when time is up. Numbers in, numbers out.

    From the remaining seconds, those for the finals of every begun problem are kept; the rest is for slices. If
    there is enough time for everything in the plan, problems need not compete: each has its slices in a row,
    which saves opening the device again. With several places, each of which works on one problem at a time, the
    night has its seconds once for each of them.

    A plan may have many thousand problems, and no step may spend time on each of them. So problems not begun
    are counted by their limit, and only begun ones are summed one by one.

    Attributes:
        begun: Name -> problem, of those that have begun and are not finished.
        opening: What opening the device for a problem takes.
        beyond: What a piece of work takes beyond its opening and what it was given.
    """

    def __init__(
        self, left_s: Callable[[], float], problems: Iterable[NightItem], places: Callable[[], int] = lambda: 1
    ) -> None:
        """Begins with no problem begun.

        Args:
            left_s: Seconds left of the night; infinite without an end.
            problems: The unfinished problems.
            places: Number of places that work on them now.
        """
        self.left_s = left_s
        self.begun: dict[str, NightItem] = {}
        self._places = places
        #: Limit in seconds -> number of problems with it that were not begun.
        self._waiting = Counter(problem.limit_s for problem in problems)
        self.opening, self.beyond = Usual(OPENING_S), Usual(0.0)

    @property
    def contended(self) -> bool:
        """True if the plan allows more than the remaining time."""
        allowed_s = sum(limit_s * count for limit_s, count in self._waiting.items())
        return allowed_s + sum(problem.rest_s for problem in self.begun.values()) > CONTENDED * self._all_s()

    @property
    def spare(self) -> bool:
        """True if there is time for more of a problem after a first slice for all that were not begun."""
        first_s = sum(
            count * (self.opening.s + self._wanted_s(limit_s) + self._finals_s(limit_s))
            for limit_s, count in self._waiting.items()
        )
        return self._room_s() - first_s / self._count >= LEAST_SLICE_S

    def begin(self, problem: NightItem) -> None:
        """Reserves time for the finals of a problem."""
        problem.finals_s, problem.begun = self._finals_s(problem.limit_s), True
        self._waiting -= Counter([problem.limit_s])
        self.begun[problem.name] = problem

    def leave(self, problem: NightItem) -> None:
        """Removes a finished problem."""
        if self.begun.pop(problem.name, None) is None:
            self._waiting -= Counter([problem.limit_s])

    def next_of(self, ranked: Iterable[NightItem], here: NightItem | None) -> tuple[NightItem, float] | None:
        """Returns the first of some problems for which there is time, and the seconds of its slice; or None.

        Args:
            ranked: The problems.
            here: The one whose study is open where the slice would run; None if there is none.
        """
        room_s = self._room_s()
        # Problems with equal limits that were not begun are alike.
        hopeless: set[float] = set()
        for problem in ranked:
            if not problem.begun and problem.limit_s in hopeless:
                continue
            seconds = self._next_s(problem, room_s, problem is here)
            if seconds > 0:
                return problem, seconds
            if not problem.begun:
                hopeless.add(problem.limit_s)
        return None

    def _next_s(self, problem: NightItem, room_s: float, is_open: bool) -> float:
        """Returns the seconds of the next slice of a problem; 0 if there is no time for one.

        If the device is not open, opening it comes first.
        """
        room_s -= 0.0 if is_open else self.opening.s
        room_s -= 0.0 if problem.begun else self._finals_s(problem.limit_s) + self.beyond.s
        # Of a problem that may take less than a slice, opening and finals are a part.
        if room_s < min(LEAST_SLICE_S, LEAST_SHARE * problem.rest_s):
            return 0.0
        wanted_s = self._wanted_s(problem.limit_s)
        if problem.rest_s - problem.finals_s - wanted_s < LEAST_SLICE_S:
            # The rest would be too short for a slice of its own.
            wanted_s = problem.rest_s
        return min(wanted_s, room_s)

    @property
    def _count(self) -> int:
        return max(self._places(), 1)

    def _all_s(self) -> float:
        """Seconds left of all places."""
        return self.left_s() * self._count

    def _room_s(self) -> float:
        """Seconds for slices of each place, without those kept for the finals of begun problems.

        Finals handed out one by one to `n` places end by their sum / n and (1 - 1/n) of the longest, whatever
        their order (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
        """
        kept_s = [
            problem.finals_s + self.beyond.s + (0.0 if problem.place else self.opening.s)
            for problem in self.begun.values()
        ]
        share = 1 / self._count
        return self.left_s() - sum(kept_s) * share - max(kept_s, default=0.0) * (1 - share)

    def _fair_s(self, limit_s: float) -> float:
        problems = max(self._waiting.total() + len(self.begun), 1)
        return min(limit_s, self.left_s(), self._all_s() / problems)

    def _wanted_s(self, limit_s: float) -> float:
        least_s = max(LEAST_SLICE_S, OPENINGS * self.opening.s)
        return min(max(self._fair_s(limit_s) / SLICES, least_s), max(MOST_SLICE_S, least_s))

    def _finals_s(self, limit_s: float) -> float:
        budget_s = self._fair_s(limit_s)
        return finals_share_s(None if math.isinf(budget_s) else max(budget_s, 1.0))
