"""Records and champions in one database, durable at each call.

Optuna keeps its studies in tables of its own in the same database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from tuner.errors import NothingFound
from tuner.results.crowns import Crown
from tuner.results.record import Champion, Record, Retraction, checked_id
from tuner.results.survey import Kept, SurveyPart
from tuner.store import lines, opening, rows, tables
from tuner.store.ledger import Ledger
from tuner.store.reading import Reader

__all__ = ["Store"]

#: Numbers of rows that others share, by table and content.
Numbers = dict[tuple[str, ...], int]


class Store(Reader):
    """Records and champions.

    One process writes at a time; any number may read. Every call that writes is one transaction and is on disk
    when it returns. A SQLite file has a second copy of all records beside it; see `tuner.store.ledger`.
    """

    def __init__(self, engine: sa.Engine, where: str, ledger: Ledger | None = None) -> None:
        super().__init__(engine, where)
        self._ledger = ledger
        self._numbers: Numbers = {}

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, patience_s: float = 30.0) -> Self:
        """Opens a database. Unless read-only, creates its tables, or carries those of an older version over.

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
        return self._keep([records] if isinstance(records, Record) else list(records))

    def retract(self, retractions: Retraction | Iterable[Retraction]) -> int:
        """Stores retractions as `add` does. The targets that they name may be stored later, or never."""
        return self._keep([retractions] if isinstance(retractions, Retraction) else list(retractions))

    def add_surveys(self, parts: SurveyPart | Iterable[SurveyPart]) -> int:
        """Stores parts of surveys as `add` does."""
        return self._keep([parts] if isinstance(parts, SurveyPart) else list(parts))

    def log_crowns(self, entries: Crown | Iterable[Crown]) -> int:
        """Adds entries to the crown log as `add` does."""
        return self._keep([entries] if isinstance(entries, Crown) else list(entries))

    def crown(self, champions: Champion | Iterable[Champion]) -> int:
        """Stores champions, with their records if not stored yet, in one transaction.

        Returns:
            How many champions are new.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = [champions] if isinstance(champions, Champion) else list(champions)
        numbers: Numbers = {}
        fresh: list[Kept] = []
        with self.writing() as connection:
            may_crown = self._may_crown(connection)
            for champion in wanted:
                library = [champion.baseline] if champion.baseline else []
                self._add_new(connection, [champion.record, *library], numbers)
                if may_crown:
                    fresh += self._add_new(connection, [self._dated(connection, champion)], numbers)
        self._remember(numbers, fresh)
        return len(fresh)

    def _may_crown(self, connection: sa.Connection) -> bool:
        """False if this process may store records, but no champion any more."""
        return True

    def _dated(self, connection: sa.Connection, champion: Champion) -> Champion:
        """The champion with the time at which it is crowned."""
        return champion

    def _keep(self, items: Sequence[Kept]) -> int:
        numbers: Numbers = {}
        with self.writing() as connection:
            fresh = self._add_new(connection, items, numbers)
        self._remember(numbers, fresh)
        return len(fresh)

    def _remember(self, numbers: Numbers, fresh: Sequence[Kept]) -> None:
        """After the commit: remembers the numbers of rows, and writes the second copy."""
        self._numbers |= numbers
        if self._ledger is not None:
            self._ledger.append(fresh)

    @contextlib.contextmanager
    def writing(self, how: bool | str = True) -> Iterator[sa.Connection]:
        """Begins a transaction; writers take turns.

        Args:
            how: `opening.SOON` for what a power cut may take back.

        Raises:
            StoreTrouble: The database cannot be written; nothing of the transaction is stored.
        """
        with opening.explained(self._where), self._engine.execution_options(writes=how).begin() as connection:
            yield connection

    def insert(self, table: sa.Table) -> Any:
        """Makes an INSERT of the database's dialect, which says what to do on a conflict; both spell it alike.

        A dialect is imported where it is used: PostgreSQL's takes a quarter of a second.
        """
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects import postgresql

            return postgresql.insert(table)
        from sqlalchemy.dialects import sqlite

        return sqlite.insert(table)

    def _add_new(self, connection: sa.Connection, items: Sequence[Kept], numbers: Numbers) -> list[Kept]:
        """Stores those items of one kind that are not stored yet, and returns them."""
        if not items:
            return []
        table = rows.TABLES[type(items[0])]
        by_id: dict[str, Kept] = {}
        for item in items:
            by_id.setdefault(checked_id(item.id), item)
        present = self.present(connection, table, list(by_id))
        fresh = [item for name, item in by_id.items() if name not in present]
        if fresh:
            added = [self._row(connection, item, numbers) for item in fresh]
            connection.execute(self.insert(table).on_conflict_do_nothing(), added)
        return fresh

    def _row(self, connection: sa.Connection, item: Kept, numbers: Numbers) -> dict[str, Any]:
        row = rows.columns_of(item) | {"data": lines.packed(item)}
        if isinstance(item, Champion):
            row["record"] = self._number_of(connection, item.record)
            row["baseline"] = self._number_of(connection, item.baseline) if item.baseline else None
        if isinstance(item, Crown):
            row["problem"] = None
        references = rows.references_of(item)
        return row | {name: self.once(connection, *shared, numbers) for name, shared in references.items()}

    def present(self, connection: sa.Connection, table: sa.Table, ids: Sequence[str]) -> set[str]:
        """Returns the ids that are stored, queried a few hundred at a time."""
        found: set[str] = set()
        for start in range(0, len(ids), 500):
            some = sa.select(table.c.id).where(table.c.id.in_(ids[start : start + 500]))
            found.update(connection.execute(some).scalars())
        return found

    def once(self, connection: sa.Connection, table: sa.Table, row: Mapping[str, str], numbers: Numbers) -> int:
        """Returns the number of the row with this content, new or not. New rows count after the commit."""
        names = ("digest",) if "digest" in row else tuple(row)
        key = (table.name, *(row[name] for name in names))
        found = self._numbers.get(key) or numbers.get(key)
        if found is None:
            connection.execute(self.insert(table).on_conflict_do_nothing().values(**row))
            same = sa.and_(*(table.c[name] == row[name] for name in names))
            found = int(connection.execute(sa.select(table.c.number).where(same)).scalar_one())
            numbers[key] = found
        return found

    def _number_of(self, connection: sa.Connection, record: Record) -> int:
        of = tables.records.c
        return int(connection.execute(sa.select(of.number).where(of.id == checked_id(record.id))).scalar_one())
