"""One run through a plan: slices for the problems that gain, finals for each, until a deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from tuner.declare.kernel import Kernel
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError, NothingFound
from tuner.lookup.stale import installed_compiler, staleness
from tuner.nightly.entries import Entry, Stage, View
from tuner.nightly.items import NightItem
from tuner.nightly.plan import Plan, PlanItem
from tuner.nightly.slices import LEAST_SLICE_S, Share, Slices
from tuner.results.error_limit import ErrorLimit
from tuner.results.record import Champion, Record, Role
from tuner.search import Budget
from tuner.store import Store
from tuner.study.progress import Request
from tuner.study.setup import check_fits, key_of, study_name

#: Largest number of finals of a problem while its champion stays provisional: two in each of three nights.
FINALS_IN_DOUBT = 6
#: Reason for finishing a problem whose search could go on.
TIME_IS_UP = "the night's time is up"
#: Reason why a problem was not reached.
TOO_LATE = "the deadline came first"


def kernels_of(item: PlanItem, target: str) -> tuple[Kernel, ...]:
    """Returns the kernels that compete for an item.

    Raises:
        InputError: There is no kernel for the target.
    """
    problem = item.problem
    found = item.catalogue.of(problem.operation.name, target, item.kernels, problem.precision, problem.dtype)
    if not found:
        raise InputError(f"{item.problem.operation.name} has no kernel for {target}")
    return found


@dataclass
class Night:
    """One run through a plan.

    Attributes:
        plan: The plan to tune.
        store: Where records go.
        found: The device, or several of one kind.
        seed: Seed of the searches.
        deadline_s: `time.monotonic` at which to stop; None without a deadline.
        storage_url: Database for Optuna's tables.
        again: True to continue problems that are done, too.
        warned: Called before any tuning if the night is too short for the plan.
        said: Called after each slice with the problem, its number of slices, and the share that this one
            gained; None if nothing was measured before.
    """

    plan: Plan
    store: Store
    found: tuple[DetectedDevice, ...]
    seed: int
    deadline_s: float | None
    storage_url: str | None = None
    again: bool = False
    said: Callable[[PlanItem, int, float | None], None] = lambda item, slices, gain: None
    warned: Callable[[str], None] = lambda text: None
    _entries: dict[str, Entry] = field(default_factory=dict, init=False)
    _enlisted: int = field(default=0, init=False)
    _in_doubt: list[tuple[Entry, NightItem]] = field(default_factory=list, init=False)

    def run(self, view: View = lambda item: nullcontext(lambda progress: None)) -> Iterator[NightItem]:
        """Tunes the problems in slices, and yields the result of each as soon as it is known.

        Problems with a stale champion come first, then the others in the plan's order. A problem that fails for
        a reason of its own does not end the night. If a champion is provisional, its finals are repeated after
        all others, if time allows, and again in later nights.

        Args:
            view: Shows the progress of each study.

        Raises:
            DeviceTrouble: The device stays unwell.
            Interrupted: SIGINT or SIGTERM came.
        """
        self._crowned = self.store.crowned(self.found[0].info)
        for number, item in enumerate(self.plan.items):
            ended = self._enlist(f"{number}: {item.problem}", item)
            self._enlisted = number + 1
            if ended is not None:
                yield ended
        order = sorted(self._entries, key=lambda name: not self._is_stale(self._entries[name]))
        self._budget = Budget(order)
        self._of = {entry.share: entry for entry in self._entries.values()}
        self._slices = Slices(self._left_s, self._of)
        self._say_what_is_held()
        self._stage = Stage(self.store, view)
        try:
            while self._entries:
                yield from self._step()
            while self._in_doubt:
                ended = self._finals_again(*self._in_doubt[0])
                del self._in_doubt[0]
                yield ended
        finally:
            self._stage.close()

    def _say_what_is_held(self) -> None:
        """Warns, before any time is spent, if the night is too short for every problem of the plan."""
        count, held = len(self._entries), self._slices.holds
        if held < count:
            self.warned(
                f"{count} problems are to be tuned, and {max(self._left_s(), 0.0):.0f} s hold about {held} of "
                f"them: each needs to open the device, {LEAST_SLICE_S:.0f} s at least and its finals. Others "
                f"are reported as not reached; give more time, or a shorter plan"
            )

    def unfinished(self, why: str) -> list[NightItem]:
        """Yields the remaining results if the night was ended from outside."""
        begun = [entry.ended("not reached", why) for entry in self._entries.values()]
        begun += [ended for _, ended in self._in_doubt]
        unseen = self.plan.items[self._enlisted :]
        return [*begun, *(NightItem(item, "not reached", why=why) for item in unseen)]

    def _enlist(self, name: str, item: PlanItem) -> NightItem | None:
        """Adds a problem; if there is nothing to do for it, returns its result.

        Looking up finished work takes milliseconds, and a plan may have many thousand problems.
        """
        if self._left_s() <= 0:
            return NightItem(item, "not reached", why=TOO_LATE)
        before = self._champion(item)
        try:
            kernels = kernels_of(item, self.found[0].target)
            self._check_room(item)
        except InputError as error:
            return NightItem(item, "failed", before, before, str(error))
        if not self.again and self._is_done(item, kernels, before):
            return NightItem(item, "done before", before, before)
        share = Share(math.inf if item.seconds is None else item.seconds)
        self._entries[name] = Entry(name, item, kernels, before, share)
        return None

    def _check_room(self, item: PlanItem) -> None:
        """Refuses problems that exceed the device's total memory; opening the device may find further ones."""
        device = self.found[0].info
        if device.memory_bytes:
            check_fits(item.problem, device.memory_bytes, device)

    def _step(self) -> list[NightItem]:
        """Runs a slice for the most valuable problem, or finishes one, or all that are left."""
        chosen = self._slices.next_of(self._candidates())
        if chosen is not None:
            return _those(self._slice(self._of[chosen[0]], chosen[1]))
        begun = self._stage.entry or next((each for each in self._entries.values() if each.share.begun), None)
        if begun is not None:
            return _those(self._finals(begun, TIME_IS_UP))
        # The remaining time only shrinks, so there is no time for any of them.
        left = list(self._entries.values())
        for entry in left:
            self._leave(entry)
        return [entry.ended("not reached", TOO_LATE) for entry in left]

    def _candidates(self) -> Iterator[Share]:
        """Returns the most valuable first; if there is time for all, the open one continues."""
        if self._stage.entry is not None and not self._slices.contended:
            yield self._stage.entry.share
        yield from (self._entries[name].share for name in self._budget.waiting)
        yield from (self._entries[name].share for name in self._budget.running)

    def _slice(self, entry: Entry, seconds: float) -> NightItem | None:
        """Runs a slice, and the finals if the problem's search ends or no time is left for another slice."""
        try:
            if self._stage.entry is not entry:
                self._open(entry, begin=not entry.share.begun)
            # The first slice has two halves: only the second shows what a problem gains.
            halves = 1 if entry.share.slices else 2
            for _ in range(halves):
                self._search(entry, seconds / halves)
        except (InputError, NothingFound) as error:
            return self._failed(entry, error)
        why = self._budget.why_stopped(entry.name)
        if not why and not self._slices.spare:
            why = TIME_IS_UP
        return self._finals(entry, why) if why else None

    def _search(self, entry: Entry, seconds: float) -> None:
        if not self._budget.why_stopped(entry.name):
            before_s = entry.share.spent_s
            why = self._stage.search(seconds)
            gain = self._budget.report(
                entry.name,
                self._stage.study.objective_value,
                entry.trials["total"],
                why,
                entry.share.spent_s - before_s,
            )
            self.said(entry.item, entry.share.slices, gain)

    def _finals(self, entry: Entry, why: str) -> NightItem | None:
        """Finishes a problem; None if its champion is provisional, so that its finals are repeated."""
        try:
            if self._stage.entry is not entry:
                self._open(entry)
            ended = self._stage.finish(why)
        except (InputError, NothingFound) as error:
            return self._failed(entry, error)
        self._leave(entry)
        if ended.after is not None and ended.after.doubts and ended.state == "tuned":
            self._in_doubt.append((entry, ended))
            return None
        return ended

    def _finals_again(self, entry: Entry, ended: NightItem) -> NightItem:
        """Repeats the finals of a problem with a provisional champion, later in the night, if there is time."""
        if self._left_s() < entry.share.finals_s + entry.share.opening_s:
            return ended
        try:
            self._open(entry)
            again = self._stage.finish(ended.why)
        except (InputError, NothingFound):
            self._stage.close()
            return ended
        return again if again.state == "tuned" else ended

    def _failed(self, entry: Entry, error: InputError | NothingFound) -> NightItem:
        self._stage.close()
        self._leave(entry)
        return entry.ended("failed", str(error))

    def _leave(self, entry: Entry) -> None:
        """Nothing is left to do for a problem."""
        self._budget.stop(entry.name)
        self._slices.leave(entry.share)
        del self._entries[entry.name]

    def _open(self, entry: Entry, begin: bool = False) -> None:
        item, share, left_s = entry.item, entry.share, self._left_s()
        if begin:
            self._slices.begin(share)
        limits = [each for each in (share.rest_s, left_s) if not math.isinf(each)]
        request = Request(
            problem=item.problem, kernels=entry.kernels, found=self.found, regime=item.regime,
            seconds=max(min(limits), 1.0) if limits else None, trials=item.trials, seed=self.seed,
            sampler=self.plan.sampler, storage_url=self.storage_url, objectives=item.objectives,
            error_limit=item.error_limit, finals_s=min(share.finals_s, max(left_s, 1.0)), library=entry.library,
            drop=not item.kernels,
        )  # fmt: skip
        self._slices.opened(share, self._stage.open(entry, request))

    def _left_s(self) -> float:
        return math.inf if self.deadline_s is None else self.deadline_s - time.monotonic()

    def _champion(self, item: PlanItem) -> Champion | None:
        key = key_of(item.problem)
        if (key, item.regime) not in self._crowned:
            return None
        return self.store.champion(key, self.found[0].info, item.regime)

    def _is_done(self, item: PlanItem, kernels: tuple[Kernel, ...], champion: Champion | None) -> bool:
        """True if this study reached its finals with these kernels, as they are now, driver and compiler."""
        key, device = key_of(item.problem), self.found[0].info
        if champion is None or not _accurate(champion, item):
            return False
        name = study_name(key, device, item.regime, kernels, item.objectives, item.error_limit)
        held = champion.record.study == name and not self._is_outdated(champion.record, item)
        if held and not champion.doubts:
            return True
        # The champion may come from a later study of other kernels or objectives.
        finals = self.store.records(problem=key, device=device, role=Role.FINAL)
        runs = {each.session for each in finals if each.study == name and not self._is_outdated(each, item)}
        return len(runs) >= (FINALS_IN_DOUBT if champion.doubts else 1)

    def _is_stale(self, entry: Entry) -> bool:
        """True if the champion's kernel, the compiler or the driver has changed."""
        return entry.before is not None and self._is_outdated(entry.before.record, entry.item)

    def _is_outdated(self, record: Record, item: PlanItem) -> bool:
        """True if kernel, compiler or driver of a record on this plan's device are known to have changed."""
        device = self.found[0].info
        versions = {"compiler": installed_compiler(device.kind)}
        return bool(staleness(record, item.catalogue, device, versions)[0])


def _accurate(champion: Champion, item: PlanItem) -> bool:
    """True if a champion is within the error limit, by its and the library's errors in the finals."""
    if item.error_limit is None:
        return True
    beside = champion.baseline.measurement.error if champion.baseline is not None else None
    limit = ErrorLimit.beside(item.error_limit, beside, item.problem)
    return not limit.complaint(champion.record.measurement.error, finals=True)


def _those(ended: NightItem | None) -> list[NightItem]:
    return [] if ended is None else [ended]
