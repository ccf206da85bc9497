"""A night on a fleet: one lane for each model of device, all of them fed from one plan."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import DeviceTrouble, EnvironmentTrouble, Interrupted
from tuner.fleet.clusters import Cluster, ClusterRequest, connected
from tuner.fleet.orders import SentinelOrder, identity_of
from tuner.fleet.runner import (
    RECHECK_S,
    SILENT_S,
    Admission,
    ClaimLedger,
    ClusterRunner,
    Member,
    State,
)
from tuner.night.plan.items import Plan, PlanItem, asks_for
from tuner.night.scheduler import Lane, NightItem, NightRules, play
from tuner.night.sentinels import Pass, Timed, Watched
from tuner.night.standing import Standing
from tuner.night.work import Done, Place, Work
from tuner.store import Store
from tuner.store.claims import Claims, patiently
from tuner.study.locks import Occupancy

#: Seconds between two looks for workers while there is none.
LOOK_S = 0.5
#: Seconds for which the workers that are there at the start are waited for.
GREET_WITHIN_S = 30.0
#: Seconds for which a better worker is waited for if all are refused.
REFUSED_S = 5.0


@dataclass
class FleetNight:
    """One run through a plan on a cluster.

    Attributes:
        plan: The plan.
        store: The database.
        client: Dask's client.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        url: The database's URL, as workers reach it.
        anywhere: True if workers on other machines may take part.
        devices: Devices to use, in place of the plan's.
        again: True to continue problems that are done, too.
        said: As in `tuner.night.night.Night`.
        warned: As in `tuner.night.night.Night`.
        silent_s: Seconds without progress after which a worker counts as lost.
        recheck_s: Seconds after which a refused worker is looked at again.
        stopped: Asked now and then; a reason ends the night.
        hold: Makes sure that this is still the only coordinator; raises `LockedByAnother` if not.
        greeted: Called once the workers that are there were greeted, before any slice.
    """

    plan: Plan
    store: Store
    client: Any
    seed: int
    deadline_s: float | None
    url: str
    anywhere: bool = False
    devices: tuple[str, ...] = ()
    again: bool = False
    said: Callable[[PlanItem, int, float | None], None] = lambda item, slices, gain: None
    warned: Callable[[str], None] = lambda text: None
    silent_s: float = SILENT_S
    recheck_s: float = RECHECK_S
    stopped: Callable[[], str] = lambda: ""
    greeted: Callable[[FleetNight], None] = lambda night: None
    hold: Callable[[], None] = lambda: None
    _lanes: dict[str, Lane] = field(default_factory=dict, init=False)
    _enlisted: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.ledger = ClaimLedger(self.store, self.url, self.hold)
        self._begun_s = self._slices_from_s = time.monotonic()
        files = {str(item.file) for item in self.plan.items if item.file is not None}
        host = "" if self.anywhere else socket.gethostname()
        admission = Admission(identity_of(files), self._wanted, host, self.silent_s, self.recheck_s)
        self.runner = ClusterRunner(self.client, self.ledger, admission, self.warned)
        self._rules = NightRules(
            self.left_s,
            self.seed,
            self.plan.sampler,
            self.url if self.url.startswith("postgresql") else None,
            self.again,
            self.said,
            self.warned,
        )

    def run(self) -> Iterator[NightItem]:
        """Hands out slices to all workers that have a device asked for, and yields each problem's result.

        Raises:
            EnvironmentTrouble: The scheduler is gone, or the database stays away.
        """
        try:
            runner = _Stopping(self.runner, self.stopped)
            self._wait_for_workers(runner)
            self.greeted(self)
            self._slices_from_s = time.monotonic()
            for place in self.runner.free():
                self._lane_of(place)
            yield from play(self._lane_of, self._all_lanes, runner)
            yield from self._without_device("the deadline came first" if self.left_s() <= 0 else "")
        finally:
            self._end("the night was stopped")

    def _wait_for_workers(self, runner: _Stopping) -> None:
        """Returns when some worker is free, and all that are there were looked at."""
        refused_s = math.inf
        while not self.runner.free() and self.left_s() > 0:
            runner.wait(LOOK_S)
            if not self.members or any(each.state is not State.REFUSED for each in self.members):
                refused_s = time.monotonic() + REFUSED_S
            if time.monotonic() > refused_s:
                told = "; ".join(f"{each.name}: {each.why}" for each in self.members)
                raise EnvironmentTrouble(f"a night needs a worker that can take part, all are refused: {told}")
        until_s = time.monotonic() + GREET_WITHIN_S
        while self.runner.checking and self.left_s() > 0 and time.monotonic() < until_s:
            runner.wait(LOOK_S)

    def pause(self) -> None:
        """Waits a moment for workers.

        Raises:
            Interrupted: The night was ended from outside.
            EnvironmentTrouble: The scheduler is gone.
        """
        _Stopping(self.runner, self.stopped).wait(LOOK_S)

    def left_s(self) -> float:
        """Seconds left; infinite without an end."""
        return math.inf if self.deadline_s is None else self.deadline_s - time.monotonic()

    @property
    def members(self) -> list[Member]:
        """The workers."""
        return list(self.runner.members.values())

    def snapshot(self) -> dict[str, Any]:
        """What is going on, as a JSON object: workers, problems left, seconds left."""
        minutes = max(self.elapsed_s, 1.0) / 60
        lanes = [lane.left for lane in self._lanes.values()]
        return {
            "night": self.ledger.night,
            "left_s": None if math.isinf(self.left_s()) else max(self.left_s(), 0.0),
            "elapsed_s": self.elapsed_s,
            "slices_s": time.monotonic() - self._slices_from_s,
            "problems_left": sum(lanes),
            "slices": self.ledger.slices,
            "trials_per_minute": sum(each.trials for each in self.members) / minutes,
            "workers": [each.to_json(minutes) for each in self.members],
        }

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun_s

    def unfinished(self, why: str) -> list[NightItem]:
        """Returns the remaining results if the night was ended from outside."""
        found = [each for lane in self._lanes.values() for each in lane.unfinished(why)]
        return [*found, *self._without_device(why)]

    def _names_of(self, item: PlanItem) -> Collection[str]:
        return self.devices or item.devices or tuple(filter(None, [self.plan.device]))

    def _wanted(self, info: DeviceInfo) -> bool:
        return any(asks_for(self._names_of(item), info) for item in self.plan.items)

    def _all_lanes(self) -> Collection[Lane]:
        return list(self._lanes.values())

    def _lane_of(self, place: Place) -> Lane:
        """The lane of a place's model; the first place of a model opens it."""
        model = place.info.name
        if model not in self._lanes:
            self._lanes[model] = patiently(lambda: self._new_lane(place))
        return self._lanes[model]

    def _new_lane(self, place: Place) -> Lane:
        """A lane with the plan's problems for the model of a place, and what is stored of them."""
        info = place.info
        lane = Lane(self._rules, lambda: self.runner.places_of(info.name))
        standing = Standing(self.store, info, self._versions(place))
        for number, item in enumerate(self.plan.items):
            if asks_for(self._names_of(item), info):
                self._enlisted.add(number)
                lane.tell(lane.enlist(f"{number}: {item.problem}", item, info, standing))
        lane.begin(standing)
        return lane

    def _versions(self, place: Place) -> dict[str, str]:
        reports = (each.report for each in self.members if each.place is place)
        return dict(next((each.versions for each in reports if each is not None), {}))

    def _without_device(self, why: str) -> Iterator[NightItem]:
        """Problems for which no worker came."""
        for number, item in enumerate(self.plan.items):
            if number not in self._enlisted:
                names = ", ".join(self._names_of(item)) or "a device"
                yield NightItem(item, "not reached", why=why or f"no worker has {names}")

    def _end(self, why: str) -> None:
        """Stops what still runs, and lets go of the cluster; what is measured is stored."""
        for place, _, done in self.runner.stop(why):
            self._lanes[place.info.name].count(place, done)
        self.runner.close()
        self.ledger.close()


class _Stopping:
    """A runner that asks whether the night was ended from outside."""

    def __init__(self, runner: ClusterRunner, stopped: Callable[[], str]) -> None:
        self._runner, self._stopped = runner, stopped
        self.free, self.start, self.gone = runner.free, runner.start, runner.gone

    def wait(self, seconds: float) -> Collection[tuple[Place, Work, Done]]:
        """As the runner.

        Raises:
            Interrupted: The night was ended from outside.
        """
        why = self._stopped()
        if why:
            raise Interrupted(why)
        return list(self._runner.wait(seconds))


#: Stands for all devices of a fleet in the lock beside a database.
_FLEET = DeviceInfo("a fleet", "fleet", uuid="fleet")


@dataclass(frozen=True)
class Fleet:
    """A cluster and the database of its records. It runs plans, one after the other.

    Attributes:
        cluster: The cluster.
        store: The database.
        url: The database's URL for workers.
        hold: Makes sure that this is still the only coordinator.
        anywhere: True if workers on other machines may take part.
    """

    cluster: Cluster
    store: Store
    url: str
    anywhere: bool
    hold: Callable[[], None]

    def night(self, plan: Plan, seed: int, deadline_s: float | None, **more: Any) -> FleetNight:
        """Makes a night: `run` tunes it, in any thread, `snapshot` shows it, `stopped` ends it from outside.

        Args:
            plan: The plan; a job of one problem is a plan of one item.
            seed: Seed of the searches.
            deadline_s: `time.monotonic` at which to stop; None without a deadline.
            more: More attributes of `FleetNight`.
        """
        client, url = self.cluster.client, self.url
        return FleetNight(
            plan, self.store, client, seed, deadline_s, url, anywhere=self.anywhere, hold=self.hold, **more
        )


@contextlib.contextmanager
def coordinating(store: Store, url: str) -> Iterator[Callable[[], None]]:
    """Keeps other coordinators of this database out while the block runs.

    Raises:
        LockedByAnother: Another coordinator works with it; the message names it.
        EnvironmentTrouble: The lock beside the database cannot be written.
    """
    with Occupancy(url, _FLEET, "a fleet"), Claims(store).coordinating() as hold:
        yield hold


def absolute_url(url: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    return f"{prefix}{Path(url.removeprefix(prefix)).absolute()}" if url.startswith(prefix) else url


@contextlib.contextmanager
def opened(url: str, request: ClusterRequest) -> Iterator[Fleet]:
    """Opens a database and a cluster; both are let go at the end of the block.

    Args:
        url: The database.
        request: The cluster.

    Raises:
        InputError: It is no cluster.
        EnvironmentTrouble: The cluster does not answer.
        StoreTrouble: The database cannot be used.
        LockedByAnother: Another coordinator works with it.
    """
    with Store.open(url) as store, coordinating(store, url) as hold, connected(request) as cluster:
        yield Fleet(cluster, store, absolute_url(url), url.startswith("postgresql"), hold)


#: Seconds that a pass over sentinels may take: to begin, for each problem beside its rounds, and as a multiple.
BEGIN_S, BESIDE_S, SLACK = 60.0, 10.0, 3.0
#: Seconds beyond these for which a worker that says nothing is waited for.
START_LIMIT_S = 180.0


class Workers:
    """The workers of a fleet that are free at a night's start and have one model of device."""

    def __init__(self, night: FleetNight, places: Sequence[Place]) -> None:
        """Times nothing yet.

        Args:
            night: The night, whose workers have been greeted.
            places: The workers' boards, of one model.
        """
        self._night, self._places = night, {place.name: place for place in places}

    @property
    def info(self) -> DeviceInfo:
        """See `tuner.night.sentinels.Boards`."""
        return next(iter(self._places.values())).info

    @property
    def names(self) -> Sequence[str]:
        """See `tuner.night.sentinels.Boards`."""
        return list(self._places)

    def timed(self, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]) -> dict[str, Timed]:
        """See `tuner.night.sentinels.Boards`; all boards at once, and each by its own worker."""
        runner, limit_s = self._night.runner, 0.0
        for place in [place for place in runner.free() if place.name in wanted]:
            problems = wanted[place.name]
            order = SentinelOrder.of(problems, passes, sum(_limit_s(one, len(problems)) for one in passes))
            limit_s = max(limit_s, order.limit_s)
            runner.time_sentinels(place, order)
        # A worker ends what takes longer, so that this is for one that says nothing.
        until_s = time.monotonic() + START_LIMIT_S + limit_s
        while (runner.timing or runner.checking) and time.monotonic() < until_s:
            self._night.pause()
        return {
            name: runner.timed.get(name) or DeviceTrouble(f"{name} timed no sentinels: it vanished")
            for name in wanted
        }


def of_models(night: FleetNight) -> list[Workers]:
    """The workers that are free, by model of device."""
    models: dict[str, list[Place]] = {}
    for place in night.runner.free():
        models.setdefault(place.info.name, []).append(place)
    return [Workers(night, places) for places in models.values()]


def _limit_s(one: Pass, problems: int) -> float:
    return SLACK * (one.processes * (BEGIN_S + problems * BESIDE_S) + problems * one.terms.budget_s)
