"""Streams everything that is kept in batches, ordered by id, which is the same in every database.

Nothing stays open between batches, so a long reader does not keep a writer's log from being merged into the
database. Items added meanwhile may or may not be included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError
from tuner.results.record import Champion, ProblemKey, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import opening, queries, rows, tables
from tuner.store.reading import Reader

#: Rows of a batch.
AT_ONCE = 500
#: Parts of surveys of a batch, each as long as some hundred records.
SURVEYS_AT_ONCE = 8


@dataclass(frozen=True)
class Selection:
    """Selects records; by default all.

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

    @classmethod
    def parsed(cls, operation: str = "", shape: str = "", device: str = "", regime: str = "") -> Selection:
        """Reads what a user names; empty texts select everything.

        Raises:
            InputError: The shape is not a list of sizes such as ``1024,1024,512``.
        """
        try:
            sizes = tuple(int(size) for size in shape.replace("x", ",").split(",") if size)
        except ValueError:
            raise InputError(f"a shape is whole numbers such as 1024,1024,512, got {shape!r}") from None
        return cls(operation, sizes, device, regime)

    def has(self, problem: ProblemKey) -> bool:
        """True if this problem's records are selected."""
        shape = tuple(value for _, value in problem.shape)
        return self.operation in ("", problem.operation) and self.shape in ((), shape)

    def conditions(self, connection: sa.Connection, of: Any) -> list[Any]:
        """Conditions for records or champions.

        Args:
            connection: To look up problems of the shape.
            of: The table's columns.
        """
        found: list[Any] = []
        if self.operation or self.shape:
            problem = tables.problems
            named = [problem.c.operation == self.operation] if self.operation else []
            numbers: Any = sa.select(problem.c.number).where(*named)
            if self.shape:  # of which there are few problems
                every = connection.execute(sa.select(problem).where(*named))
                numbers = [row.number for row in every if self.has(rows.problem_of(row))]
            found.append(of.problem.in_(numbers))
        if self.device:
            found.append(of.device.in_(queries.devices_like(self.device)))
        return [*found, of.regime == self.regime] if self.regime else found


def count(store: Reader) -> int:
    """Counts records."""
    with store.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.records)).scalar_one())


def records(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[Record]:
    """Yields records by id; retracted ones only on request."""
    with store.reading() as connection:
        fits = wanted.conditions(connection, tables.records.c)
    yield from _items(store, tables.records, *fits, *([] if retracted else [queries.stands()]))


def champions(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[Champion]:
    """Yields every champion ever crowned, by id; retracted ones only on request."""
    with store.reading() as connection:
        fits = wanted.conditions(connection, tables.champions.c)
    yield from _items(store, tables.champions, *fits, *([] if retracted else [queries.reigns()]))


def retractions(store: Reader) -> Iterator[Retraction]:
    """Yields every retraction, by id; also of items that are not stored here yet."""
    yield from _items(store, tables.retractions)


def survey_parts(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[SurveyPart]:
    """Parts of surveys, by id; none where a shape is named, for a part has many and stays whole."""
    of = tables.surveys.c
    fits = [
        *([of.operation == wanted.operation] if wanted.operation else []),
        *([of.regime == wanted.regime] if wanted.regime else []),
        *([of.device.in_(queries.devices_like(wanted.device))] if wanted.device else []),
        *([] if retracted else [~queries.withdrawn(of.id)]),
    ]
    if not wanted.shape:
        yield from _items(store, tables.surveys, *fits, at_once=SURVEYS_AT_ONCE)


def everything(store: Reader, wanted: Selection | None = None, *, retracted: bool = False) -> Iterator[Kept]:
    """Yields retractions, records, champions, surveys, then the crown log unless only some are wanted.

    Retractions are known before their targets.
    """
    wanted = wanted or Selection()
    yield from retractions(store)
    yield from records(store, wanted, retracted=retracted)
    yield from champions(store, wanted, retracted=retracted)
    yield from survey_parts(store, wanted, retracted=retracted)
    if wanted == Selection():
        yield from store.rulings.log()


def _items(store: Reader, table: sa.Table, *fits: Any, at_once: int | None = None) -> Iterator[Any]:
    of, last, size = table.c, "", at_once or AT_ONCE
    page = sa.select(of.id, of.data).where(*fits).order_by(of.id).limit(size)
    while True:
        with store.reading() as connection:
            found = connection.execute(page.where(of.id > last) if last else page).all()
            items = [rows.item_of(row.data) for row in found]
        yield from items
        if len(found) < size:
            return
        if found[-1].id <= last:  # a damaged index could lead in a circle
            raise opening.damaged(store._where, f"after {last} came {found[-1].id}")
        last = found[-1].id
