"""The SELECTs of lookups: the fastest times of every problem of an operation, found by index.

They do not read full records: a row has what ranking needs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey, Subject, latest_hash
from tuner.store import rows, tables
from tuner.store.reading import Reader

#: Outcomes whose times count. Pruned configs were timed, too, and are slow.
TIMED = (Outcome.MEASURED.value, Outcome.PRUNED.value)


class ConfigTime(NamedTuple):
    """One time of a config, as ranking needs it.

    Attributes:
        problem: The problem that was solved.
        device: Where.
        kernel: Kernel's name; the library's for a baseline.
        source_hash: Source hash of the kernel; empty for a baseline.
        config: The config as JSON text; equal configs of one kernel have equal texts.
        role: Why it was measured: a value of `Role`.
        time_s: Median in seconds.
        measured_at: ISO 8601, UTC.
    """

    problem: ProblemKey
    device: DeviceInfo
    kernel: str
    source_hash: str
    config: str
    role: str
    time_s: float
    measured_at: str


def stamp(store: Reader) -> tuple[int, ...]:
    """Returns a value that changes with every record, champion, retraction, crown log's entry or model."""
    return tuple(number for name, number in store.positions().items() if name != tables.surveys.name)


def fastest(store: Reader, query: Subject, rows_at_most: int) -> list[list[ConfigTime]]:
    """The fastest times of every problem of an operation on every device of a kind.

    Args:
        store: The store to read.
        query: Which problems and devices.
        rows_at_most: Largest number of rows in total, divided evenly among problems and devices.

    Returns:
        For each problem and device, fastest first.
    """
    of = tables.records.c
    timed = of.regime == query.regime, of.time_s.is_not(None), rows.stands()
    problem, device = tables.problems, tables.devices
    is_there = sa.select(of.number).where(of.problem == problem.c.number, of.device == device.c.number, *timed)
    pairs = (
        sa.select(problem.c.number, device.c.number)
        .select_from(problem.join(device, sa.true()))
        .where(*_these(query), is_there.correlate(problem, device).exists())
        .order_by(problem.c.number, device.c.number)
    )
    with store.reading() as connection:
        names, numbers = _Names(connection, query), connection.execute(pairs).all()
        some = (
            sa.select(of.kernel, of.config, of.role, of.time_s, of.measured_at)
            .where(of.problem == sa.bindparam("of_problem"), of.device == sa.bindparam("on_device"))
            .where(*timed, of.outcome.in_(TIMED))
            .order_by(of.time_s)
            .limit(max(8, rows_at_most // max(1, len(numbers))))
        )
        return [
            [
                names.row(problem, device, *row)
                for row in connection.execute(some, {"of_problem": problem, "on_device": device})
            ]
            for problem, device in numbers
        ]


def crowned(store: Reader, query: Subject) -> list[tuple[ConfigTime, tuple[str, float]]]:
    """Returns the champion that answers for every problem of an operation on every device of a kind.

    Beside its time stand when it was crowned, and the library's time over its own; 0 without a library.
    """
    champion, record = tables.champions.c, tables.records.c
    of_record = record.kernel, record.config, record.role, record.time_s, record.measured_at
    wanted = (
        sa.select(champion.problem, champion.device, *of_record, champion.speedup, champion.crowned_at)
        .join(tables.records, champion.record == record.number)
        .join(tables.problems, champion.problem == tables.problems.c.number)
        .join(tables.devices, champion.device == tables.devices.c.number)
        .where(*_these(query), champion.regime == query.regime, record.time_s.is_not(None))
        .where(rows.reigns(), champion.id.not_in(store.ruling().barred))
        .order_by(rows.rank_in_time(champion.crowned_at), champion.id)
    )
    with store.reading() as connection:
        names = _Names(connection, query)
        last = {(row.problem, row.device): row for row in connection.execute(wanted)}
        return [(names.row(*row[:7]), (row.crowned_at, row.speedup)) for row in last.values()]


def _these(query: Subject) -> tuple[Any, ...]:
    problem, device = tables.problems.c, tables.devices.c
    named = (device.name == query.device,) if query.device else ()
    return problem.operation == query.operation, problem.dtype == query.dtype, device.kind == query.kind, *named


class _Names:
    """Resolves the numbers in records."""

    def __init__(self, connection: sa.Connection, query: Subject) -> None:
        problem, kernel = tables.problems.c, tables.kernels.c
        fits = problem.operation == query.operation, problem.dtype == query.dtype
        self._problems, self._devices = rows.problems_and_devices(connection, *fits)
        named = connection.execute(sa.select(kernel.number, kernel.name, kernel.source_hash))
        self._kernels = {number: (name, latest_hash(source_hash)) for number, name, source_hash in named}

    def row(self, problem: int, device: int, kernel: int, *columns: Any) -> ConfigTime:
        """The time of a config, from the columns of its record."""
        return ConfigTime(self._problems[problem], self._devices[device], *self._kernels[kernel], *columns)
