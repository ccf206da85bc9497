"""What is known of an operation: which config took how long for which problem on which device.

A place is a problem on a kind of device. The matrix has a row a place and a column a config; most of it is
empty. It is filled from the store and from the published results, few rows of each place: the fastest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.published import Published, RunnerUp, entries, standing
from tuner.results.record import ProblemKey, Record, Role, rank_in_time

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.matrix import Crowned, Seen

Floats = NDArray[np.float64]

#: Rows read from a store for one operation, dtype, kind of device and regime.
ROWS_READ = 5000
#: The best configs of each place that may be answered elsewhere; finalists and champions always may.
BEST_OF_A_PLACE = 12
#: A config that takes longer than exp of this times the best is simply slow.
SLOW = 0.7

#: Kernel and config.
Column = tuple[str, Config]


@dataclass(frozen=True)
class Subject:
    """What a matrix is of.

    Attributes:
        operation: Name.
        dtype: Element type, and the precision behind it if it is not the usual one (`ProblemKey.arithmetic`).
        kind: Of the devices.
        regime: How time was taken.
        device: Only devices of this name; all when empty.
    """

    operation: str
    dtype: str
    kind: str
    regime: str
    device: str = ""


@dataclass(frozen=True)
class Time:
    """One time of one config at one place.

    Attributes:
        time_s: Median in seconds.
        final: True where it was timed in the finals, in alternation with others.
        measured_at: ISO 8601, UTC.
        source_hash: Of the kernel.
        number: Of the record in the store; None where it was published.
        record: The published champion's record; None for a time in the store.
        runner_up: What was published beside that champion, where the time is its.
    """

    time_s: float
    final: bool
    measured_at: str
    source_hash: str
    number: int | None = None
    record: Record | None = None
    runner_up: RunnerUp | None = None


@dataclass
class Place:
    """A problem on a device, with what is known there.

    Attributes:
        problem: Problem.
        device: Device, as described last.
        times: Column -> time.
        champion: Column of the champion; None where no finals were held.
        crowned_at: When; empty without a champion.
        library: Name of the library that the champion was timed beside; empty without one.
        speedup: Time of the library over that of the champion; 0 without one.
        beside: The library's record: number in the store, or the record as published; None without one.
    """

    problem: Problem
    device: DeviceInfo
    times: dict[Column, Time] = field(default_factory=dict)
    champion: Column | None = None
    crowned_at: str = ""
    library: str = ""
    speedup: float = 0.0
    beside: int | Record | None = None

    def add(self, column: Column, time: Time) -> None:
        """Takes a time in: one of finals rather than of a search, else the later."""
        there = self.times.get(column)
        if there is None or (time.final, time.measured_at) > (there.final, there.measured_at):
            self.times[column] = time

    @property
    def best_s(self) -> float:
        """The least time of any config; of finals, if there are: the best of many trials is partly luck."""
        finals = [time.time_s for time in self.times.values() if time.final]
        return min(finals or [time.time_s for time in self.times.values()])


@dataclass(frozen=True)
class Matrix:
    """All places of a subject.

    Attributes:
        subject: What it is of.
        places: Rows.
        columns: Kernel and config of each column.
        slower: Shape (places, columns): log of the time over the best one there, at least 0 and at most
            `SLOW`; NaN where it is not known.
        library: Per place: log of the library's time over the best config's; NaN where not known.
        kernels: Kernel's name -> declaration, for all columns.
        recorded: Problems with the names, and with the uuids, of devices of which the store has a time or a
            champion of any kernel.
    """

    subject: Subject
    places: tuple[Place, ...]
    columns: tuple[Column, ...]
    slower: Floats
    library: Floats
    kernels: Mapping[str, Kernel]
    recorded: frozenset[tuple[ProblemKey, str]] = frozenset()

    def time(self, place: int, column: int) -> Time | None:
        """Where and when a time was taken."""
        return self.places[place].times.get(self.columns[column])


def gather(
    store: Store | None, subject: Subject, catalogue: Catalogue, published: Path | None = None
) -> Matrix:
    """The matrix of a subject.

    Args:
        store: Where records are; None without a database.
        subject: What is asked about.
        catalogue: Kernels as they are now; configs of others are left out.
        published: Folder of published results; the project's own when None.
    """
    operation = catalogue.operations.get(subject.operation)
    kernels = {
        each.name: each
        for each in catalogue.kernels
        if (each.operation, each.target) == (subject.operation, subject.kind)
    }
    if operation is None:
        return Matrix(subject, (), (), np.zeros((0, 0)), np.zeros(0), kernels)
    places, recorded = _Places(catalogue, subject, kernels), set[tuple[ProblemKey, str]]()
    if store is not None:
        from tuner.store import matrix

        query = matrix.MatrixQuery(
            subject.operation, subject.dtype, subject.kind, subject.regime, subject.device
        )
        champions = matrix.crowned(store, query)
        for crowned in champions:
            places.crown(crowned)
        fastest = matrix.fastest(store, query, ROWS_READ)
        places.take(fastest)
        first = [*(rows[0] for rows in fastest if rows), *(each.record for each in champions)]
        recorded = {(row.problem, each) for row in first for each in (row.device.name, row.device.uuid)}
    for entry in standing(entries(subject.operation, published), store):
        places.publish(entry)
    found = _matrix(subject, [each for each in places.found.values() if each.times], kernels)
    return replace(found, recorded=frozenset(recorded))


class _Places:
    """Places by problem and device, being filled."""

    def __init__(self, catalogue: Catalogue, subject: Subject, kernels: Mapping[str, Kernel]) -> None:
        self._operation = catalogue.operations[subject.operation]
        self._subject, self._kernels = subject, kernels
        self._configs: dict[tuple[str, str], Column | None] = {}
        self._named: dict[tuple[str, tuple[Any, ...]], Column] = {}
        self.found: dict[tuple[ProblemKey, str], Place] = {}

    def at(self, key: ProblemKey, device: DeviceInfo) -> Place | None:
        """The place of a problem on a device; None where the operation has no such problem any more."""
        where = key, device.name
        if where not in self.found:
            try:
                problem = key.of_operation(self._operation)
            except ValueError:
                return None
            except Exception:  # dims or layouts that are no longer declared
                return None
            self.found[where] = Place(problem, device)
        return self.found[where]

    def column(self, kernel: str, text: str) -> Column | None:
        """The column of a stored config; None for a kernel that is not declared."""
        if (kernel, text) not in self._configs:
            known = kernel in self._kernels
            self._configs[kernel, text] = self._column(kernel, json.loads(text)) if known else None
        return self._configs[kernel, text]

    def _column(self, kernel: str, config: Mapping[str, Any]) -> Column:
        """A column; its config has the kernel's own order of parameters, where it has these.

        The same one for equal configs, which are then told apart by identity.
        """
        names = [each.name for each in self._kernels[kernel].parameters]
        if len(names) == len(config) and all(name in config for name in names):
            config = {name: config[name] for name in names}
        key = kernel, tuple(config.items())
        if key not in self._named:
            self._named[key] = kernel, Config(config)
        return self._named[key]

    def crown(self, crowned: Crowned) -> None:
        """Takes a store's champion in."""
        seen = crowned.record
        place, column = self.at(seen.problem, seen.device), self.column(seen.kernel, seen.config)
        if place is None or column is None:
            return
        place.add(column, _time(seen, final=True))
        if rank_in_time(crowned.crowned_at) >= rank_in_time(place.crowned_at):
            place.champion, place.crowned_at = column, crowned.crowned_at
            place.library, place.speedup, place.beside = crowned.baseline, crowned.speedup, crowned.beside

    def take(self, groups: Sequence[Sequence[Seen]]) -> None:
        """Takes a store's fastest times in, one group a problem and device.

        Of each the best and its finalists, and whatever of these configs is known at other places.
        """
        kernels = [[row for row in rows if row.role != Role.BASELINE] for rows in groups]
        wanted = {key for key, column in self._configs.items() if column is not None}
        for rows in kernels:
            wanted |= {(row.kernel, row.config) for row in rows[:BEST_OF_A_PLACE]}
            wanted |= {(row.kernel, row.config) for row in rows if row.role == Role.FINAL}
        for kernel in self._kernels.values():
            wanted |= {(kernel.name, _text(config)) for config in kernel.first_configs()}
        for rows in kernels:
            place = self.at(rows[0].problem, rows[0].device) if rows else None
            for row in rows:
                if place is not None and (row.kernel, row.config) in wanted:
                    column = self.column(row.kernel, row.config)
                    if column is not None:
                        place.add(column, _time(row, final=row.role == Role.FINAL))

    def publish(self, entry: Published) -> None:
        """Takes a published result in; the store's own champion stays where it is the later one."""
        record, champion = entry.champion.record, entry.champion
        found, query = record.problem, self._subject
        named = query.device or record.device.name
        subject = Subject(found.operation, found.arithmetic, record.device.kind, record.regime, query.device)
        if subject != query or named != record.device.name:
            return
        place = self.at(record.problem, record.device)
        if place is None:
            return
        if record.kernel in self._kernels:
            column = self._column(record.kernel, record.config)
            place.add(column, _published_time(record))
            if rank_in_time(champion.crowned_at) > rank_in_time(place.crowned_at):
                place.champion, place.crowned_at = column, champion.crowned_at
                library = champion.baseline
                place.library = library.kernel if library else ""
                place.speedup, place.beside = champion.speedup, library
        for each in entry.runners_up:
            if each.kernel in self._kernels:
                place.add(self._column(each.kernel, each.config), _time_beside(record, each))


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(dict(config), separators=(",", ":"))


def _time(row: Seen, *, final: bool) -> Time:
    return Time(row.time_s, final, row.measured_at, row.source_hash, row.number)


def _published_time(record: Record) -> Time:
    time_s = record.measurement.time_s or 0.0
    return Time(time_s, True, record.measured_at, record.source_hash, None, record)


def _time_beside(record: Record, each: RunnerUp) -> Time:
    final, measured_at = each.role is Role.FINAL, each.measured_at or record.measured_at
    return Time(each.time_s, final, measured_at, each.source_hash, None, record, each)


def _matrix(subject: Subject, places: Sequence[Place], kernels: Mapping[str, Kernel]) -> Matrix:
    columns = list(dict.fromkeys(column for place in places for column in place.times))
    number = {column: at for at, column in enumerate(columns)}
    slower = np.full((len(places), len(columns)), np.nan)
    library = np.full(len(places), np.nan)
    for row, place in enumerate(places):
        best_s = place.best_s
        for column, time in place.times.items():
            slower[row, number[column]] = time.time_s / best_s
        if place.champion is not None and place.speedup > 0:
            library[row] = np.log(place.speedup * place.times[place.champion].time_s / best_s)
    slower = np.clip(np.log(slower), 0.0, SLOW)
    return Matrix(subject, tuple(places), tuple(columns), slower, library, kernels)
