"""Records and champions in one database, durable at each call."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from tuner.errors import NothingFound, StoreTrouble
from tuner.results.record import Champion, checked_id
from tuner.results.survey import Kept
from tuner.store import opening, rows, tables
from tuner.store.lines import Ledger
from tuner.store.reading import Reader

__all__ = ["Store"]


def _inode(file: Path | None) -> tuple[int, int] | None:
    """What tells a file from another one that took its place; None if there is none."""
    with contextlib.suppress(OSError):
        status = file.stat() if file is not None else None
        return status and (status.st_dev, status.st_ino)
    return None


class Store(Reader):
    """Records and champions.

    One process writes at a time; any number may read. Every call that writes is one transaction and is on disk
    when it returns. A SQLite file has a second copy of all records beside it; see `tuner.store.lines`.
    """

    def __init__(self, engine: sa.Engine, where: str, ledger: Ledger | None = None) -> None:
        super().__init__(engine, where)
        self._ledger, self._saving = ledger, threading.Lock()
        #: Numbers of rows that others share, by table and content.
        self._numbers: dict[tuple[str, ...], int] = {}
        self._file = opening.sqlite_file(engine.url)
        self._file = self._file and self._file.absolute()
        self._inode = _inode(self._file)

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

    def __exit__(self, *error: object) -> None:
        self.close()

    def add(self, items: Kept | Iterable[Kept]) -> int:
        """Stores records, champions, retractions, parts of surveys or crown log entries in one transaction.

        What is stored already, by its id, is not changed. A champion's records are stored with it. The targets
        of retractions may be stored later, or never.

        Returns:
            How many are new; records that come with a champion do not count.

        Raises:
            InputError: An id is not a UUID.
            StoreTrouble: The database cannot be written; nothing of this call is stored.
        """
        wanted = list(items) if isinstance(items, Iterable) else [items]
        champions = [item for item in wanted if isinstance(item, Champion)]
        beside = [record for item in champions for record in (item.record, item.baseline) if record]
        others = [item for item in wanted if not isinstance(item, Champion)]
        with self.writing() as connection:
            self._add_new(connection, beside)
            fresh = self._add_new(connection, [*others, *self._crownable(connection, champions)])
        if self._ledger is not None:
            self._ledger.append(fresh)
        return len(fresh)

    def crown(self, champions: Champion | Iterable[Champion]) -> int:
        """Stores champions, with their records, as `add` does."""
        return self.add(champions)

    def _crownable(self, connection: sa.Connection, champions: Sequence[Champion]) -> Sequence[Champion]:
        """Those that this process may crown, with the times at which they are."""
        return champions

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Begins a transaction; writers take turns. A file that was deleted meanwhile is made again before.

        Raises:
            StoreTrouble: The database cannot be written; nothing of the transaction is stored.
        """
        with opening.explained(self._where):
            if self._file is not None and _inode(self._file) != self._inode:
                with self._saving:
                    self._save(self._file)
            with self._engine.execution_options(writes=True).connect() as connection:
                transaction = connection.begin()
                try:
                    yield connection
                    transaction.commit()
                except BaseException:
                    self._numbers.clear()  # some may be of rows that are taken back now
                    transaction.rollback()
                    raise

    def _save(self, file: Path) -> None:
        """Goes on in a new file with all that was stored; an open connection still has the file that is gone.

        Where another database has taken its place, the new file lies beside that. Another writer of this one
        may have made its file again.
        """
        if _inode(file) == self._inode:
            return  # another thread did
        gone, own = not file.exists(), self.identity
        if gone or not self._is_made_again(file):
            file = file if gone else file.with_name(f"{file.name}.{own[:8]}.db")
            file.parent.mkdir(parents=True, exist_ok=True)
            for ending in ("-wal", "-shm"):
                Path(f"{file}{ending}").unlink(missing_ok=True)  # of the file that is gone
            with self._engine.connect() as connection, contextlib.closing(sqlite3.connect(file)) as copy:
                source: Any = connection.connection.dbapi_connection
                source.backup(copy)
            logging.getLogger(__name__).warning(
                "the database %s was %s while it was in use; all its records are in %s, where this goes on",
                self._file, "deleted" if gone else "replaced", file,
            )  # fmt: skip
            self._ledger = self._ledger and Ledger(file, own)
        self._engine.dispose()
        self._engine = opening.make_engine(opening.parsed(f"sqlite:///{file}"), read_only=False)
        self._where, self._file, self._inode = str(self._engine.url), file, _inode(file)

    def _is_made_again(self, file: Path) -> bool:
        """True if another writer of this database has made its file again: it has all that is known here."""
        engine = opening.make_engine(opening.parsed(f"sqlite:///{file}"), read_only=True)
        try:
            with opening.reading(str(file)), engine.connect() as new, self._engine.connect() as old:
                last, known = rows.positions(new), rows.positions(old)
            is_same = opening.identity(engine, str(file)) == self.identity
            return is_same and all(last[name] >= number for name, number in known.items())
        except StoreTrouble:
            return False
        finally:
            engine.dispose()

    def insert(self, table: sa.Table) -> Any:
        """Makes an INSERT of the database's dialect, which says what to do on a conflict; both spell it alike.

        A dialect is imported where it is used: PostgreSQL's takes a quarter of a second.
        """
        return import_module(f"sqlalchemy.dialects.{self._engine.dialect.name}").insert(table)

    def _add_new(self, connection: sa.Connection, items: Sequence[Kept]) -> list[Kept]:
        """Stores those items that are not stored yet, and returns them."""
        added: list[Kept] = []
        for kind, table in rows.TABLES.items():
            by_id: dict[str, Kept] = {}
            for item in items:
                if type(item) is kind:
                    by_id.setdefault(checked_id(item.id), item)
            present = self._present(connection, table, list(by_id))
            fresh = [item for name, item in by_id.items() if name not in present]
            if fresh:
                values = [{**self.row(connection, item), "data": item} for item in fresh]
                connection.execute(self.insert(table).on_conflict_do_nothing(), values)
            added += fresh
        return added

    def row(self, connection: sa.Connection, item: Kept, *, make: bool = True) -> dict[str, Any]:
        """What the columns of an item say, but for its data: by what it is searched, and what it refers to."""
        columns = rows.columns_of(item)
        for name, content in columns.items():
            for reference in rows.TABLES[type(item)].c[name].foreign_keys if content is not None else ():
                columns[name] = self.number(connection, reference.column.table, content, make=make)
        return columns

    def _present(self, connection: sa.Connection, table: sa.Table, ids: Sequence[str]) -> set[str]:
        """Returns the ids that are stored, queried a few hundred at a time."""
        present: set[str] = set()
        for start in range(0, len(ids), 500):
            some = sa.select(table.c.id).where(table.c.id.in_(ids[start : start + 500]))
            present.update(connection.execute(some).scalars())
        return present

    def number(
        self, connection: sa.Connection, table: sa.Table, row: Mapping[str, str], *, make: bool = True
    ) -> int:
        """Returns the number of the row with this content, which is made if need be, unless it is a record.

        Raises:
            NoResultFound: There is none, and none is made.
        """
        make = make and table is not tables.records
        names = ("digest",) if make and "digest" in row else tuple(row)
        key = (table.name, *(row[name] for name in names))
        if key not in self._numbers:
            if make:
                connection.execute(self.insert(table).on_conflict_do_nothing().values(**row))
            same = sa.and_(*(table.c[name] == row[name] for name in names))
            self._numbers[key] = int(connection.execute(sa.select(table.c.number).where(same)).scalar_one())
        return self._numbers[key]
