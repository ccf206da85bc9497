"""What studies timed: the problems tuned on a device, each with its fastest configs and the library.

It comes from the store and from the published results, few rows of each problem: the fastest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import TunerError
from tuner.results.record import ProblemKey, Role, rank_in_time
from tuner.store.published import Published, entries, standing

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.matrix import ConfigTime, Crowned

#: Rows read from a store for one operation, dtype, device and regime.
ROWS_READ = 5000
#: The best configs of each problem that may be answered elsewhere; finalists and champions always may.
BEST_OF_A_PROBLEM = 12

#: Kernel and config.
Column = tuple[str, Config]


@dataclass(frozen=True)
class Subject:
    """What is asked about, whatever its shape.

    Attributes:
        operation: Name.
        dtype: Element type, and the precision behind it if it is not the usual one (`ProblemKey.arithmetic`).
        kind: Of the device.
        regime: How time was taken.
        device: Name of the device.
    """

    operation: str
    dtype: str
    kind: str
    regime: str
    device: str


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
        finals = [each.time_s for each in self.times.values() if each.final]
        return min(finals or [each.time_s for each in self.times.values()])


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
    operation = catalogue.operations.get(subject.operation)
    if operation is None:
        return []
    kernels = {
        each.name: each
        for each in catalogue.kernels
        if (each.operation, each.target) == (subject.operation, subject.kind)
    }
    found = _Gathered(operation, kernels)
    if store is not None:
        from tuner.store import matrix

        query = matrix.MatrixQuery(
            subject.operation, subject.dtype, subject.kind, subject.regime, subject.device
        )
        for crowned in matrix.crowned(store, query):
            found.crown(crowned)
        found.take(matrix.fastest(store, query, ROWS_READ))
    for entry in standing(entries(subject.operation, published, (subject.kind, subject.device)), store):
        record = entry.champion.record
        of = record.problem.operation, record.problem.arithmetic, record.device.kind
        if Subject(*of, record.regime, record.device.name) == subject:
            found.publish(entry)
    return [each for each in found.problems.values() if each.times]


class _Gathered:
    """TunedProblem problems, being filled."""

    def __init__(self, operation: Operation, kernels: Mapping[str, Kernel]) -> None:
        self._operation, self._kernels = operation, kernels
        self._columns: dict[tuple[str, str], Column] = {}
        self.problems: dict[ProblemKey, TunedProblem] = {}

    def _at(self, key: ProblemKey, device: DeviceInfo) -> TunedProblem | None:
        """A problem; None where the operation has no such problem any more."""
        if key not in self.problems:
            try:
                problem = key.of_operation(self._operation)
            except (TunerError, ValueError, KeyError):
                return None
            self.problems[key] = TunedProblem(problem, device)
        return self.problems[key]

    def _column(self, kernel: str, config: Mapping[str, Any]) -> Column | None:
        """A config with its kernel's own order of parameters; None where the kernel has other ones now."""
        declared = self._kernels.get(kernel)
        names = [each.name for each in declared.parameters] if declared is not None else []
        if declared is None or set(names) != set(config):
            return None
        return kernel, Config({name: config[name] for name in names})

    def _stored(self, row: ConfigTime) -> Column | None:
        """The column of a store's row: rows of equal configs have equal texts."""
        key = row.kernel, row.config
        if key not in self._columns:
            column = self._column(row.kernel, json.loads(row.config))
            if column is None:
                return None
            self._columns[key] = column
        return self._columns[key]

    def crown(self, crowned: Crowned) -> None:
        """Takes a store's champion in."""
        seen = crowned.record
        tuned, column = self._at(seen.problem, seen.device), self._stored(seen)
        if tuned is not None and column is not None:
            tuned.add(column, _time(seen, final=True))
            tuned.crown(column, crowned.crowned_at, crowned.speedup)

    def take(self, groups: Sequence[Sequence[ConfigTime]]) -> None:
        """Takes a store's fastest times in, one group a problem.

        Of each the best and its finalists, and whatever of these configs is known at other problems.
        """
        kernels = [[row for row in rows if row.role != Role.BASELINE] for rows in groups]
        wanted = set(self._columns)
        for rows in kernels:
            wanted |= {(row.kernel, row.config) for row in rows[:BEST_OF_A_PROBLEM]}
            wanted |= {(row.kernel, row.config) for row in rows if row.role == Role.FINAL}
        for rows in kernels:
            for row in rows:
                tuned, column = self._at(row.problem, row.device), self._stored(row)
                if tuned is not None and column is not None and (row.kernel, row.config) in wanted:
                    tuned.add(column, _time(row, final=row.role == Role.FINAL))

    def publish(self, entry: Published) -> None:
        """Takes a published result in; the store's own champion stays where it is the later one."""
        champion, record = entry.champion, entry.champion.record
        tuned, column = self._at(record.problem, record.device), self._column(record.kernel, record.config)
        if tuned is None:
            return
        if column is not None:
            time_s = record.measurement.time_s or math.inf
            tuned.add(column, Timed(True, record.measured_at, time_s, record.source_hash))
            tuned.crown(column, champion.crowned_at, champion.speedup)
        for each in entry.runners_up:
            other, at = self._column(each.kernel, each.config), each.measured_at or record.measured_at
            if other is not None:
                tuned.add(other, Timed(each.role is Role.FINAL, at, each.time_s, each.source_hash))


def _time(row: ConfigTime, *, final: bool) -> Timed:
    return Timed(final, row.measured_at, row.time_s, row.source_hash)
