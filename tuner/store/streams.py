"""All records and champions, a few at a time and in the order of their ids, which is the same everywhere.

Nothing is held open from one batch to the next, so that a long reader keeps no writer's log from being folded
into the database; what is added meanwhile may or may not come along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.record import Champion, ProblemKey, Record
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
