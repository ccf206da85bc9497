"""What was asked and had no exact answer: counted in memory, and written into the database now and then.

A call that counts adds one to a number. A thread of this process, and its end, write what was added since.
A database that is not there is not made for it. One that is locked, full or read-only is tried again later, and
what then is left at the end of the process is lost.
"""

from __future__ import annotations

import atexit
import os
import threading
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

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
    """The calls of one problem on one device.

    Attributes:
        url: The database that they are counted in.
        one: A single call, as it is written.
        hits: The number of calls, alone in an array, whose memory native code may add to.
        written: Those that were written.
        closed: True once the problem has an exact answer: the next write is the last.
    """

    url: str
    one: Wanted
    hits: array[int] = field(default_factory=lambda: array("q", [0]))
    written: int = 0
    closed: bool = False


class Demand:
    """The counts of this process."""

    def __init__(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._counts: dict[object, CallCount] = {}
        self._thread: threading.Thread | None = None

    def count(self, problem: Problem, device: DeviceInfo, answer: Answer | None, db: str = "") -> CallCount:
        """What counts the calls of a problem; its number is to be added to.

        Args:
            problem: What was asked, of a built-in operation.
            device: Where.
            answer: What was answered; None without an answer.
            db: URL of the database; the default one when empty.
        """
        match, saves_s = answer.match if answer else "", saving_s(answer, problem, device)
        one = Wanted(ProblemKey.of(problem), device.kind, device.name, match, 1, saves_s)
        count = CallCount(database_url(db), one)
        if os.environ.get(VARIABLE) == "0":
            return count
        key = count.url, one.problem, one.kind, one.device
        with self._lock:
            count = self._counts.pop(key, count)
            count.one = one
            if len(self._counts) >= KEPT:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = count
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_often, daemon=True, name="tuner-demand")
                self._thread.start()
        return count

    def asked(self, answer: Answer, db: str = "") -> None:
        """Counts a question to a lookup, if its answer is not exact and the operation is a built-in one.

        Args:
            answer: What was answered.
            db: URL of the database; the default one when empty.
        """
        question = answer.question
        off = os.environ.get(VARIABLE) == "0"
        if off or answer.match == EXACT or question is None or question.regime != COLD or question.kernel:
            return
        problem = declared_problem(question, question.catalogue or builtin_now())
        if problem is not None and not problem.operation.origin:
            self.count(problem, question.device, answer, db).hits[0] += 1

    def flush(self, patience_s: float = PATIENCE_S) -> bool:
        """Writes what was counted since the last time.

        Args:
            patience_s: Seconds to wait for a database that is locked.

        Returns:
            False if something could not be written; it is kept for the next time.
        """
        with self._writing:
            with self._lock:
                counts = list(self._counts.values())
                self._counts = {key: count for key, count in self._counts.items() if not count.closed}
            urls = dict.fromkeys(count.url for count in counts)
            written = [_write(url, [one for one in counts if one.url == url], patience_s) for url in urls]
            return all(written)

    def _write_often(self) -> None:
        pause = threading.Event()
        while not pause.wait(WRITE_S):
            self.flush()

    def begin_anew(self) -> None:
        """In a child process: the parent's counts are the parent's."""
        self._lock, self._writing, self._thread = threading.Lock(), threading.Lock(), None
        for count in self._counts.values():
            count.written = count.hits[0]


def _write(url: str, counts: Sequence[CallCount], patience_s: float) -> bool:
    """Writes what is new into the database, which is neither made nor migrated for it; False if that failed."""
    fresh = [(count, count.one, count.hits[0] - count.written) for count in counts]
    rows = [replace(one, calls=calls, saves_s=calls * one.saves_s) for _, one, calls in fresh if calls]
    if not rows:
        return True
    try:
        from tuner.store import Store, watched

        Store.open(url, read_only=True, patience_s=patience_s).close()
        with Store.open(url, patience_s=patience_s) as store:
            watched.add_demand(store, rows)
    except Exception:  # nothing that depends on a count may fail for it
        return False
    for count, _, calls in fresh:
        count.written += calls
    return True


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
atexit.register(DEMAND.flush)


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
