"""What was asked and had no exact answer: counted in memory, and written into the database now and then.

A call that counts adds one to a number. A thread of this process, and its end, write what was added since.
A database that is not there is not made for it. One that is locked, full or read-only is tried again later, and
what then is left at the end of the process is dropped.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.devices.detect import kind_of
from tuner.lookup.answers import EXACT, RECKONED, Answer, Question, declared_problem, reckoned
from tuner.lookup.asking import database_url
from tuner.lookup.legality import completed
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.stale import builtin_now
from tuner.lookup.tiers import Case, exact
from tuner.results.record import ProblemKey, Wanted

if TYPE_CHECKING:
    from tuner.store import Store


#: The environment variable that switches counting off if it is 0.
VARIABLE = "TUNER_DEMAND"
#: Regime of the questions that are counted.
COLD = "cold"
#: Seconds between two writes, and that one may wait for a database that is locked.
WRITE_S, PATIENCE_S = 10.0, 1.0
#: Problems that are counted at a time; beyond them the one that was added first goes.
KEPT = 4096


@dataclass
class CallCount:
    """The calls of one prepared call.

    Attributes:
        hits: The number of calls, alone in a list: adding to it takes next to no time.
        written: Those that were written.
        closed: The number at which they ceased to count; None while they do.
    """

    hits: list[int] = field(default_factory=lambda: [0])
    written: int = 0
    closed: int | None = None

    def close(self) -> None:
        """Further calls do not count: the problem has an exact answer now."""
        if self.closed is None:
            self.closed = self.hits[0]

    @property
    def fresh(self) -> int:
        """Calls that were not written yet."""
        return (self.hits[0] if self.closed is None else self.closed) - self.written


@dataclass
class _Entry:
    url: str
    problem: ProblemKey
    device: DeviceInfo
    match: str
    saves_s: float
    tallies: list[CallCount] = field(default_factory=list)


class Demand:
    """The counts of this process.

    Attributes:
        failed: Writes that did not succeed.
        dropped: Calls that were counted and are not kept.
    """

    def __init__(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._entries: dict[tuple[str, ProblemKey, str, str], _Entry] = {}
        self._thread: threading.Thread | None = None
        self.failed = 0
        self.dropped = 0

    def add(
        self, problem: Problem, device: DeviceInfo, found: Answer | None, tally: CallCount, db: str = ""
    ) -> None:
        """Adds calls that are counted by a tally.

        Args:
            problem: What was asked, of a built-in operation.
            device: Where.
            found: What was answered; None without an answer.
            tally: Counts the calls.
            db: URL of the database; the default one when empty.
        """
        if os.environ.get(VARIABLE) == "0":
            return
        url, named, match = database_url(db), ProblemKey.of(problem), found.match if found else ""
        saves_s, key = saving_s(found, problem, device), (url, named, device.kind, device.name)
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry(url, named, device, match, saves_s)
            entry.match, entry.saves_s = match, saves_s
            entry.tallies.append(tally)
            self._entries[key] = entry
            while len(self._entries) > KEPT:
                oldest = self._entries.pop(next(iter(self._entries)))
                self.dropped += sum(tally.fresh for tally in oldest.tallies)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_often, daemon=True, name="tuner-demand")
                self._thread.start()

    def asked(self, found: Answer, catalogue: Catalogue | None = None, db: str = "") -> None:
        """Counts a question to a lookup, if its answer is not exact and the operation is a built-in one.

        Args:
            found: The answer.
            catalogue: Kernels; the built-in ones when None.
            db: URL of the database; the default one when empty.
        """
        question = found.question
        if found.match == EXACT or question is None or question.regime != COLD or question.kernel:
            return
        problem = declared_problem(question, catalogue or builtin_now())
        if problem is not None and not problem.operation.origin:
            tally = CallCount([1])
            tally.close()
            self.add(problem, question.device, found, tally, db)

    def flush(self, patience_s: float = PATIENCE_S) -> bool:
        """Writes what was counted since the last time.

        Args:
            patience_s: Seconds to wait for a database that is locked.

        Returns:
            False if something could not be written; it is kept for the next time.
        """
        if not self._writing.acquire(timeout=2 * patience_s):
            return False
        try:
            with self._lock:
                entries = list(self._entries.values())
            urls = dict.fromkeys(entry.url for entry in entries)
            written = [
                self._flush([entry for entry in entries if entry.url == url], patience_s) for url in urls
            ]
            return all(written)
        finally:
            self._writing.release()

    def _flush(self, entries: Sequence[_Entry], patience_s: float) -> bool:
        """Writes counts of one database."""
        counts = [(entry, [(tally, tally.fresh) for tally in list(entry.tallies)]) for entry in entries]
        calls = [(entry, sum(count for _, count in tallies)) for entry, tallies in counts]
        rows = [
            Wanted(entry.problem, entry.device.kind, entry.device.name, entry.match, of, of * entry.saves_s)
            for entry, of in calls
            if of
        ]
        try:
            _write(entries[0].url, rows, patience_s)
        except Exception:  # nothing that depends on a count may fail for it
            self.failed += 1
            return False
        for entry, tallies in counts:
            for tally, count in tallies:
                tally.written += count
            with self._lock:
                entry.tallies = [tally for tally in entry.tallies if tally.closed is None or tally.fresh]
        return True

    def _write_often(self) -> None:
        pause = threading.Event()
        while not pause.wait(WRITE_S):
            self.flush()

    def end(self) -> None:
        """Writes for the last time; what cannot be written is dropped."""
        if not self.flush():
            with self._lock:
                self.dropped += sum(tally.fresh for entry in self._entries.values() for tally in entry.tallies)
                self._entries.clear()

    def begin_anew(self) -> None:
        """In a child process: the parent's counts are the parent's."""
        self._lock, self._writing, self._thread = threading.Lock(), threading.Lock(), None
        for entry in self._entries.values():
            for tally in entry.tallies:
                tally.written = tally.hits[0]


def _write(url: str, rows: Sequence[Wanted], patience_s: float) -> None:
    """Writes counts into the database, which is neither made nor migrated for them.

    Raises:
        NothingFound: There is none.
        StoreTrouble: It cannot be used.
    """
    if not rows:
        return
    from tuner.store import Store, watched

    Store.open(url, read_only=True, patience_s=patience_s).close()
    with Store.open(url, patience_s=patience_s) as store:
        watched.add_demand(store, rows)


def saving_s(answer: Answer | None, problem: Problem, device: DeviceInfo) -> float:
    """Seconds of a run that tuning is predicted to save: what the answer is expected to lose of its time.

    Args:
        answer: The answer; None where there was none.
        problem: What was asked.
        device: Where.
    """
    time_s, record = None, answer.record if answer is not None else None
    if answer is not None and answer.predicted is not None:
        time_s = answer.predicted.kernel_s if answer.use == "kernel" else answer.predicted.library_s
    elif record is not None and record.measurement.time_s:
        unit = "flops" if record.work.get("flops") else "bytes"
        time_s = record.measurement.time_s * getattr(problem.work, unit) / record.work[unit]
    if time_s is None:
        flops, read = kind_of(device.kind).guessed_rates
        time_s = problem.work.flops / flops + problem.work.bytes / read
    return float(time_s * (reckoned(answer.loss) if answer is not None else RECKONED))


#: The counts of this process.
DEMAND = Demand()
os.register_at_fork(after_in_child=DEMAND.begin_anew)
atexit.register(DEMAND.end)


def most_wanted(
    store: Store, *, device: str = "", operation: str = "", limit: int | None = None
) -> list[Wanted]:
    """What was asked and still has no exact answer, by seconds to be saved, the most first.

    Args:
        store: Where demand is counted.
        device: Only on devices of this name; on all where empty.
        operation: Only of this operation; of all where empty.
        limit: How many at the most; all when None.
    """
    from tuner.store.watched import demand

    snapshot, catalogue = Snapshot.open(store), builtin_now()

    def is_open(wanted: Wanted) -> bool:
        where = completed(DeviceInfo(wanted.device, wanted.kind), snapshot.devices())
        question = Question(wanted.problem, where, COLD)
        return exact(Case(question, snapshot, catalogue, declared_problem(question, catalogue))) is None

    return list(islice(filter(is_open, demand(store, device=device, operation=operation)), limit))
