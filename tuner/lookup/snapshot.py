"""What lookups read: what studies timed, kept with the answers while it is true: the one cache of this process.

Of the problems tuned on a device few rows are read of each: its fastest configs and the library.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import TunerError
from tuner.extras import provided
from tuner.lookup.answers import Question
from tuner.results.record import Champion, ProblemKey, Record, Role, Subject, rank_in_time
from tuner.store.published import Published, devices, entries, standing, tuned_folder

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.matrix import ConfigTime

T = TypeVar("T")

#: Rows read from a store for one operation, dtype, device and regime.
ROWS_READ = 5000
#: The best configs of each problem that may be answered elsewhere; finalists and champions always may.
BEST_OF_A_PROBLEM = 12

#: Kernel and config.
Column = tuple[str, Config]


class Timed(NamedTuple):
    """One time of one config at one problem.

    Attributes:
        final: True where it was timed in the finals, in alternation with others.
        measured_at: ISO 8601, UTC.
        time_s: Median in seconds.
        source_hash: Of the kernel.
    """

    final: bool
    measured_at: str
    time_s: float
    source_hash: str


@dataclass
class TunedProblem:
    """A tuned problem.

    Attributes:
        problem: Problem.
        device: Device, as described last.
        times: Config -> time: one of finals rather than of a search, else the later one.
        champion: The champion; None where no finals were held.
        library_s: Seconds of the library beside it; NaN without one.
        crowned_at: When; empty without a champion.
    """

    problem: Problem
    device: DeviceInfo
    times: dict[Column, Timed] = field(default_factory=dict)
    champion: Column | None = None
    library_s: float = math.nan
    crowned_at: str = ""

    def add(self, column: Column, time: Timed) -> None:
        """Takes a time in."""
        there = self.times.get(column)
        if there is None or time[:2] > there[:2]:
            self.times[column] = time

    def crown(self, column: Column, crowned_at: str, speedup: float) -> None:
        """Takes a champion in, unless there is a later one; its time is known."""
        if rank_in_time(crowned_at) >= rank_in_time(self.crowned_at):
            self.champion, self.crowned_at = column, crowned_at
            self.library_s = speedup * self.times[column].time_s if speedup > 0 else math.nan

    @property
    def best_s(self) -> float:
        """The least time of any config; of finals, if there are: the best of many trials is partly luck."""
        finals = [timed.time_s for timed in self.times.values() if timed.final]
        return min(finals or [timed.time_s for timed in self.times.values()])


def gather(
    store: Store | None, subject: Subject, catalogue: Catalogue, published: Path | None = None
) -> list[TunedProblem]:
    """The tuned problems of a subject.

    Args:
        store: Where records are; None without a database.
        subject: What is asked about.
        catalogue: Kernels as they are now; configs of others are left out.
        published: Folder of published results; the project's own when None.
    """
    if subject.operation not in catalogue.operations:
        return []
    gathered = _Gathered(subject, catalogue)
    if store is not None:
        gathered.read(store)
    for entry in standing(entries(subject.operation, published, (subject.kind, subject.device)), store):
        champion, record = entry.champion, entry.champion.record
        if (record.problem.arithmetic, record.regime) == (subject.dtype, subject.regime):
            gathered.add(record, (champion.crowned_at, champion.speedup))
            for other in entry.runners_up:
                gathered.add(other)
    return [tuned for tuned in gathered.problems.values() if tuned.times]


class _Gathered:
    """Tuned problems, being filled."""

    def __init__(self, subject: Subject, catalogue: Catalogue) -> None:
        self._subject, self._operation = subject, catalogue.operations[subject.operation]
        self._names = {
            kernel.name: [parameter.name for parameter in kernel.parameters]
            for kernel in catalogue.kernels
            if (kernel.operation, kernel.kind) == (subject.operation, subject.kind)
        }
        #: Rows of equal configs have equal texts.
        self._of_text = functools.cache(lambda kernel, text: self._column(kernel, json.loads(text)))
        self.problems: dict[ProblemKey, TunedProblem] = {}

    def _column(self, kernel: str, config: Mapping[str, Any]) -> Column | None:
        """A config with its kernel's own order of parameters; None where the kernel has other ones now."""
        names = self._names.get(kernel)
        if names is None or set(names) != set(config):
            return None
        return kernel, Config({name: config[name] for name in names})

    def add(self, row: Record | ConfigTime, crown: tuple[str, float] | None = None) -> None:
        """Takes a time in, and when and with which speed-up its config became champion.

        Left out are problems that the operation does not have any more, and configs that its kernels do not.
        """
        if row.problem not in self.problems:
            try:
                self.problems[row.problem] = TunedProblem(row.problem.of_operation(self._operation), row.device)
            except (TunerError, ValueError, KeyError):
                return
        if isinstance(row, Record):
            column, time_s = self._column(row.kernel, row.config), row.measurement.time_s or math.inf
        else:
            column, time_s = self._of_text(row.kernel, row.config), row.time_s
        if column is None:
            return
        final = row.role == Role.FINAL or crown is not None
        tuned = self.problems[row.problem]
        tuned.add(column, Timed(final, row.measured_at, time_s, row.source_hash))
        if crown is not None:
            tuned.crown(column, *crown)

    def read(self, store: Store) -> None:
        """Takes in what a store has: champions, and of each problem the best configs and the finalists.

        Whatever else is known of these configs at other problems is taken, too.
        """
        from tuner.store import matrix

        crowned = matrix.crowned(store, self._subject)
        for time, crown in crowned:
            self.add(time, crown)
        wanted = {(time.kernel, time.config) for time, _ in crowned}
        every: list[ConfigTime] = []
        for rows in matrix.fastest(store, self._subject, ROWS_READ):
            kernels = [row for row in rows if row.role != Role.BASELINE]
            finals = [row for row in kernels[BEST_OF_A_PROBLEM:] if row.role == Role.FINAL]
            wanted |= {(row.kernel, row.config) for row in (*kernels[:BEST_OF_A_PROBLEM], *finals)}
            every += kernels
        for row in every:
            if (row.kernel, row.config) in wanted:
                self.add(row)


#: Results that are kept while nothing changes.
KEPT = 40_000
#: First words of the keys of answers, of the problems that have records, and of what the crown log rules.
ANSWER, PROBLEMS, RULING = "answer", "problems", "ruling"
#: First words of the keys of what a later state must read again.
READ_AGAIN = (ANSWER, PROBLEMS, RULING, "devices", "device")


def predictor() -> Any:
    """The extension point "predictor" (`tuner.model.provider`), which an extra provides; None without one."""
    return next(iter(provided("predictor")), None)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A store, or none, and the published results, in their present state.

    Attributes:
        store: Where records are; None without a database.
        published: Folder of published results; the project's own when None.
        state: Changes whenever an answer might.
    """

    store: Store | None
    published: Path | None
    state: tuple[Any, ...]
    #: What was read and answered, and what the keys' ids are of.
    _results: dict[Any, tuple[Any, object]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, store: Store | None, published: Path | None = None) -> Snapshot:
        """The present state, which is looked at in next to no time; that of before where nothing changed."""
        state: tuple[Any, ...] = tuple(_files(str(published or _named(tuned_folder))))
        if store is not None:
            from tuner.store.matrix import stamp

            state = *stamp(store), *state
        latest = _WITHOUT_STORE if store is None else store.snapshots
        snapshot: Snapshot | None = latest.get(published)
        if snapshot is None or snapshot.state != state:
            snapshot = latest[published] = cls(store, published, state)
        return snapshot

    def once(self, key: tuple[Hashable, ...], work: Callable[[], T], resting_on: object = None) -> T:
        """What was read or answered in this state under a key, or is now.

        Args:
            key: Names it; ids in it are of `resting_on`.
            work: Reads or answers it.
            resting_on: Is kept with the result, so that nothing else has its id.
        """
        result = self._results.get(key)  # another thread may clear them at any moment
        if result is None:
            result = work(), resting_on
            if len(self._results) >= KEPT:
                self._results.clear()
            self._results[key] = result
        value: T = result[0]
        return value

    def known(self, key: tuple[Hashable, ...]) -> Any:
        """What was read or answered in this state under a key; None if nothing was."""
        return self._results.get(key, (None,))[0]

    def inherit(
        self, earlier: Snapshot, holds: Callable[[Subject], bool],
        answers: Callable[[tuple[Any, ...], Any], bool],
    ) -> None:  # fmt: skip
        """Takes over what an earlier state has read and answered, before the first question.

        Subjects that have changed since are read again now.

        Args:
            earlier: The state, of the same devices, published results and retractions.
            holds: Whether nothing of a subject has changed since.
            answers: Whether an answer still holds, by its key.
        """
        for key, (result, resting_on) in list(earlier._results.items()):
            if key[0] in READ_AGAIN:
                if key[0] == ANSWER and answers(key, result):
                    self._results[key] = result, resting_on
            elif not isinstance(key[1], Subject) or holds(key[1]):
                self._results[key] = result, resting_on
            elif key[0] == "tuned":
                self.tuned(key[1], resting_on)  # type: ignore[arg-type]

    def tuned(self, subject: Subject, catalogue: Catalogue) -> list[TunedProblem]:
        """The tuned problems of a subject, by kernels as they are now."""
        return self.once(
            ("tuned", subject, id(catalogue)),
            lambda: gather(self.store, subject, catalogue, self.published),
            catalogue,
        )

    def standing(self, operation: str, device: tuple[str, str] | None = None) -> list[Published]:
        """Published results that the store has not taken back, of all devices or of one of a kind and name."""
        return self.once(
            ("standing", operation, device),
            lambda: standing(entries(operation, self.published, device), self.store),
        )

    def devices(self) -> list[DeviceInfo]:
        """Every device that there are records or published results of; the store's own last."""
        own = self.store.devices if self.store is not None else list
        return self.once(("devices",), lambda: [*devices(self.published), *own()])

    def models(self, operation: str, regime: str, arithmetic: str = "") -> Sequence[Any]:
        """The models of an operation, one for each device, of a dtype and precision where there are such."""
        extra = predictor()
        if extra is None:
            return ()
        where = self.published, self.store
        return self.once(
            ("models", operation, regime, arithmetic),
            lambda: extra.models(operation, regime, *where, arithmetic),
        )

    def has_problem(self, problem: ProblemKey) -> bool:
        """Whether the store has any record of a problem, on whatever device."""
        store = self.store
        return store is not None and problem in self.once((PROBLEMS,), store.problems)

    def published_champion(self, question: Question) -> Champion | None:
        """The published champion of this very problem and device."""
        operation, device = question.problem.operation, (question.device.kind, question.device.name)

        def read() -> dict[tuple[ProblemKey, str], list[Champion]]:
            champions: dict[tuple[ProblemKey, str], list[Champion]] = {}
            for champion in (entry.champion for entry in self.standing(operation, device)):
                champions.setdefault((champion.record.problem, champion.record.regime), []).append(champion)
            return champions

        champions = self.once(("published", operation, device), read)
        of_problem = champions.get((question.problem, question.regime), ())
        return next((one for one in of_problem if question.kernel in ("", one.record.kernel)), None)


@functools.cache
def _named(folder: Callable[[], Path]) -> str:
    """The path that a function tells, which takes longer than a look at the files there."""
    return str(folder())


def _files(folder: str) -> list[tuple[str, int, int]]:
    """Files of results and models, each with the time of its last change and its size."""
    files: list[tuple[str, int, int]] = []
    folders = [folder]
    for path in folders:
        try:
            entries_there = os.scandir(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries_there:
            for entry in entries_there:
                if entry.name.endswith(".json"):
                    status = entry.stat()
                    files.append((entry.path, status.st_mtime_ns, status.st_size))
                elif path == folder and entry.is_dir():
                    folders += (entry.path, f"{entry.path}/models")
    files.sort()
    return files


#: Folder of published results -> the latest snapshot without a database.
_WITHOUT_STORE: dict[Path | None, Snapshot] = {}
