"""What studies timed: the problems tuned on a device, each with its fastest configs and the library.

It comes from the store and from the published results, few rows of each problem: the fastest.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import TunerError
from tuner.results.record import ProblemKey, Role, rank_in_time
from tuner.store.published import entries, standing

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.matrix import ConfigTime

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
    if subject.operation not in catalogue.operations:
        return []
    gathered = _Gathered(subject, catalogue)
    if store is not None:
        gathered.read(store)
    for entry in standing(entries(subject.operation, published, (subject.kind, subject.device)), store):
        champion, record = entry.champion, entry.champion.record
        of = record.problem.operation, record.problem.arithmetic, record.device.kind
        if Subject(*of, record.regime, record.device.name) != subject:
            continue
        time_s, crown = record.measurement.time_s or math.inf, (champion.crowned_at, champion.speedup)
        where = record.problem, record.device
        timed = Timed(True, record.measured_at, time_s, record.source_hash)
        gathered.add(*where, gathered.column(record.kernel, record.config), timed, crown)
        for other in entry.runners_up:
            at = other.measured_at or record.measured_at
            timed = Timed(other.role is Role.FINAL, at, other.time_s, other.source_hash)
            gathered.add(*where, gathered.column(other.kernel, other.config), timed)
    return [tuned for tuned in gathered.problems.values() if tuned.times]


class _Gathered:
    """Tuned problems, being filled."""

    def __init__(self, subject: Subject, catalogue: Catalogue) -> None:
        self._subject, self._operation = subject, catalogue.operations[subject.operation]
        self._names = {
            kernel.name: [parameter.name for parameter in kernel.parameters]
            for kernel in catalogue.kernels
            if (kernel.operation, kernel.target) == (subject.operation, subject.kind)
        }
        #: Rows of equal configs have equal texts.
        self._of_text = functools.cache(lambda kernel, text: self.column(kernel, json.loads(text)))
        self.problems: dict[ProblemKey, TunedProblem] = {}

    def column(self, kernel: str, config: Mapping[str, Any]) -> Column | None:
        """A config with its kernel's own order of parameters; None where the kernel has other ones now."""
        names = self._names.get(kernel)
        if names is None or set(names) != set(config):
            return None
        return kernel, Config({name: config[name] for name in names})

    def add(
        self, key: ProblemKey, device: DeviceInfo, column: Column | None, time: Timed,
        crown: tuple[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Takes a time in, and when and with which speed-up its config became champion.

        Left out are problems that the operation does not have any more, and configs that its kernels do not.
        """
        if key not in self.problems:
            try:
                self.problems[key] = TunedProblem(key.of_operation(self._operation), device)
            except (TunerError, ValueError, KeyError):
                return
        if column is not None:
            self.problems[key].add(column, time)
            if crown is not None:
                self.problems[key].crown(column, *crown)

    def read(self, store: Store) -> None:
        """Takes in what a store has: champions, and of each problem the best configs and the finalists.

        Whatever else is known of these configs at other problems is taken, too.
        """
        from tuner.store import matrix

        query = matrix.MatrixQuery(*astuple(self._subject))
        crowned = matrix.crowned(store, query)
        for champion in crowned:
            self._add_row(champion.record, (champion.crowned_at, champion.speedup))
        groups = [
            [row for row in rows if row.role != Role.BASELINE]
            for rows in matrix.fastest(store, query, ROWS_READ)
        ]
        wanted = {(champion.record.kernel, champion.record.config) for champion in crowned}
        for rows in groups:
            finals = [row for row in rows[BEST_OF_A_PROBLEM:] if row.role == Role.FINAL]
            wanted |= {(row.kernel, row.config) for row in (*rows[:BEST_OF_A_PROBLEM], *finals)}
        for row in chain.from_iterable(groups):
            if (row.kernel, row.config) in wanted:
                self._add_row(row)

    def _add_row(self, row: ConfigTime, crown: tuple[str, float] | None = None) -> None:
        final = row.role == Role.FINAL or crown is not None
        timed = Timed(final, row.measured_at, row.time_s, row.source_hash)
        self.add(row.problem, row.device, self._of_text(row.kernel, row.config), timed, crown)
