"""The coordinator's side of the database: claims, what workers are sent, and whether what they bring counts."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tuner.fleet.orders import Answer, Database, Handed, Order, Report
from tuner.fleet.own_file import packed
from tuner.night.standing import study_of
from tuner.night.work import Done, Place, Work
from tuner.results.record import Champion, ProblemKey, Record, new_id, utc_now
from tuner.results.survey import Kept
from tuner.store import Store, lines
from tuner.store.claims import DONE, FAILED, LOST, STOPPED, Claims
from tuner.store.exchange import add_all
from tuner.store.patience import patiently
from tuner.study.starting import trials_elsewhere

T = TypeVar("T")


@dataclass
class _Node:
    """What a worker's own file is known to hold.

    Attributes:
        sent: Ids of what was sent to it, or came from it.
        stored: Mark of what it handed over.
        taken: Claims whose champions were looked at.
        newest: Problem of a study -> how often its records had changed when they were last sent.
    """

    sent: set[str] = field(default_factory=set)
    stored: int = 0
    taken: tuple[int, ...] = ()
    newest: dict[str, int] = field(default_factory=dict)


class Desk:
    """Claims and records of one night.

    Attributes:
        night: Id of the run of the plan.
        database: What workers are told of the database.
        spent_s: Seconds that the coordinator spent here.
        cpu_s: Seconds of these in which it computed.
        slices: Orders so far.
        refused: Champions that did not count, for their claim was lost.
    """

    def __init__(self, store: Store, url: str = "") -> None:
        """Begins a night.

        Args:
            store: The database.
            url: Its URL, if workers write into it themselves; empty if they hand their records over.
        """
        self.night = new_id()
        self.database = Database(store.identity, url)
        self.spent_s, self.cpu_s, self.slices, self.refused = 0.0, 0.0, 0, 0
        self._store, self._claims = store, Claims(store)
        self._nodes: dict[str, _Node] = {}
        self._changes: dict[str, int] = {}
        self._champions: dict[tuple[str, str], list[Champion]] = {}
        self._orders: dict[int, tuple[Place, Order]] = {}
        self._unstored: list[tuple[_Node, Handed, str]] = []

    @contextmanager
    def _counted(self) -> Iterator[None]:
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.spent_s += time.perf_counter() - begun_s
            self.cpu_s += time.thread_time() - cpu_s

    def order(self, place: Place, work: Work) -> Order:
        """Claims a study for a worker, and says what the worker is to do.

        Raises:
            StoreTrouble: The database stays away.
        """
        with self._counted():
            self.slices += 1
            info = place.info
            study = study_of(work.item, info, work.kernels)
            what = "slice" if work.parts else "finals"
            claim = patiently(
                lambda: self._claims.take(self.night, study, what, place.name, info.name, info.uuid)
            )
            order = Order.of(work, self.night, claim, study, self.database)
            if not self.database.url:
                order = self._with_records(place, work, order)
            self._orders[claim] = place, order
            return order

    def _with_records(self, place: Place, work: Work, order: Order) -> Order:
        """Adds what the worker's own file lacks of the problem, and says what was stored of it."""
        node = self._nodes.setdefault(place.name, _Node())
        told = b""
        if self._is_behind(node, order):
            self._store_handed()
            told = packed(patiently(lambda: self._lacking(node, place, work)))
        order = replace(order, lines=told, stored=node.stored, taken=node.taken)
        node.taken = ()
        return order

    def _is_behind(self, node: _Node, order: Order) -> bool:
        changes = self._changes.get(order.study, 0)
        behind = node.newest.get(order.study) != changes
        node.newest[order.study] = changes
        return behind

    def _lacking(self, node: _Node, place: Place, work: Work) -> list[Kept]:
        """Records of the problem, champions of its operation, and trials of another shape if it has none."""
        store, key, info = self._store, ProblemKey.of(work.item.problem), place.info
        found: list[Kept] = [*store.records(problem=key, device=info)]
        if not found:
            found += trials_elsewhere(store, work.kernels, key, info, work.item.regime)
        if (key.operation, info.name) not in self._champions:
            self._champions[key.operation, info.name] = store.champions(key.operation, info)
        found += self._champions[key.operation, info.name]
        fresh = {each.id: each for each in found if each.id not in node.sent}
        node.sent |= set(fresh)
        return list(fresh.values())

    @staticmethod
    def read(call: Callable[[], T]) -> T:
        """Repeats what reads the database while that is away.

        Raises:
            StoreTrouble: It stays away.
        """
        return patiently(call)

    def greeted(self, place: Place, report: Report) -> None:
        """Stores what a worker hands over at the beginning, and champions whose claims still run."""
        with self._counted():
            node = self._nodes.setdefault(place.name, _Node())
            self._take(node, report.handed)
            self._store_handed()
            for claim, line in report.champions:
                told = lines.parsed(line)
                if isinstance(told, Champion):
                    self._crown(told, self._ends(claim, told.record.study))
                node.taken = (*node.taken, claim)

    def _ends(self, claim: int, study: str) -> bool:
        return patiently(lambda: self._claims.ends(claim, study))

    def accept(self, answer: Answer) -> Done | None:
        """Stores what a worker brings.

        Returns:
            What came of the work; None if its claim was lost before, so that only its records count.

        Raises:
            StoreTrouble: The database stays away.
        """
        with self._counted():
            place, order = self._orders.pop(answer.claim)
            node, done = self._nodes.setdefault(place.name, _Node()), answer.done
            self._take(node, answer.handed, order.study)
            if answer.kept:
                self._changed(order.study)
            state, why = _state_of(answer)
            trials = done.trials.get("total")
            holds = patiently(lambda: self._claims.end(answer.claim, state, why, trials))
            champion = done.finished.champion if done.finished else None
            if champion is not None and not answer.kept:
                self._crown(champion, holds)
                node.taken = (*node.taken, answer.claim)
            return done if holds else None

    def handed(self, claim: int, handed: Handed) -> None:
        """Stores records that a worker hands over during a slice."""
        if claim in self._orders:
            with self._counted():
                place, order = self._orders[claim]
                self._take(self._nodes.setdefault(place.name, _Node()), replace(handed, mark=0), order.study)

    def _crown(self, champion: Champion, holds: bool) -> None:
        record = champion.record
        if holds:
            # The latest champion reigns, and the worker's clock may be an hour off.
            champion = replace(champion, crowned_at=utc_now())
            patiently(lambda: self._store.crown(champion))
            self._champions.get((record.problem.operation, record.device.name), []).append(champion)
            return
        self.refused += 1
        of_finals = [each for each in (champion.record, champion.baseline) if each]
        patiently(lambda: self._store.add(of_finals))

    def _take(self, node: _Node, handed: Handed | None, study: str = "") -> None:
        """Takes records of a worker, of a study if it worked on one; `settle` stores them."""
        if handed is None:
            return
        self._unstored.append((node, handed, study))
        if study:
            self._changed(study)
            # The worker itself is not behind.
            if node.newest.get(study) == self._changes[study] - 1:
                node.newest[study] = self._changes[study]

    def settle(self) -> None:
        """Stores what was handed over. A worker that waits for its next order need not wait for this."""
        with self._counted():
            self._store_handed()

    def _store_handed(self) -> None:
        while self._unstored:
            node, handed, study = self._unstored[0]
            told = [lines.parsed(line) for line in gzip.decompress(handed.lines).decode().splitlines()]
            # A worker that was not told yet that they are stored hands them over again.
            records = [each for each in told if isinstance(each, Record) and each.id not in node.sent]
            patiently(partial(add_all, self._store, records))
            node.sent |= {each.id for each in records}
            node.stored = max(node.stored, handed.mark)
            for name in {each.study for each in records} - {study}:
                self._changed(name)
            del self._unstored[0]

    def _changed(self, study: str) -> None:
        self._changes[study] = self._changes.get(study, 0) + 1

    def lost(self, claim: int, why: str) -> None:
        """Declares the worker of a claim dead; its records will count, its champion will not."""
        with self._counted():
            patiently(lambda: self._claims.end(claim, LOST, why))

    def progressed(self, trials: dict[int, int]) -> None:
        """Notes how far claims are: their trials so far, by number."""
        with self._counted():
            patiently(lambda: self._claims.progressed(trials))

    def close(self) -> None:
        """Ends the claims that are left of this night and of coordinators before it."""
        self._store_handed()
        patiently(lambda: self._claims.abandon("its coordinator ended"))


def _state_of(answer: Answer) -> tuple[str, str]:
    done = answer.done
    if done.lost:
        return (STOPPED if done.cut else FAILED), done.lost
    return (FAILED, done.failed) if done.failed else (DONE, "")
