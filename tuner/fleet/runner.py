"""Runs a night's work on the workers of a Dask cluster. Dask starts and watches; the database is the truth.

Work is pinned to its worker and never tried again by Dask: the lane decides who goes on. A worker counts as
lost if Dask lost it, or if it gets no further for long. It may come back: then its records are stored, and its
champion is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.errors import EnvironmentTrouble, TunerError
from tuner.fleet import node
from tuner.fleet.ledger import ClaimLedger
from tuner.fleet.orders import Answer, Greeting, Identity, Order, Report, WatchOrder, difference
from tuner.night.work import Done, Place, Work


class State(enum.StrEnum):
    """What a worker does."""

    CHECKED = "being checked"
    FREE = "waits"
    WORKS = "works"
    TIMES = "times sentinels"
    REFUSED = "refused"
    SILENT = "silent"
    GONE = "gone"


@dataclass
class Member:
    """A worker.

    Attributes:
        address: Dask's address.
        name: Its name.
        state: What it does.
        why: Why it was refused, or is silent or gone.
        place: Where slices run; None before it was greeted.
        report: What it said of itself.
        work: Its present work.
        order: The order for it.
        future: Dask's future of its present task.
        progress: What it last told of its progress.
        heard_s: `time.monotonic` when it was last heard to get further, or began.
        since_s: `time.monotonic` when its state began.
        busy_s: Seconds that it worked, as it said itself.
        slices: Pieces of work that it brought to an end.
        trials: Trials that it tried in this night, so far as it told.
        trials_before: The same when its present work began.
    """

    address: str
    name: str
    state: State = State.CHECKED
    why: str = ""
    place: Place | None = None
    report: Report | None = None
    work: Work | None = None
    order: Order | None = None
    future: Any = None
    progress: dict[str, Any] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    since_s: float = field(default_factory=time.monotonic)
    busy_s: float = 0.0
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
            "name": self.name,
            "host": self.report.host if self.report else "",
            "device": info.name if info else "",
            "board": info.uuid if info else "",
            "state": self.state.value,
            "why": self.why,
            "doing": self.doing,
            "slices": self.slices,
            "busy_s": self.busy_s,
            "trials": self.trials,
            "trials_per_minute": self.trials / minutes,
            "best_s": self.progress.get("best_s"),
            "best": self.progress.get("best", ""),
            "baseline_s": self.progress.get("baseline_s"),
        }

    @property
    def doing(self) -> str:
        """What it does, for people."""
        if self.work is None or self.state is not State.WORKS:
            return f"{self.state.value}: {self.why}" if self.why else self.state.value
        what = "" if self.work.parts else ", finals"
        stage = self.progress.get("stage", "opening")
        return f"{self.work.item.problem}: {stage}{what}"


#: Seconds without a word of progress after which a worker counts as lost. A worker itself kills a study process
#: that gets no further (`tuner.fleet.keeper.STALL_S`), and is given time to say so.
SILENT_S = 900.0
#: Seconds after which a refused worker is looked at again.
RECHECK_S = 60.0
#: Seconds within which all workers have stopped after Ctrl-C.
STOP_WITHIN_S = 8.0
#: Seconds after which workers that still work are told again to stop.
STOP_AGAIN_S = 0.5
#: Seconds between two looks at which workers there are.
LOOK_EVERY_S = 0.5
#: What is said of a scheduler that ended.
GONE = "the scheduler is gone; what was measured is kept. Start it again, and the same command goes on"


@dataclass(frozen=True)
class Conditions:
    """Which workers may take part.

    Attributes:
        identity: The coordinator's code, kernels and files.
        wanted: Says of a device whether the plan asks for it.
        same_host: Name of the coordinator's machine if no other may take part; else empty.
        silent_s: Seconds without progress after which a worker counts as lost.
        recheck_s: Seconds after which a refused worker is looked at again.
    """

    identity: Identity
    wanted: Callable[[DeviceInfo], bool] = lambda info: True
    same_host: str = ""
    silent_s: float = SILENT_S
    recheck_s: float = RECHECK_S


class ClusterRunner:
    """A `Runner` on the workers of a cluster.

    Attributes:
        members: All workers that were ever seen, by address.
        timed: Worker -> its latest sentinels, a list for each pass, or why it has none.
    """

    def __init__(
        self, client: Any, ledger: ClaimLedger, conditions: Conditions,
        warned: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        """Begins to look for workers.

        Args:
            client: Dask's client.
            ledger: The night's claims.
            conditions: Which workers may take part.
            warned: Is told of workers that were lost.
        """
        self._warned = warned
        self.members: dict[str, Member] = {}
        self.timed: dict[str, Any] = {}
        self._client, self._ledger, self._conditions = client, ledger, conditions
        self._greeting = Greeting(ledger.night, conditions.identity, ledger.database)
        self._done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._gone: list[Place] = []
        self._late: dict[Any, tuple[str, int]] = {}
        self._by_claim: dict[int, Member] = {}
        self._lock = threading.Lock()
        self._looked_s = -LOOK_EVERY_S
        client.subscribe_topic(node.PROGRESS, self._heard)
        self._look()

    def _heard(self, event: tuple[float, dict[str, Any]]) -> None:
        """Takes a message about progress, in a thread of Dask's."""
        told = dict(event[1])
        member = self._by_claim.get(told.pop("claim"))
        if told.pop("night") != self._ledger.night or member is None:
            return
        with self._lock:
            before = member.progress.get("trials", told.get("trials", 0))
            member.trials += max(told.get("trials", before) - before, 0)
            member.progress = {**member.progress, **told}
            member.heard_s = time.monotonic()

    @property
    def at_work(self) -> Collection[Member]:
        """Workers that work."""
        return [each for each in self.members.values() if each.state is State.WORKS]

    def places_of(self, model: str) -> int:
        """Number of workers of a model that work or wait."""
        there = (each for each in self.members.values() if each.state in (State.WORKS, State.FREE))
        return sum(each.place is not None and each.place.info.name == model for each in there)

    @property
    def checking(self) -> bool:
        """True while some worker is being looked at for the first time."""
        return any(each.state is State.CHECKED for each in self.members.values())

    def free(self) -> Sequence[Place]:
        """See the protocol."""
        return [each.place for each in self.members.values() if each.state is State.FREE and each.place]

    def gone(self) -> Sequence[Place]:
        """See the protocol."""
        found, self._gone = self._gone, []
        return found

    def start(self, place: Place, work: Work) -> None:
        """See the protocol.

        Raises:
            StoreTrouble: The database stays away.
        """
        member = next(each for each in self.members.values() if each.place is place)
        order = self._ledger.order(place, work)
        member.work, member.order, member.progress = work, order, {}
        member.trials_before = member.trials
        member.becomes(State.WORKS)
        self._by_claim[order.claim] = member
        self._submit(member, node.work, order, f"tile-tuner-{self._ledger.night[:8]}-{order.claim}")

    def ask(self, place: Place, order: WatchOrder) -> None:
        """Has a free place time sentinels; `timed` has them once it is free again."""
        member = next(each for each in self.members.values() if each.place is place)
        self.timed.pop(place.name, None)
        member.becomes(State.TIMES)
        self._submit(member, node.time, order, f"tile-tuner-sentinels-{time.monotonic_ns()}")

    @property
    def timing(self) -> bool:
        """True while some worker times sentinels."""
        return any(each.state is State.TIMES for each in self.members.values())

    def _submit(self, member: Member, function: Any, message: Any, key: str) -> None:
        if self._client.status != "running":
            raise EnvironmentTrouble(GONE)
        info = member.place.info if member.place else None
        # Two coordinators of one cluster do not meet on a device.
        held = {f"board:{info.uuid or info.name}": 1} if info else None
        member.future = self._client.submit(
            function, message, key=key, workers=[member.address], allow_other_workers=False, resources=held,
            retries=0, pure=False,
        )  # fmt: skip
        member.future.add_done_callback(lambda future: self._done.put((member.address, future)))

    def wait(self, seconds: float) -> Iterable[tuple[Place, Work, Done]]:
        """See the protocol.

        Raises:
            EnvironmentTrouble: The scheduler is gone.
            StoreTrouble: The database stays away.
        """
        found: list[tuple[Place, Work, Done]] = []
        with contextlib.suppress(queue.Empty):
            address, future = self._done.get(timeout=seconds)
            while True:
                found += self._ended(self.members[address], future)
                address, future = self._done.get_nowait()
        self._look()
        return [*found, *self._overdue()]

    def _look(self) -> None:
        """Greets workers that have come, and notes those that have gone."""
        if self._client.status != "running":
            raise EnvironmentTrouble(GONE)
        if time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        there = self._there()
        for address, told in there.items():
            member = self.members.get(address)
            if member is None:
                member = self.members[address] = Member(address, str(told.get("name", address)))
                self._greet(member)
            elif member.state is State.REFUSED and self._is_old(member):
                self._greet(member)
        for address, member in self.members.items():
            if address not in there and member.state is not State.GONE:
                self._vanished(member)

    def _there(self) -> dict[str, Any]:
        """Dask's workers by address.

        Raises:
            EnvironmentTrouble: The scheduler is gone.
        """
        try:
            found: dict[str, Any] | None = self._client.scheduler_info(n_workers=-1).get("workers")
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise EnvironmentTrouble(GONE) from error
        if found is None:
            # A client that has given the scheduler up, maybe just now, answers with an empty table.
            raise EnvironmentTrouble(GONE)
        return found

    def _is_old(self, member: Member) -> bool:
        return time.monotonic() - member.since_s > self._conditions.recheck_s

    def _greet(self, member: Member) -> None:
        member.becomes(State.CHECKED)
        key = f"tile-tuner-greeting-{self._ledger.night[:8]}-{time.monotonic_ns()}"
        self._submit(member, node.greet, self._greeting, key)

    def _ended(self, member: Member, future: Any) -> list[tuple[Place, Work, Done]]:
        """A task has ended: a greeting, a piece of work, or one that nobody waits for any more."""
        try:
            result = future.result(timeout=30)
        except (Exception, asyncio.CancelledError) as error:
            result = error
        late = self._late.pop(future, None)
        if late is not None:
            return self._came_back(member, result)
        if future is not member.future:
            return []
        member.future = None
        if member.state is State.CHECKED:
            self._judge(member, result)
            return []
        if member.state is State.TIMES:
            return self._has_timed(member, result)
        return self._worked(member, result)

    def _has_timed(self, member: Member, result: Any) -> list[tuple[Place, Work, Done]]:
        """A worker has timed sentinels, or could not: then it is looked at anew."""
        assert member.place is not None
        self.timed[member.place.name] = result if isinstance(result, list) else _said(result)
        if isinstance(result, list):
            member.becomes(State.FREE)
        else:
            self._check_again(member)
        return []

    def _judge(self, member: Member, result: Any) -> None:
        """Takes a worker in, or refuses it with the reason."""
        if not isinstance(result, Report):
            member.becomes(State.REFUSED, _said(result))
            return
        member.report = result
        place = member.place or Place(member.name, result.info)
        why = self._why_not(result)
        if why:
            member.becomes(State.REFUSED, why)
            return
        member.place = place
        member.becomes(State.FREE)

    def _why_not(self, report: Report) -> str:
        conditions = self._conditions
        if conditions.same_host and report.host != conditions.same_host:
            return (
                f"a SQLite file is written by one machine alone, {conditions.same_host}, and this is "
                f"{report.host}; give --db postgresql://..., into which all machines can write"
            )
        unlike = difference(conditions.identity, report.identity)
        if unlike or report.complaints:
            return unlike or "; ".join(report.complaints)
        return "" if conditions.wanted(report.info) else f"the plan does not ask for {report.info.name}"

    def _worked(self, member: Member, result: Any) -> list[tuple[Place, Work, Done]]:
        work, order, place = member.work, member.order, member.place
        assert work is not None and order is not None and place is not None
        member.work = member.order = None
        self._by_claim.pop(order.claim, None)
        if not isinstance(result, Answer):
            member.busy_s += time.monotonic() - member.since_s
            self._ledger.lost(order.claim, _said(result))
            self._warned(f"worker {member.name} was lost: {_said(result)}")
            self._check_again(member)
            return [(place, work, Done(lost=_said(result)))]
        member.busy_s += result.seconds
        member.slices += 1
        # A piece of work may be done before it told of its progress twice.
        member.trials = max(member.trials, member.trials_before + result.done.tried)
        if result.trouble:
            member.becomes(State.REFUSED, result.trouble)
            self._gone.append(place)
        elif result.done.lost:
            if not result.done.cut:
                self._warned(f"worker {member.name} was lost: {result.done.lost}")
            self._check_again(member)
        else:
            member.becomes(State.FREE)
        done = self._ledger.accept(result)
        return [(place, work, done or Done(lost="its claim was lost", cut=True, spent_s=result.seconds))]

    def _check_again(self, member: Member) -> None:
        """After a loss a worker is looked at, and hands over what the study process left."""
        if member.place is not None:
            self._gone.append(member.place)
        if member.address in self._there():
            self._greet(member)
        else:
            member.becomes(State.GONE, "it vanished")

    def _came_back(self, member: Member, result: Any) -> list[tuple[Place, Work, Done]]:
        """A worker that was given up: what it brings is stored, and it is looked at anew."""
        if isinstance(result, Answer):
            self._ledger.accept(result)
        if member.state is State.SILENT:
            self._greet(member)
        return []

    def _vanished(self, member: Member) -> None:
        future, member.future = member.future, None
        if member.state is State.WORKS:
            self._done.put((member.address, future))
            member.future = future
            with contextlib.suppress(Exception):
                future.cancel()
            return
        if member.place is not None and member.state is not State.SILENT:
            self._gone.append(member.place)
        member.becomes(State.GONE, "it vanished")

    def _overdue(self) -> list[tuple[Place, Work, Done]]:
        """Gives up workers that get no further, and hands their work out again."""
        found = []
        for member in self.at_work:
            limit_s = self._conditions.silent_s
            if time.monotonic() - member.heard_s < limit_s:
                continue
            work, order, place = member.work, member.order, member.place
            assert work is not None and order is not None and place is not None
            why = f"it told of no progress for {limit_s:.0f} s"
            self._ledger.lost(order.claim, why)
            self._warned(f"worker {member.name} was lost: {why}")
            self._late[member.future] = member.address, order.claim
            member.work = member.order = None
            self._by_claim.pop(order.claim, None)
            member.becomes(State.SILENT, why)
            self._gone.append(place)
            found.append((place, work, Done(lost=why)))
        return found

    def stop(self, why: str, within_s: float = STOP_WITHIN_S) -> list[tuple[Place, Work, Done]]:
        """Ends all work, and takes what it brings within some seconds."""
        found: list[tuple[Place, Work, Done]] = []
        until_s = time.monotonic() + within_s
        again_s = 0.0
        while (busy := self._busy()) and self._client.status == "running" and time.monotonic() < until_s:
            if time.monotonic() > again_s:
                # A worker that has not begun what it was sent last has nothing to stop yet.
                with contextlib.suppress(Exception):
                    self._client.run(node.stop, why, workers=busy, wait=False)
                again_s = time.monotonic() + STOP_AGAIN_S
            with contextlib.suppress(queue.Empty, TunerError):
                address, future = self._done.get(timeout=0.1)
                found += self._ended(self.members[address], future)
        return found

    def _busy(self) -> list[str]:
        """Addresses of the workers that do something for this night."""
        return [each.address for each in self.members.values() if each.state in (State.WORKS, State.TIMES)]

    def close(self) -> None:
        """Lets go of all tasks."""
        with contextlib.suppress(Exception):
            self._client.unsubscribe_topic(node.PROGRESS)
        for member in self.members.values():
            if member.future is not None:
                with contextlib.suppress(Exception):
                    member.future.release()


def _said(result: Any) -> str:
    """What went wrong, in words: an error of ours, or Dask's."""
    if isinstance(result, TunerError):
        return str(result)
    if isinstance(result, BaseException):
        return f"its worker vanished ({type(result).__name__})" if _is_loss(result) else f"{result!r}"
    return str(result)


def _is_loss(error: BaseException) -> bool:
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"CancelledError", "KilledWorker", "CommClosedError", "TimeoutError"})
