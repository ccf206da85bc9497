"""What is kept beside records: models of times, and demand, which guides the next night.

They are a help, and no measurement: they can be made again, and are neither exported nor copied beside the
database.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from tuner.results.record import Wanted, utc_now
from tuner.store import Store, rows, tables
from tuner.store.reading import Reader

#: A model unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 24
#: Rows of demand at the most; those that save the least go.
MOST_ROWS = 10_000


# --- models of times -----------------------------------


def add_model(store: Store, name: str, device: str, regime: str, text: bytes) -> None:
    """Stores a model, which counts in place of the one before it; earlier ones are for snapshots.

    Args:
        store: Where.
        name: Name of its operation, which a dtype other than the operation's first one follows.
        device: Name of the device.
        regime: How the times that it predicts were taken.
        text: The model (`tuner.model.stored`).

    Raises:
        StoreTrouble: The database cannot be written.
    """
    row = {
        "operation": name, "device": device, "regime": regime, "data": zlib.compress(text),
        "fitted_at": utc_now(),
    }  # fmt: skip
    with store.writing() as connection:
        connection.execute(tables.models.insert().values(**row))


def models(store: Reader, name: str, regime: str) -> dict[str, tuple[str, bytes]]:
    """The latest models of a name by device: when each was stored (ISO 8601, UTC), and its text.

    One that is damaged is left out: it can be fitted again.
    """
    of = tables.models.c
    last = sa.select(sa.func.max(of.number)).where(of.operation == name, of.regime == regime)
    wanted = sa.select(of.device, of.fitted_at, of.data).where(of.number.in_(last.group_by(of.device)))
    readable: dict[str, tuple[str, bytes]] = {}
    for row in store.rows(wanted):
        with contextlib.suppress(zlib.error):
            readable[row.device] = row.fitted_at, zlib.decompressobj().decompress(row.data, MOST_BYTES)
    return readable


# --- demand --------------------------------------------


def _demand_key(wanted: Wanted) -> dict[str, str]:
    return {**rows.problem_row(wanted.problem), "kind": wanted.kind, "device": wanted.device}


def add_demand(store: Store, wanted: Sequence[Wanted]) -> None:
    """Adds counts to those that are stored: one row for each problem and device, bounded in number.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    if not wanted:
        return
    now, table = utc_now(), tables.demand
    added = [
        {
            **_demand_key(item), "match": item.match, **item.counts(), "first_at": item.first_at or now,
            "last_at": item.last_at or now,
        }
        for item in wanted
    ]  # fmt: skip
    insert = store.insert(table)
    sums = {name: table.c[name] + insert.excluded[name] for name in ("calls", "saves_s")}
    latest = {name: insert.excluded[name] for name in ("match", "last_at")}
    merged = insert.on_conflict_do_update(index_elements=list(_demand_key(wanted[0])), set_=sums | latest)
    with store.writing() as connection:
        connection.execute(merged, added)
        most = (
            sa.select(table.c.number).order_by(table.c.saves_s.desc(), table.c.number.desc()).limit(MOST_ROWS)
        )
        connection.execute(table.delete().where(table.c.number.not_in(most)))


def demand(store: Reader, *, operation: str = "", device: str = "") -> list[Wanted]:
    """What was asked and had no exact answer, the most seconds first.

    Args:
        store: The store.
        operation: Only of this one; all where empty.
        device: Only on devices of this name.
    """
    of = tables.demand.c
    chosen = {of.operation: operation, of.device: device}
    wanted = sa.select(*of).where(*(column == value for column, value in chosen.items() if value))
    names = "kind", "device", "match", "calls", "saves_s", "first_at", "last_at"
    stored = store.rows(wanted.order_by(of.saves_s.desc(), of.calls.desc(), of.number))
    return [Wanted(rows.problem_of(row), *(getattr(row, name) for name in names)) for row in stored]


def forget_demand(store: Store, wanted: Iterable[Wanted]) -> int:
    """Deletes counts.

    Returns:
        How many there were.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    table, gone = tables.demand, 0
    with store.writing() as connection:
        for item in wanted:
            same = sa.and_(*(table.c[name] == value for name, value in _demand_key(item).items()))
            gone += connection.execute(table.delete().where(same)).rowcount
    return gone
