"""Demand in the database: one row for each problem and device, bounded in number.

It is a help for the next night, and no measurement: it is neither exported nor copied beside the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tuner.results.record import Wanted, utc_now
from tuner.store import rows, tables

if TYPE_CHECKING:
    from tuner.store import Store
    from tuner.store.reading import Reader

#: Rows at the most; those that save the least go.
MOST_ROWS = 10_000
#: Rows beyond that before any go.
SLACK = 500
_NAMES = ("operation", "shape", "dtype", "layout", "kind", "device")


def add(store: Store, wanted: Iterable[Wanted]) -> None:
    """Adds counts to those that are stored.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    now, table = utc_now(), tables.demand
    added = [
        {
            **rows.problem_row(each.problem), "kind": each.kind, "device": each.device, "match": each.match,
            "calls": each.calls, "saves_s": each.saves_s, "first_at": each.first_at or now,
            "last_at": each.last_at or now,
        }
        for each in wanted
    ]  # fmt: skip
    if not added:
        return
    insert = store.insert(table)
    merged = insert.on_conflict_do_update(
        index_elements=list(_NAMES),
        set_={
            "calls": table.c.calls + insert.excluded.calls,
            "saves_s": table.c.saves_s + insert.excluded.saves_s,
            "match": insert.excluded.match, "last_at": insert.excluded.last_at,
        },
    )  # fmt: skip
    with store.writing() as connection:
        connection.execute(merged, added)
        count = int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
        if count > MOST_ROWS + SLACK:
            least = sa.select(table.c.number).order_by(table.c.saves_s, table.c.number).limit(count - MOST_ROWS)
            connection.execute(table.delete().where(table.c.number.in_(least)))


def read(store: Reader, *, operation: str = "", device: str = "", kind: str = "") -> list[Wanted]:
    """What is stored, the most seconds first.

    Args:
        store: The store.
        operation: Only of this one; all where empty.
        device: Only on devices of this name.
        kind: Only on devices of this kind.
    """
    of = tables.demand.c
    named = {of.operation: operation, of.device: device, of.kind: kind}
    wanted = sa.select(*of).where(*(column == value for column, value in named.items() if value))
    with store.reading() as connection:
        found = connection.execute(wanted.order_by(of.saves_s.desc(), of.calls.desc(), of.number))
        return [
            Wanted(
                rows.problem_of(row), row.kind, row.device, row.match, row.calls, row.saves_s, row.first_at,
                row.last_at,
            )
            for row in found
        ]  # fmt: skip


def forget(store: Store, wanted: Sequence[Wanted]) -> int:
    """Deletes counts.

    Returns:
        How many there were.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    table, gone = tables.demand, 0
    with store.writing() as connection:
        for each in wanted:
            row = {**rows.problem_row(each.problem), "kind": each.kind, "device": each.device}
            where = sa.and_(*(table.c[name] == row[name] for name in _NAMES))
            gone += connection.execute(table.delete().where(where)).rowcount
    return gone
