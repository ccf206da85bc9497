"""Checks whether a database is sound, and rescues everything readable into a new one.

It reads three places: the tables through the database, the second copy beside a SQLite file and, for a rescue,
what lies whole in the file and its log, wherever it lies.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound, StoreTrouble
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import Store, carry_over, exchange, lines, opening, rows, streams, tables
from tuner.store.ledger import Ledger, ledger_file, packed_in, readable

#: Exceptions raised if a database or its copy cannot be read.
UNREADABLE = (
    StoreTrouble, NothingFound, OSError, sa.exc.SQLAlchemyError, sqlite3.Error, InputError, *opening.DAMAGE,
)  # fmt: skip
#: Tables of what records share.
SHARED = (tables.problems, tables.devices, tables.kernels, tables.runs)
#: Number of rows read or stored at a time.
AT_ONCE = 500
#: Largest number of reported complaints about the database's structure.
COMPLAINTS = 10


@dataclass(frozen=True)
class Health:
    """What was found.

    Attributes:
        where: The database.
        complaints: The database's complaints about its own structure; empty if it is intact.
        records: Records that its tables return intact.
        champions: Champions that its tables return intact.
        retractions: Retractions that its tables return intact.
        surveys: Parts of surveys that its tables return intact.
        damaged: Rows that cannot be read, or whose columns do not say what their data does.
        copied: Records, champions and retractions in the second copy; None if there is no copy.
        copy_damaged: Damaged stretches of the copy.
        only_copied: Those of `copied` that the tables lack.
        only_stored: Those in the tables that the second copy lacks.
    """

    where: str
    complaints: tuple[str, ...]
    records: int
    champions: int
    retractions: int
    surveys: int
    damaged: int
    copied: int | None
    copy_damaged: int
    only_copied: int
    only_stored: int

    @property
    def sound(self) -> bool:
        """True if nothing in the database is damaged or missing; the copy may be incomplete."""
        return not (self.complaints or self.damaged or self.only_copied)


def check(url: str) -> Health:
    """Checks every row of a database, without changing anything.

    Raises:
        NothingFound: There is no database.
        StoreTrouble: Its server does not respond, or its schema is newer.
    """
    parts = opening.parsed(url)
    where, file = parts.render_as_string(hide_password=True), opening.sqlite_file(parts)
    if file is not None and not file.exists() and not ledger_file(file).exists():
        raise NothingFound(f"there is no database at {file}, nor a second copy of one")
    # Read the copy first: additions of a running study reach the tables before the copy.
    copied, copy_damaged = _copied(file)
    ids: set[str] = set()
    intact, damaged = dict.fromkeys(rows.TABLES, 0), 0
    complaints = list(_structure(url))
    try:
        for item in _checked(url):
            if item is None:
                damaged += 1
                continue
            intact[type(item)] += 1
            ids.update(_ids(item))
    except UNREADABLE as error:
        if file is None:
            raise
        complaints += [str(error)] if not complaints else []
    only_copied, only_stored = len(copied - ids), len(ids - copied)
    return Health(
        where, tuple(complaints[:COMPLAINTS]), intact[Record], intact[Champion], intact[Retraction],
        intact[SurveyPart], damaged, None if file is None else len(copied), copy_damaged, only_copied,
        only_stored,
    )  # fmt: skip


def _copied(file: Path | None) -> tuple[set[str], int]:
    """Returns the ids in the second copy, and the number of its damaged stretches."""
    ids: set[str] = set()
    damaged = 0
    for line in _as_far_as_it_goes(readable(ledger_file(file))) if file else ():
        ids.update(_ids(line))
        damaged += line is None
    return ids, damaged


def complete(url: str) -> int:
    """Adds missing entries to the second copy, which may be younger than the database, or damaged.

    Returns:
        Number of records, champions and retractions added.
    """
    file = opening.sqlite_file(opening.parsed(url))
    if file is None:
        raise InputError("a second copy is kept beside a SQLite file only; a server has its own backups")
    with Store.open(url) as store:
        ledger = Ledger(file, opening.identity(store._engine, store._where))
        copied, _ = _copied(file)
        everything = streams.everything(store, retracted=True)
        missing = (each for each in everything if each.id not in copied)
        added = 0
        while batch := list(itertools.islice(missing, AT_ONCE)):
            ledger.append(batch)
            added += len(batch)
    return added


def _ids(item: Kept | None) -> Iterator[str]:
    """Returns the id of an item; a champion's with those of its records."""
    if isinstance(item, Champion):
        yield item.record.id
        yield from [item.baseline.id] if item.baseline else []
    if item is not None:
        yield item.id


@dataclass(frozen=True)
class Rescued:
    """The sources of a rescued database.

    Attributes:
        from_tables: Records, champions and retractions that came from the tables.
        from_copy: Further ones that came from the second copy.
        from_pages: Further ones that lay whole in the file or its log.
    """

    from_tables: int
    from_copy: int
    from_pages: int


def rescue(url: str, into: Path) -> Rescued:
    """Copies everything readable of a database into a new SQLite file; the old one is not changed.

    Raises:
        InputError: The new file exists already.
        NothingFound: There is no database.
    """
    if into.exists() or ledger_file(into).exists():
        raise InputError(
            f"a rescue makes a new file, and {into} or its second copy is there; choose another name"
        )
    file = opening.sqlite_file(opening.parsed(url))
    if file is not None and not file.exists() and not ledger_file(file).exists():
        raise NothingFound(f"there is no database at {file}, nor a second copy of one")
    with Store.open(f"sqlite:///{into}") as store:
        stored = (item for _, _, item in _stored(url))
        if file is None:
            return Rescued(_saved(store, stored), 0, 0)
        # Each source is read as far as possible; the next supplies what is missing.
        scattered = itertools.chain(packed_in(file), packed_in(Path(f"{file}-wal")))
        sources = (stored, readable(ledger_file(file)), scattered)
        return Rescued(*(_saved(store, _as_far_as_it_goes(source)) for source in sources))


def _as_far_as_it_goes(items: Iterable[Kept | None]) -> Iterator[Kept | None]:
    """Yields what can be read of a source. Errors in reading end it; errors in storing are not caught here."""
    try:
        yield from items
    except UNREADABLE:
        yield None


def _saved(store: Store, items: Iterable[Kept | None]) -> int:
    """Stores what is not stored yet, and returns its count, including records of champions."""
    before = _size(store)
    exchange.taken(store, enumerate(items))
    return _size(store) - before


def _size(store: Store) -> int:
    with store.reading() as connection:
        counts = [sa.select(sa.func.count()).select_from(table) for table in rows.TABLES.values()]
        return sum(int(connection.execute(count).scalar_one()) for count in counts)


def _structure(url: str) -> Iterator[str]:
    """Returns SQLite's complaints about its file; a server checks its own."""
    parts = opening.parsed(url)
    if opening.sqlite_file(parts) is None:
        return
    engine = opening.make_engine(parts, read_only=True, patience_s=30.0)
    try:
        with opening.explained(str(parts)), engine.connect() as connection:
            told = connection.exec_driver_sql(f"PRAGMA integrity_check({COMPLAINTS})").scalars().all()
            yield from (str(each) for each in told if each != "ok")
    except UNREADABLE as error:
        yield str(error)
    finally:
        engine.dispose()


def _checked(url: str) -> Iterator[Kept | None]:
    """Yields what is stored; None for each row that is damaged, or whose columns say something else."""
    with Store.open(url, read_only=True) as store:
        shared = {
            (table.name, row.number): row._asdict()
            for table in SHARED
            for row in _rows(store, table)
            if row is not None
        }
        numbers = {row.number: row.id for row in _rows(store, tables.records) if row is not None}
    for _, row, item in _stored(url):
        yield item if item is not None and _agrees(row, item, shared, numbers) else None


def _agrees(row: sa.Row[Any], item: Kept, shared: Mapping[Any, Any], records: Mapping[int, str]) -> bool:
    """True if the columns of a row are those of its data.

    Args:
        row: The row.
        item: What its data holds.
        shared: Table and number -> row there.
        records: Number of a record -> its id.
    """
    columns = row._asdict()
    if isinstance(item, Champion):
        library = item.baseline.id if item.baseline else None
        if (records.get(row.record), records.get(row.baseline)) != (item.record.id, library):
            return False
    return columns.items() >= rows.columns_of(item).items() and all(
        shared.get((table.name, columns[name]), {}).items() >= told.items()
        for name, (table, told) in rows.references_of(item).items()
    )


def _stored(url: str) -> Iterator[tuple[str, Any, Kept | None]]:
    """Yields table, row and content of every row, as far as they can be read.

    Raises:
        StoreTrouble: The structure is damaged at the next place to read.
    """
    engine = opening.make_engine(opening.parsed(url), read_only=True, patience_s=30.0)
    try:
        with opening.explained(str(engine.url)), engine.connect() as connection:
            if opening.schema_of(connection) in tables.OLDER:
                yield from ((name, None, item) for name, _, item in carry_over.read(connection))
                return
    finally:
        engine.dispose()
    with Store.open(url, read_only=True) as store, opening.explained(store._where):
        for table in rows.TABLES.values():
            for row in _rows(store, table):
                yield table.name, row, _content(row)


def _content(row: sa.Row[Any] | None) -> Kept | None:
    try:
        return lines.unpacked(row.data) if row is not None else None
    except ValueError:
        return None


def _rows(store: Store, table: sa.Table) -> Iterator[sa.Row[Any] | None]:
    """Yields rows by number; None for each that the database finds but cannot return."""
    of, last = table.c.number, 0
    while True:
        page = sa.select(of).where(of > last).order_by(of).limit(AT_ONCE)
        with store._engine.connect() as connection:
            numbers = list(connection.execute(page).scalars())
        if not numbers or max(numbers) <= last:
            # A damaged tree may return rows again, without end.
            return
        first, last = min(numbers), max(numbers)
        try:
            yield from _select(store, sa.select(table).where(of >= first, of <= last).order_by(of))
        except (*opening.DAMAGE, sa.exc.DBAPIError):
            for number in numbers:
                try:
                    yield from _select(store, sa.select(table).where(of == number))
                except (*opening.DAMAGE, sa.exc.DBAPIError):
                    yield None


def _select(store: Store, wanted: sa.Select[Any]) -> list[sa.Row[Any]]:
    with store._engine.connect() as connection:
        return list(connection.execute(wanted).all())
