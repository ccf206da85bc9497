"""Records and champions in one database, durable at each call.

Optuna keeps its studies in tables of its own in the same database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import opening, rows, surveys, tables
from tuner.store.ledger import Ledger
from tuner.store.reading import Reader

__all__ = ["Store"]

#: Table of rows that records share -> name of such a row in its copy.
_KINDS = {
    tables.problems.name: "problem", tables.devices.name: "device", tables.kernels.name: "kernel",
    tables.runs.name: "run",
}  # fmt: skip


class Store(Reader):
    """Records and champions.

    One process writes at a time; any number may read. Every call that writes is one transaction and is on disk
    when it returns. A SQLite file has a second copy of all records beside it; see `tuner.store.ledger`.
    """

    def __init__(self, engine: sa.Engine, where: str, ledger: Ledger | None = None) -> None:
        super().__init__(engine, where)
        self._ledger = ledger
        self._numbers: dict[tuple[str, ...], int] = {}

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, patience_s: float = 30.0) -> Self:
        """Opens a database. Unless read-only, creates or migrates its tables.

        Args:
            url: e.g. ``sqlite:///studies.db``.
            read_only: True to change nothing; not even a missing file is made.
            patience_s: Seconds to wait for another process that writes.

        Raises:
            NothingFound: Read-only, and there is no database, or it holds no tables of ours.
            StoreTrouble: The database cannot be used; the message gives reason and remedy.
        """
        parts = opening.parsed(url)
        where = parts.render_as_string(hide_password=True)
        file = opening.sqlite_file(parts)
        if read_only and file is not None and not file.exists():
            raise NothingFound(f"there is no database at {file}: nothing is tuned yet; run `tuner tune` first")
        engine = opening.make_engine(parts, read_only=read_only, patience_s=patience_s)
        try:
            (opening.ready_to_read if read_only else opening.ready_to_write)(engine, where)
            ledger = None if read_only or file is None else Ledger(file, opening.identity(engine, where))
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, where, ledger)

    @property
    def identity(self) -> str:
        """UUID of the database, which copies of it share."""
        return opening.identity(self._engine, self._where)

    def close(self) -> None:
        """Ends the connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, records: Record | Iterable[Record]) -> int:
        """Stores records in one transaction. Records whose id is already stored are not changed.

        Returns:
            How many are new.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [records] if isinstance(records, Record) else list(records)
        if not wanted:
            return 0
        numbers: dict[tuple[str, ...], int] = {}
        with opening.explained(self._where), self._writing() as connection:
            fresh = self._add(connection, wanted, numbers)
        self._remember(numbers, fresh)
        return len(fresh)

    def crown(self, champions: Champion | Iterable[Champion]) -> int:
        """Stores champions, with their records if not stored yet, in one transaction.

        Returns:
            How many champions are new.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [champions] if isinstance(champions, Champion) else list(champions)
        numbers: dict[tuple[str, ...], int] = {}
        fresh: list[Champion] = []
        with opening.explained(self._where), self._writing() as connection:
            may_crown = self._may_crown(connection)
            for champion in wanted:
                library = [champion.baseline] if champion.baseline else []
                self._add(connection, [champion.record, *library], numbers)
                if may_crown and not self._there(connection, tables.champions, [rows.checked_id(champion.id)]):
                    dated = self._dated(connection, champion)
                    row = self._champion_row(connection, dated, numbers)
                    connection.execute(self._insert(tables.champions), row)
                    fresh.append(dated)
        self._remember(numbers, fresh)
        return len(fresh)

    def _may_crown(self, connection: sa.Connection) -> bool:
        """False if this process may store records, but no champion any more."""
        return True

    def _dated(self, connection: sa.Connection, champion: Champion) -> Champion:
        """The champion with the time at which it is crowned."""
        return champion

    def retract(self, retractions: Retraction | Iterable[Retraction]) -> int:
        """Stores retractions in one transaction. The targets that they name may be stored later, or never.

        Returns:
            How many are new.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [retractions] if isinstance(retractions, Retraction) else list(retractions)
        by_id = {rows.checked_id(each.id): each for each in wanted}
        with opening.explained(self._where), self._writing() as connection:
            there = self._there(connection, tables.retractions, list(by_id))
            fresh = [each for name, each in by_id.items() if name not in there]
            if fresh:
                told = [rows.retraction_row(each) for each in fresh]
                added = [row | {"checksum": rows.checksum(row, rows.RETRACTION)} for row in told]
                connection.execute(self._insert(tables.retractions), added)
        self._remember({}, fresh)
        return len(fresh)

    def add_surveys(self, parts: SurveyPart | Iterable[SurveyPart]) -> int:
        """Stores parts of surveys in one transaction; those whose id is stored already are left as they are.

        Returns:
            How many are new.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [parts] if isinstance(parts, SurveyPart) else list(parts)
        by_id = {rows.checked_id(each.id): each for each in wanted}
        numbers: dict[tuple[str, ...], int] = {}
        with opening.explained(self._where), self._writing() as connection:
            there = self._there(connection, tables.surveys, list(by_id))
            fresh = [part for name, part in by_id.items() if name not in there]
            added = [self._survey_row(connection, part, numbers) for part in fresh]
            if added:
                connection.execute(self._insert(tables.surveys), added)
        self._remember(numbers, fresh)
        return len(fresh)

    def _survey_row(
        self, connection: sa.Connection, part: SurveyPart, numbers: dict[tuple[str, ...], int]
    ) -> dict[str, Any]:
        row, device, run = surveys.row_of(part), rows.device_row(part.device), rows.run_row(part)
        return row | {
            "device": self._once(connection, tables.devices, device, numbers),
            "run": self._once(connection, tables.runs, run, numbers),
            "checksum": rows.checksum({**row, **run, "info": device["info"]}, rows.SURVEY),
        }

    def _remember(self, numbers: dict[tuple[str, ...], int], fresh: Sequence[Kept]) -> None:
        """After the commit: remembers the numbers of rows, and writes the second copy."""
        self._numbers |= numbers
        if self._ledger is not None:
            self._ledger.append(fresh)

    def _writing(self, how: bool | str = True) -> Any:
        return self._engine.execution_options(writes=how).begin()

    def _insert(self, table: sa.Table) -> Any:
        """Makes an INSERT that does not change existing rows."""
        return self._plain_insert(table).on_conflict_do_nothing()

    def _plain_insert(self, table: sa.Table) -> Any:
        """Makes an INSERT of the database's dialect, which says what to do on a conflict; both spell it alike.

        A dialect is imported where it is used: PostgreSQL's takes a quarter of a second.
        """
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)

    def _add(
        self, connection: sa.Connection, records: Iterable[Record], numbers: dict[tuple[str, ...], int]
    ) -> list[Record]:
        """Stores the records that are not stored yet, and returns them."""
        by_id: dict[str, Record] = {}
        for record in records:
            by_id.setdefault(rows.checked_id(record.id), record)
        there = self._there(connection, tables.records, list(by_id))
        fresh = {each: record for each, record in by_id.items() if each not in there}
        if fresh:
            added = [self._record_row(connection, record, numbers) for record in fresh.values()]
            connection.execute(self._insert(tables.records), added)
        return list(fresh.values())

    def _record_row(
        self, connection: sa.Connection, record: Record, numbers: dict[tuple[str, ...], int]
    ) -> dict[str, Any]:
        row = rows.record_row(record)
        problem, device = rows.problem_row(record.problem), rows.device_row(record.device)
        kernel, run = rows.kernel_row(record), rows.run_row(record)
        told = {**row, **problem, **run, **kernel, "kernel_name": kernel["name"], "info": device["info"]}
        return row | {
            "problem": self._once(connection, tables.problems, problem, numbers),
            "device": self._once(connection, tables.devices, device, numbers),
            "kernel": self._once(connection, tables.kernels, kernel, numbers),
            "run": self._once(connection, tables.runs, run, numbers),
            "checksum": rows.checksum(told, rows.RECORD),
        }

    def _champion_row(
        self, connection: sa.Connection, champion: Champion, numbers: dict[tuple[str, ...], int]
    ) -> dict[str, Any]:
        row, record, library = rows.champion_row(champion), champion.record, champion.baseline
        told = row | {
            "record_id": rows.checked_id(record.id),
            "baseline_id": rows.checked_id(library.id) if library else None,
        }
        problem, device = rows.problem_row(record.problem), rows.device_row(record.device)
        return row | {
            "problem": self._once(connection, tables.problems, problem, numbers),
            "device": self._once(connection, tables.devices, device, numbers),
            "record": self._number_of(connection, record.id),
            "baseline": self._number_of(connection, library.id) if library else None,
            "checksum": rows.checksum(told, rows.CHAMPION),
        }

    def _there(self, connection: sa.Connection, table: sa.Table, ids: Sequence[str]) -> set[str]:
        """Returns the ids that are stored, queried a few hundred at a time."""
        found: set[str] = set()
        for start in range(0, len(ids), 500):
            some = sa.select(table.c.id).where(table.c.id.in_(ids[start : start + 500]))
            found.update(connection.execute(some).scalars())
        return found

    def _once(
        self,
        connection: sa.Connection,
        table: sa.Table,
        row: Mapping[str, str],
        numbers: dict[tuple[str, ...], int],
    ) -> int:
        """Returns the number of the row with this content, new or not. New rows count after the commit."""
        names = ("digest",) if "digest" in row else tuple(row)
        key = (table.name, *(row[name] for name in names))
        found = self._numbers.get(key) or numbers.get(key)
        if found is None:
            connection.execute(self._insert(table).values(**row))
            same = sa.and_(*(table.c[name] == row[name] for name in names))
            found = int(connection.execute(sa.select(table.c.number).where(same)).scalar_one())
            copy = rows.shared_row(_KINDS[table.name], found, row)
            connection.execute(self._insert(tables.shared).values(**copy))
            numbers[key] = found
        return found

    def _number_of(self, connection: sa.Connection, record_id: str) -> int:
        wanted = sa.select(tables.records.c.number).where(tables.records.c.id == rows.checked_id(record_id))
        return int(connection.execute(wanted).scalar_one())
