"""Snapshots: numbered manifests of what answers rest on, and a store as it was at one of them.

A manifest is a row: its ``number`` in this database, when it was made, ``positions`` and ``code``. Positions
tell the last row of each table that answers rest on. Rows are only ever added, so the rows up to there are the
same at any later time.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tuner.results.record import ProblemKey, utc_now
from tuner.store import Store, opening, rows, tables
from tuner.store.reading import Reader

Manifest = sa.Row[Any]


def take(store: Store, code: str) -> Manifest:
    """The snapshot of what is there now: the last one if nothing has changed since, else a new one.

    Writers take turns, so no row before the last one can appear afterwards.

    Args:
        store: The store.
        code: Digest of the files that answers rest on.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    of = tables.snapshots
    with store.writing() as connection:
        now = rows.positions(connection)
        last = connection.execute(sa.select(of).order_by(of.c.number.desc()).limit(1)).one_or_none()
        if last is not None and (last.positions, last.code) == (now, code):
            return last
        row = {"positions": now, "code": code, "published": "", "made_at": utc_now()}
        return connection.execute(sa.insert(of).values(**row).returning(of)).one()


def manifest(store: Reader, number: int) -> Manifest | None:
    """A snapshot by its number; None if there is none."""
    of = tables.snapshots
    return next(iter(store.rows(sa.select(of).where(of.c.number == number))), None)


def changed_problems(store: Reader, before: Mapping[str, int]) -> set[ProblemKey] | None:
    """The problems about which something came after earlier positions; None if it may be about any."""
    crown, numbers = tables.crowns.c, list[Any]()
    general = crown.problem.is_(None) & (crown.number > before.get(tables.crowns.name, 0))
    for table in (tables.records, tables.champions, tables.crowns):
        numbers.append(sa.select(table.c.problem).where(table.c.number > before.get(table.name, 0)))
    changed = sa.select(tables.problems).where(tables.problems.c.number.in_(sa.union(*numbers)))
    with store.reading() as connection:
        if connection.execute(sa.select(crown.number).where(general).limit(1)).first():
            return None
        return set(map(rows.problem_of, connection.execute(changed)))


def as_of(url: str, positions: Mapping[str, int]) -> Store:
    """Opens a database, for reading, as it was at a snapshot.

    Temporary views of the connection, which have the names of the tables, end at the snapshot's last rows. Both
    databases look for temporary relations first, so every query of a store works unchanged.

    Args:
        url: The database.
        positions: Those of the snapshot.

    Raises:
        StoreTrouble: The database cannot be used.
    """
    parts = opening.parsed(url)
    engine = opening.make_engine(parts, read_only=True)
    server = engine.dialect.name == "postgresql"

    def connected(connection: Any, _: Any) -> None:
        cursor, schema = connection.cursor(), "main"
        if server:
            cursor.execute("SET TRANSACTION READ WRITE")  # of nothing but the connection's own views
            cursor.execute("SELECT quote_ident(current_schema())")
            schema = cursor.fetchone()[0]
        for table in rows.ANSWERING:
            rest = f"SELECT * FROM {schema}.{table.name} WHERE number <= {positions.get(table.name, 0)}"
            cursor.execute(f"CREATE TEMP VIEW {table.name} AS {rest}")
        cursor.close()
        if server:
            connection.commit()

    sa.event.listen(engine, "connect", connected)
    return Store(engine, parts.render_as_string(hide_password=True))
