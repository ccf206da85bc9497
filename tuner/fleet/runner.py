"""Runs a night's work on the workers of a Dask cluster. Dask starts and watches; the database is the truth.

Work is pinned to its worker and never tried again by Dask: the scheduler of the night decides who goes on. A
worker counts as lost if Dask lost it, or if it gets no further for long. It may come back: then its records are
stored, and its champion is not.
"""

import asyncio
import contextlib
import enum
import functools
import queue
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import DeviceTrouble, EnvironmentTrouble, TunerError
from tuner.fleet import device_plugin, orders
from tuner.night.claims import DONE, FAILED, LOST, STOPPED, Claims, patiently
from tuner.night.scheduler import Night
from tuner.night.sentinels import Boards, Pass, Timed, Watched
from tuner.night.work import Assignment, Done, Place, study_of
from tuner.results.record import new_id
from tuner.store import Store

#: Seconds without a word of progress after which a worker counts as lost. A worker itself ends a study that
#: gets no further (`tuner.fleet.device_plugin.STALL_S`), and is given time to say so.
SILENT_S = 900.0
#: Seconds after which a refused worker is looked at again.
RECHECK_S = 60.0
#: Seconds within which all workers have stopped after Ctrl-C, and after which they are told again to stop.
STOP_WITHIN_S, STOP_AGAIN_S = 8.0, 0.5
#: Seconds between two looks at which workers there are.
LOOK_S = 0.5
#: Seconds for which the workers that are there at the start are waited for, and for which a better worker is
#: waited for if all are refused.
GREET_WITHIN_S, REFUSED_S = 30.0, 5.0
#: Seconds that a pass over sentinels may take: to begin, for each problem beside its rounds, and as a multiple.
BEGIN_S, BESIDE_S, SLACK = 60.0, 10.0, 3.0
#: Seconds beyond these for which a worker that says nothing is waited for.
START_LIMIT_S = 180.0
#: Why a night ends whose scheduler ended.
GONE = "the scheduler is gone; what was measured is kept. Start it again, and the same command goes on"


class ClaimLedger:
    """Claims of one night: it takes one for each piece of work, and ends it with what came of it.

    Workers write records and champions into the database themselves, each under its claim.

    Attributes:
        night: Id of the run of the plan.
        database: What workers are told of the database.
        slices: Orders so far.
    """

    def __init__(self, store: Store, url: str, hold: Callable[[], None] = lambda: None) -> None:
        """Begins a night. What a coordinator that died left running is ended: only one works at a time.

        Args:
            store: The database.
            url: Its URL, as workers reach it.
            hold: Makes sure that this is still the only coordinator; raises `LockedByAnother` if not.

        Raises:
            StoreTrouble: The database stays away.
        """
        self.night = new_id()
        self.database = orders.Database(store.identity, url)
        self.slices = 0
        self._claims, self._hold = Claims(store), hold
        patiently(lambda: self._claims.abandon("its coordinator is gone"))

    def order(self, place: Place, work: Assignment) -> orders.Order:
        """Claims a study for a worker, and says what the worker is to do.

        Raises:
            LockedByAnother: Another coordinator has taken the database over.
            StoreTrouble: The database stays away.
        """
        patiently(self._hold)
        self.slices += 1
        info, what = place.info, "slice" if work.parts else "finals"
        study = study_of(work.item, info, work.kernels)
        claim = patiently(lambda: self._claims.take(self.night, study, what, place.name, info.name, info.uuid))
        return orders.Order.of(work, self.night, claim, study, self.database)

    def accept(self, answer: orders.WorkAnswer) -> bool:
        """Ends the claim of an answer; False if it was lost before, so that only its records count.

        Raises:
            StoreTrouble: The database stays away.
        """
        done = answer.done
        state, why = FAILED if done.failed or done.lost else DONE, done.lost or done.failed
        if done.lost and done.cut:
            state = STOPPED
        return patiently(lambda: self._claims.end(answer.claim, state, why, done.trials.get("total")))

    def lost(self, claim: int, why: str, state: str = LOST) -> None:
        """Declares the worker of a claim dead: its records will count, its champion will not."""
        patiently(lambda: self._claims.end(claim, state, why))

    def close(self) -> None:
        """Ends the claims that are left of this night."""
        patiently(lambda: self._claims.abandon("its coordinator ended", self.night))


class State(enum.StrEnum):
    """What a worker does."""

    CHECKED = "being checked"
    FREE = "waits"
    WORKS = "works"
    TIMES = "times sentinels"
    REFUSED = "refused"
    GONE = "gone"


@dataclass
class Member:
    """A worker.

    Attributes:
        name: Its name.
        address: Dask's address.
        state: What it does.
        why: Why it was refused, or is gone.
        place: Where slices run; None before it was greeted.
        work: Its present work.
        claim: Number of the claim of its present work.
        future: Dask's future of its latest task.
        progress: What it last told of its progress.
        heard_s: `time.monotonic` when it was last heard to get further, or began.
        since_s: `time.monotonic` when its state began.
        slices: Pieces of work that it brought to an end.
        trials: Trials that it tried in this night, so far as it told.
        trials_before: The same when its present work began.
    """

    name: str
    address: str
    state: State = State.CHECKED
    why: str = ""
    place: Place | None = None
    work: Assignment | None = None
    claim: int = 0
    future: Any = None
    progress: dict[str, Any] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    since_s: float = field(default_factory=time.monotonic)
    slices: int = 0
    trials: int = 0
    trials_before: int = 0

    def becomes(self, state: State, why: str = "") -> None:
        """Changes the state."""
        self.state, self.why = state, why
        self.since_s = self.heard_s = time.monotonic()

    def to_json(self, minutes: float) -> dict[str, Any]:
        """Returns the worker as a JSON object.

        Args:
            minutes: Since the night began.
        """
        info = self.place.info if self.place else None
        return {
            "name": self.name, "device": info.name if info else "",
            "board": info.uuid if info else "", "state": self.state.value, "why": self.why, "doing": self.doing,
            "slices": self.slices, "trials": self.trials, "trials_per_minute": self.trials / minutes,
            "best_s": self.progress.get("best_s"),
        }  # fmt: skip

    @property
    def doing(self) -> str:
        """What it does, for people."""
        if self.work is None or self.state is not State.WORKS:
            return f"{self.state.value}: {self.why}" if self.why else self.state.value
        what = "" if self.work.parts else ", finals"
        stage = self.progress.get("stage", "opening")
        return f"{self.work.item.problem}: {stage}{what}"


class ClusterRunner:
    """A `Runner` on the workers of a cluster.

    Attributes:
        ledger: The night's claims.
        members: All workers that there ever were, by name.
        timed: Worker -> its latest sentinels, a list for each pass, or why it has none.
        looked: Called twice a second, after a look at the workers.
        silent_s: Seconds without progress after which a worker counts as lost.
        recheck_s: Seconds after which a refused worker is looked at again.
    """

    silent_s, recheck_s = SILENT_S, RECHECK_S

    def __init__(
        self, client: Any, ledger: ClaimLedger, files: Collection[str] = (), same_host: str = "",
        wanted: Callable[[DeviceInfo], bool] = lambda info: True,
        warned: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        """Begins to look for workers.

        Args:
            client: Dask's client.
            ledger: The night's claims.
            files: Users' kernel files of the night.
            same_host: Name of the coordinator's machine if no other may take part; else empty.
            wanted: Says of a device whether the plan asks for it.
            warned: Is told of workers that were lost.
        """
        self.ledger, self.members = ledger, dict[str, Member]()
        self.timed: dict[str, Timed] = {}
        self.looked: Callable[[], None] = lambda: None
        self._client, self._wanted, self._warned = client, wanted, warned
        self._files, self._same_host, self._identity = tuple(files), same_host, orders.identity_of(files)
        self._ended: queue.SimpleQueue[tuple[Member, Any]] = queue.SimpleQueue()
        self._results: list[tuple[Place, Assignment, Done]] = []
        self._gone: list[Place] = []
        self._begun_s = time.monotonic()
        self._looked_s = -LOOK_S
        client.subscribe_topic(device_plugin.PROGRESS, self._take_progress)
        self._look()

    def _take_progress(self, event: tuple[float, dict[str, Any]]) -> None:
        """Takes a message about progress, in a thread of Dask's."""
        progress = dict(event[1])
        night, claim = progress.pop("night"), progress.pop("claim")
        if progress.get("stage") == "opening":
            progress.pop("trials", None)  # those of earlier slices are read meanwhile
        for member in self.members_in(State.WORKS):
            if (night, claim) == (self.ledger.night, member.claim):
                before = member.progress.get("trials", progress.get("trials", 0))
                member.trials += max(progress.get("trials", before) - before, 0)
                member.progress = {**member.progress, **progress}
                member.heard_s = time.monotonic()

    def members_in(self, *states: State) -> list[Member]:
        """The workers in some states."""
        return [member for member in list(self.members.values()) if member.state in states]

    def places_of(self, model: str) -> int:
        """See the protocol."""
        places = [member.place for member in self.members_in(State.WORKS, State.FREE)]
        return sum(place is not None and place.info.name == model for place in places)

    def free(self) -> Sequence[Place]:
        """See the protocol."""
        return [member.place for member in self.members_in(State.FREE) if member.place]

    def gone(self) -> Sequence[Place]:
        """See the protocol."""
        gone, self._gone = self._gone, []
        return gone

    def gather(self, left_s: Callable[[], float]) -> None:
        """Returns when some worker is free, and all that are there were looked at.

        Args:
            left_s: Seconds left of the night.

        Raises:
            EnvironmentTrouble: All workers are refused, or the scheduler is gone.
        """
        free_s = usable_s = time.monotonic()
        while left_s() > 0:
            members, now_s = list(self.members.values()), time.monotonic()
            if not self.free():
                free_s = now_s
            elif not self.members_in(State.CHECKED) or now_s > free_s + GREET_WITHIN_S:
                break
            if not members or len(self.members_in(State.REFUSED)) < len(members):
                usable_s = now_s
            elif now_s > usable_s + REFUSED_S:
                reasons = "; ".join(f"{member.name}: {member.why}" for member in members)
                raise EnvironmentTrouble(
                    f"a night needs a worker that can take part, all are refused: {reasons}"
                )
            self.wait(LOOK_S)

    def start(self, place: Place, work: Assignment) -> None:
        """See the protocol.

        Raises:
            StoreTrouble: The database stays away.
        """
        member = self.members[place.name]
        order = self.ledger.order(place, work)
        member.work, member.claim, member.progress = work, order.claim, {}
        member.trials_before = member.trials
        member.becomes(State.WORKS)
        self._submit(member, "work", order)

    def time_sentinels(self, place: Place, order: orders.SentinelOrder) -> None:
        """Has a free place time sentinels; `timed` has them once it is free again."""
        self.timed.pop(place.name, None)
        self.members[place.name].becomes(State.TIMES)
        self._submit(self.members[place.name], "time", order)

    def _submit(self, member: Member, what: str, message: Any) -> None:
        if self._client.status != "running":
            raise EnvironmentTrouble(GONE)
        info = member.place.info if member.place else None
        # Two coordinators of one cluster do not meet on a device.
        held = {f"board:{info.uuid or info.name}": 1} if info else None
        member.future = self._client.submit(
            device_plugin.perform, what, message, key=f"tile-tuner-{what}-{new_id()}", workers=[member.address],
            allow_other_workers=False, resources=held, retries=0, pure=False,
        )  # fmt: skip
        member.future.add_done_callback(lambda future: self._ended.put((member, future)))

    def wait(self, seconds: float) -> Iterable[tuple[Place, Assignment, Done]]:
        """See the protocol.

        Raises:
            EnvironmentTrouble: The scheduler is gone.
            StoreTrouble: The database stays away.
        """
        with contextlib.suppress(queue.Empty):
            self._take_result(*self._ended.get(timeout=seconds))
            while True:
                self._take_result(*self._ended.get_nowait())
        self._look()
        for member in self.members_in(State.WORKS):
            if time.monotonic() - member.heard_s > self.silent_s:
                # Its task is cancelled: if it returns, its plugin ends the work, and it is greeted anew.
                self._lose(member, f"it told of no progress for {self.silent_s:.0f} s")
        results, self._results = self._results, []
        return results

    def _look(self) -> None:
        """Greets workers that have come, and notes those that have gone."""
        if self._client.status != "running":
            raise EnvironmentTrouble(GONE)
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        workers = self._workers()
        for member in self.members.values():
            if workers.get(member.name) != member.address and member.state is not State.GONE:
                self._lose(member, member.progress.get("lost", "it vanished"))
        for name, address in workers.items():
            member = self.members.setdefault(name, Member(name, address, State.GONE))
            waits_s = time.monotonic() - member.since_s
            if member.state is State.GONE or (member.state is State.REFUSED and waits_s > self.recheck_s):
                member.address = address
                member.becomes(State.CHECKED)
                self._submit(member, "greet", orders.Greeting(self._files, self.ledger.database))
        self.looked()

    def _workers(self) -> dict[str, str]:
        """Addresses of Dask's workers by name.

        Raises:
            EnvironmentTrouble: The scheduler is gone.
        """
        try:
            # Client.scheduler_info may answer without workers, as a timer of Dask's asked meanwhile.
            answer = self._client.sync(self._client.scheduler.identity, n_workers=-1)
        except (AttributeError, OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise EnvironmentTrouble(GONE) from error  # a client that has given its scheduler up has None
        return {str(worker.get("name", address)): address for address, worker in answer["workers"].items()}

    def _take_result(self, member: Member, future: Any) -> None:
        """A task has ended: a greeting, a piece of work, or one that nobody waits for any more."""
        if future is not member.future:
            return
        try:
            result = future.result(timeout=30)
        except (Exception, asyncio.CancelledError) as error:
            result = error
        match member.state:
            case State.CHECKED:
                self._admit(member, result)
            case State.TIMES:
                self._take_sentinels(member, result)
            case State.WORKS:
                self._take_answer(member, result)

    def _admit(self, member: Member, result: Any) -> None:
        """Takes a worker in, or refuses it with the reason."""
        why = _reason_of(result)
        if isinstance(result, orders.WorkerReport):
            why = self._why_not(result)
        if why:
            member.becomes(State.REFUSED, why)
            return
        member.place = member.place or Place(member.name, result.info, result.versions)
        member.becomes(State.FREE)

    def _why_not(self, report: orders.WorkerReport) -> str:
        """Why a worker may not take part; empty if it may."""
        if self._same_host and report.host != self._same_host:
            return (
                f"a SQLite file is written by one machine alone, {self._same_host}, and this is "
                f"{report.host}; give --db postgresql://..., into which all machines can write"
            )
        trouble = orders.difference(self._identity, report.identity) or "; ".join(report.complaints)
        return trouble or ("" if self._wanted(report.info) else f"the plan does not ask for {report.info.name}")

    def _take_sentinels(self, member: Member, result: Any) -> None:
        """A worker has timed sentinels, or could not: then it is looked at anew."""
        if isinstance(result, list):
            self.timed[member.name] = result
            member.becomes(State.FREE)
            return
        self.timed[member.name] = DeviceTrouble(f"{member.name} timed no sentinels: {_reason_of(result)}")
        self._lose(member, _reason_of(result))

    def _take_answer(self, member: Member, result: Any) -> None:
        work, place = member.work, member.place
        assert work is not None and place is not None
        if not isinstance(result, orders.WorkAnswer):
            self._lose(member, _reason_of(result))
            return
        member.work = None
        member.slices += 1
        # A piece of work may be done before it told of its progress twice.
        member.trials = max(member.trials, member.trials_before + result.done.tried)
        fenced = Done(lost="its claim was lost", cut=True, spent_s=result.done.spent_s)
        self._results.append((place, work, result.done if self.ledger.accept(result) else fenced))
        if result.done.lost and not result.done.cut:
            self._warned(f"worker {member.name} was lost: {result.done.lost}")
        if result.trouble:
            member.becomes(State.REFUSED, result.trouble)
            self._gone.append(place)
        elif result.done.lost:
            # The next look greets it.
            self._lose(member, result.done.lost)
        else:
            member.becomes(State.FREE)

    def _lose(self, member: Member, why: str) -> None:
        """Takes a worker's place away, and hands its work out again. The next look greets it if it is there."""
        work, place, future = member.work, member.place, member.future
        member.work = member.future = None
        if future is not None and not future.done():
            with contextlib.suppress(Exception):
                future.cancel()
        if place is not None:
            self._gone.append(place)
        if work is not None and place is not None:
            cut = bool(member.progress.get("cut"))
            self.ledger.lost(member.claim, why, STOPPED if cut else LOST)
            if not cut:
                self._warned(f"worker {member.name} was lost: {why}")
            spent_s = time.monotonic() - member.since_s
            self._results.append((place, work, Done(lost=why, cut=cut, spent_s=spent_s)))
        member.becomes(State.GONE, why)

    def stop(self, why: str) -> list[tuple[Place, Assignment, Done]]:
        """See the protocol; what is not ended within some seconds counts as lost."""
        until_s, again_s = time.monotonic() + STOP_WITHIN_S, 0.0
        while (busy := self.members_in(State.WORKS, State.TIMES)) and time.monotonic() < until_s:
            if self._client.status != "running":
                break
            if time.monotonic() > again_s:
                # A worker that has not begun what it was sent last has nothing to stop yet.
                addresses = [member.address for member in busy]
                with contextlib.suppress(Exception):
                    self._client.run(device_plugin.stop, why, workers=addresses, wait=False)
                again_s = time.monotonic() + STOP_AGAIN_S
            with contextlib.suppress(queue.Empty, TunerError):
                self._look()
                self._take_result(*self._ended.get(timeout=0.1))
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(device_plugin.PROGRESS)
        for member in self.members.values():
            with contextlib.suppress(Exception):
                member.future.release()
        self.ledger.close()
        results, self._results = self._results, []
        return results

    def snapshot(self, left_s: float, problems_left: int) -> dict[str, Any]:
        """What is going on, as a JSON object: workers, problems left, seconds left.

        Args:
            left_s: Seconds left of the night; infinite without an end.
            problems_left: Problems without a result.
        """
        now_s, members = time.monotonic(), list(self.members.values())
        minutes = max(now_s - self._begun_s, 1.0) / 60
        return {
            "night": self.ledger.night, "left_s": None if left_s == float("inf") else max(left_s, 0.0),
            "elapsed_s": now_s - self._begun_s, "problems_left": problems_left, "slices": self.ledger.slices,
            "trials_per_minute": round(sum(member.trials for member in members) / minutes, 1),
            "workers": [member.to_json(minutes) for member in members],
        }  # fmt: skip


def runner_of(
    night: Night, client: Any, url: str, hold: Callable[[], None] = lambda: None, *, anywhere: bool = False
) -> ClusterRunner:
    """Begins a night on a cluster.

    Args:
        night: The night.
        client: Dask's client.
        url: The database's URL, as workers reach it.
        hold: Makes sure that this is still the only coordinator; raises `LockedByAnother` if not.
        anywhere: True if workers on other machines may take part.
    """
    files = {str(item.file) for item in night.plan.items if item.file is not None}
    host, ledger = "" if anywhere else socket.gethostname(), ClaimLedger(night.store, url, hold)
    return ClusterRunner(client, ledger, files, host, night.wants, night.warned)


def _reason_of(result: Any) -> str:
    """What went wrong, in words: an error of ours, or Dask's."""
    ours = isinstance(result, TunerError) or not isinstance(result, BaseException)
    return str(result) if ours else f"its task ended with {result!r}"


def of_models(runner: ClusterRunner) -> list[Boards]:
    """The boards of workers that are free, by model of device."""
    models: dict[str, list[Place]] = {}
    for place in runner.free():
        models.setdefault(place.info.name, []).append(place)
    timed = functools.partial(_timed, runner)
    return [Boards(places[0].info, [place.name for place in places], timed) for places in models.values()]


def _timed(
    runner: ClusterRunner, wanted: Mapping[str, Sequence[Watched]], passes: Sequence[Pass]
) -> dict[str, Timed]:
    """Has all boards time sentinels at once, each by its own worker; see `tuner.night.sentinels.Boards`."""
    problems = max(map(len, wanted.values()), default=0)
    limit_s = SLACK * sum(
        one.processes * (BEGIN_S + problems * BESIDE_S) + problems * one.budget_s for one in passes
    )
    for place in [place for place in runner.free() if place.name in wanted]:
        runner.time_sentinels(place, orders.SentinelOrder.of(wanted[place.name], passes, limit_s))
    # A worker ends what takes longer, so that this is for one that says nothing.
    until_s = time.monotonic() + START_LIMIT_S + limit_s
    while runner.members_in(State.TIMES, State.CHECKED) and time.monotonic() < until_s:
        runner.wait(LOOK_S)
    return {
        name: runner.timed.get(name) or DeviceTrouble(f"{name} timed no sentinels: it vanished")
        for name in wanted
    }
