"""All records and champions, a few at a time and in the order of their ids, which is the same everywhere.

Nothing is held open from one batch to the next, so that a long reader keeps no writer's log from being folded
into the database; what is added meanwhile may or may not come along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.measurement import Outcome
from tuner.record import Champion, ProblemKey, Record, Role
from tuner.store import opening, queries, rows, tables
from tuner.store.reading import Reader

#: Rows of a batch.
AT_ONCE = 500


@dataclass(frozen=True)
class Selection:
    """Which records; all where nothing is said.

    Attributes:
        operation: Name.
        shape: Values of the dims, in their order.
        device: Name or uuid.
        regime: How time was taken.
    """

    operation: str = ""
    shape: tuple[int, ...] = ()
    device: str = ""
    regime: str = ""

    def has(self, problem: ProblemKey) -> bool:
        """Whether this problem's records are wanted."""
        shape = tuple(value for _, value in problem.shape)
        return self.operation in ("", problem.operation) and self.shape in ((), shape)


def count(store: Reader) -> int:
    """How many records there are."""
    with opening.explained(store._where), store._engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.records)).scalar_one())


@dataclass(frozen=True)
class Tally:
    """How much there is of one operation on one device.

    Attributes:
        operation: Name.
        device: Name.
        problems: Different problems.
        trials: Records of trials.
        failed: Of them, those whose outcome is neither MEASURED nor PRUNED.
        finals: Records of finals and of the library.
        champions: Champions that were ever crowned.
        first: When the first was measured; ISO 8601, UTC.
        last: When the last was.
    """

    operation: str
    device: str
    problems: int
    trials: int
    failed: int
    finals: int
    champions: int
    first: str
    last: str


def tallies(store: Reader) -> list[Tally]:
    """How much there is, by operation and device."""
    of, problem, device = tables.records, tables.problems.c, tables.devices.c
    is_trial = of.c.role == Role.TRIAL.value
    well = of.c.outcome.in_((Outcome.MEASURED.value, Outcome.PRUNED.value))

    def grouped(table: sa.Table, *columns: sa.ColumnElement[Any]) -> Any:
        return (
            sa.select(problem.operation, device.name, *columns)
            .select_from(table)
            .join(tables.problems, table.c.problem == problem.number)
            .join(tables.devices, table.c.device == device.number)
            .group_by(problem.operation, device.name)
            .order_by(problem.operation, device.name)
        )

    counted = grouped(
        of, sa.func.count(of.c.problem.distinct()), _sum(is_trial), _sum(sa.and_(is_trial, sa.not_(well))),
        _sum(sa.not_(is_trial)), sa.func.min(of.c.measured_at), sa.func.max(of.c.measured_at),
    )  # fmt: skip
    with opening.explained(store._where), store._engine.connect() as connection:
        found = connection.execute(grouped(tables.champions, sa.func.count())).all()
        crowned = {(row[0], row[1]): int(row[2]) for row in found}
        return [
            Tally(
                row[0], row[1], int(row[2]), int(row[3]), int(row[4]), int(row[5]),
                crowned.get((row[0], row[1]), 0), str(row[6]), str(row[7]),
            )
            for row in connection.execute(counted).all()
        ]  # fmt: skip


def _sum(condition: Any) -> Any:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def recent(store: Reader, wanted: Selection, limit: int) -> list[Record]:
    """The records that were stored last, the last first."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.records.c, 0
    chosen: list[int] = []
    page = sa.select(of.number, of.problem, of.device, of.regime).order_by(of.number.desc()).limit(AT_ONCE)
    with opening.explained(store._where), store._engine.connect() as connection:
        while len(chosen) < limit:
            found = connection.execute(page.where(of.number < last) if last else page).all()
            chosen += [row.number for row in found if _fits(row, wanted, problems, devices)]
            if len(found) < AT_ONCE:
                break
            last = found[-1].number
        by_number = store._by_number(connection, chosen[:limit])
    return [by_number[number] for number in chosen[:limit]]


def records(store: Reader, wanted: Selection) -> Iterator[Record]:
    """Records by id."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.records.c, ""
    while True:
        page = sa.select(of.id, of.number, of.problem, of.device, of.regime).order_by(of.id).limit(AT_ONCE)
        with opening.explained(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.id > last) if last else page).all()
            chosen = [row.number for row in found if _fits(row, wanted, problems, devices)]
            by_number = store._by_number(connection, chosen)
        for number in chosen:
            yield by_number[number]
        if len(found) < AT_ONCE:
            return
        last = found[-1].id


def champions(store: Reader, wanted: Selection) -> Iterator[Champion]:
    """Every champion that was ever crowned, by id."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.champions, ""
    while True:
        page = sa.select(of).order_by(of.c.id).limit(AT_ONCE)
        with opening.explained(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.c.id > last) if last else page).all()
            chosen = [row for row in found if _fits(row, wanted, problems, devices)]
            numbers = {row.record for row in chosen} | {row.baseline for row in chosen} - {None}
            by_number = store._by_number(connection, sorted(numbers))
        for row in chosen:
            yield rows.champion_of(dict(row._mapping), by_number[row.record], by_number.get(row.baseline))
        if len(found) < AT_ONCE:
            return
        last = found[-1].id


def _fits(row: Any, wanted: Selection, problems: set[int], devices: set[int]) -> bool:
    return row.problem in problems and row.device in devices and wanted.regime in ("", row.regime)


def _numbers(store: Reader, wanted: Selection) -> tuple[set[int], set[int]]:
    """Numbers of the problems and devices that are wanted; a database has few of them."""
    of = tables.problems
    devices: sa.Select[Any] = sa.select(tables.devices.c.number)
    if wanted.device:
        devices = queries.devices_like(wanted.device)
    with opening.explained(store._where), store._engine.connect() as connection:
        problems = {
            row.number
            for row in connection.execute(sa.select(of))
            if wanted.has(rows.problem_of(dict(row._mapping)))
        }
        return problems, {int(row[0]) for row in connection.execute(devices)}
