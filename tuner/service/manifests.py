"""Snapshots: numbered manifests of what answers rest on, and a store as it was at one of them.

A manifest tells the last row of each table that answers rest on. Rows are only ever added, so the rows up to
there are the same at any later time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.results.record import ProblemKey, utc_now
from tuner.store import Store, opening, rows, tables
from tuner.store.reading import Reader


@dataclass(frozen=True)
class Manifest:
    """What the answers of a snapshot rest on.

    Attributes:
        number: Its number in this database.
        made_at: ISO 8601, UTC.
        positions: Table -> number of its last row.
        published: Digest of the published results and models.
        code: Version of tile-tuner, and a digest of the kernels' files.
    """

    number: int
    made_at: str
    positions: Mapping[str, int]
    published: str
    code: str

    def to_json(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        positions = {name.removeprefix("tuner_"): last for name, last in self.positions.items()}
        return {
            "snapshot": self.number, "made_at": self.made_at, **positions, "published": self.published,
            "code": self.code,
        }  # fmt: skip


def positions(store: Reader) -> dict[str, int]:
    """The number of the last row of each table that answers rest on; a quick query."""
    with store.reading() as connection:
        return rows.positions(connection)


def take(store: Store, published: str, code: str) -> Manifest:
    """The snapshot of what is there now: the last one if nothing has changed since, else a new one.

    Writers take turns, so no row before the last one can appear afterwards.

    Args:
        store: The store.
        published: Digest of the published results and models.
        code: Version of the code.

    Raises:
        StoreTrouble: The database cannot be written.
    """
    of = tables.snapshots
    with store.writing() as connection:
        basis = {"positions": rows.positions(connection), "published": published, "code": code}
        last = connection.execute(sa.select(of).order_by(of.c.number.desc()).limit(1)).one_or_none()
        if last is not None and all(last._mapping[name] == value for name, value in basis.items()):
            return Manifest(**last._mapping)
        row = basis | {"made_at": utc_now()}
        return Manifest(**connection.execute(sa.insert(of).values(**row).returning(of)).one()._mapping)


def manifest(store: Reader, number: int) -> Manifest | None:
    """A snapshot by its number; None if there is none."""
    of = tables.snapshots
    with store.reading() as connection:
        row = connection.execute(sa.select(of).where(of.c.number == number)).one_or_none()
        return Manifest(**row._mapping) if row is not None else None


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


def as_of(url: str, manifest: Manifest, patience_s: float = 30.0) -> Store:
    """Opens a database, for reading, as it was at a snapshot.

    Temporary views of the connection, which have the names of the tables, end at the snapshot's last rows. Both
    databases look for temporary relations first, so every query of a store works unchanged.

    Args:
        url: The database.
        manifest: The snapshot.
        patience_s: Seconds to wait for another process that writes.

    Raises:
        StoreTrouble: The database cannot be used.
    """
    parts = opening.parsed(url)
    where = parts.render_as_string(hide_password=True)
    engine = opening.make_engine(parts, read_only=True, patience_s=patience_s)
    server = engine.dialect.name == "postgresql"

    def connected(connection: Any, _: Any) -> None:
        cursor, schema = connection.cursor(), "main"
        if server:
            cursor.execute("SET TRANSACTION READ WRITE")  # of nothing but the connection's own views
            cursor.execute("SELECT quote_ident(current_schema())")
            schema = cursor.fetchone()[0]
        for table in rows.ANSWERING:
            last = int(manifest.positions.get(table.name, 0))
            cursor.execute(
                f"CREATE TEMP VIEW {table.name} AS SELECT * FROM {schema}.{table.name} WHERE number <= {last}"
            )
        cursor.close()
        if server:
            connection.commit()

    sa.event.listen(engine, "connect", connected)
    return Store(engine, where)
