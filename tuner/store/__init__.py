"""The store: records and champions in one database, durable at each call. The only SQL of the package.

Optuna keeps its studies in tables of its own in the same database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.record import Champion, Record
from tuner.store import opening, rows, tables
from tuner.store.reading import Reader

__all__ = ["Store"]


class Store(Reader):
    """Records and champions.

    One process writes and any number read. Every call that writes is one transaction, on the disk when it
    returns.
    """

    def __init__(self, engine: sa.Engine, where: str) -> None:
        super().__init__(engine, where)
        self._numbers: dict[tuple[str, ...], int] = {}

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, patience_s: float = 30.0) -> Store:
        """Opens a database; creates it and its tables, or brings them forward, unless read only.

        Args:
            url: e.g. ``sqlite:///studies.db``.
            read_only: True to leave everything as it is, down to the absence of the file.
            patience_s: Seconds to wait for another process that writes.

        Raises:
            NothingFound: Read only, and there is no database or it holds nothing of ours.
            StoreTrouble: The database cannot be used; the message says why and what to do.
        """
        parts = opening.parsed(url)
        where = parts.render_as_string(hide_password=True)
        file = opening.sqlite_file(parts)
        if read_only and file is not None and not file.exists():
            raise NothingFound(f"there is no database at {file}: nothing is tuned yet; run `tuner tune` first")
        engine = opening.make_engine(parts, read_only=read_only, patience_s=patience_s)
        try:
            (opening.ready_to_read if read_only else opening.ready_to_write)(engine, where)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, where)

    def close(self) -> None:
        """Ends the connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, records: Record | Iterable[Record]) -> None:
        """Stores records in one transaction; those whose id is stored already are left as they are.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [records] if isinstance(records, Record) else list(records)
        if not wanted:
            return
        with opening.explained(self._where), self._writing() as connection:
            numbers: dict[tuple[str, ...], int] = {}
            for record in wanted:
                self._add(connection, record, numbers)
        self._numbers |= numbers

    def crown(self, champion: Champion) -> None:
        """Stores a champion, and its records where they are not stored yet, in one transaction.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        with opening.explained(self._where), self._writing() as connection:
            numbers: dict[tuple[str, ...], int] = {}
            refers = self._add(connection, champion.record, numbers)
            row = rows.champion_row(champion) | {name: refers[name] for name in ("problem", "device")}
            row["record"] = self._number_of(connection, champion.record.id)
            if champion.baseline is not None:
                self._add(connection, champion.baseline, numbers)
                row["baseline"] = self._number_of(connection, champion.baseline.id)
            connection.execute(self._insert(tables.champions).values(**row))
        self._numbers |= numbers

    def _writing(self) -> Any:
        return self._engine.execution_options(writes=True).begin()

    def _insert(self, table: sa.Table) -> Any:
        """An INSERT that leaves a row alone which is there already; both dialects spell it alike."""
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table).on_conflict_do_nothing()
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table).on_conflict_do_nothing()

    def _add(
        self, connection: sa.Connection, record: Record, numbers: dict[tuple[str, ...], int]
    ) -> dict[str, int]:
        refers = {
            "problem": self._once(connection, tables.problems, rows.problem_row(record.problem), numbers),
            "device": self._once(connection, tables.devices, rows.device_row(record.device), numbers),
            "kernel": self._once(connection, tables.kernels, rows.kernel_row(record), numbers),
            "run": self._once(connection, tables.runs, rows.run_row(record), numbers),
        }
        connection.execute(self._insert(tables.records).values(**rows.record_row(record), **refers))
        return refers

    def _once(
        self,
        connection: sa.Connection,
        table: sa.Table,
        row: Mapping[str, str],
        numbers: dict[tuple[str, ...], int],
    ) -> int:
        """Number of the row that says this, new or not. What is new counts for others after the commit."""
        names = ("digest",) if "digest" in row else tuple(row)
        key = (table.name, *(row[name] for name in names))
        found = self._numbers.get(key) or numbers.get(key)
        if found is None:
            connection.execute(self._insert(table).values(**row))
            same = sa.and_(*(table.c[name] == row[name] for name in names))
            found = int(connection.execute(sa.select(table.c.number).where(same)).scalar_one())
            numbers[key] = found
        return found

    def _number_of(self, connection: sa.Connection, record_id: str) -> int:
        wanted = sa.select(tables.records.c.number).where(tables.records.c.id == rows.checked_id(record_id))
        return int(connection.execute(wanted).scalar_one())
