"""Records in the order in which a database took them, for whoever copies what is new."""

from __future__ import annotations

import sqlalchemy as sa

from tuner.results.record import Record
from tuner.store import opening, queries, tables
from tuner.store.reading import Reader


def records_since(store: Reader, number: int, count: int) -> list[tuple[int, Record]]:
    """Returns records with their numbers, which are local to the database.

    Args:
        store: The database.
        number: The last number that is known.
        count: Largest number of records.
    """
    of = tables.records.c
    wanted = queries.records_joined().where(of.number > number).order_by(of.number).limit(count)
    with opening.reading(store._where), store._engine.connect() as connection:
        return [(row.number, store._record_of(connection, row)) for row in connection.execute(wanted).all()]


def last_number(store: Reader) -> int:
    """Returns the number of the latest record; 0 if there is none."""
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(sa.select(sa.func.max(tables.records.c.number))).scalar()
        return int(found or 0)
