"""Checks whether a database is sound, and rescues everything readable into a new one.

It reads three places: the tables, as far as the database returns rows, the second copy beside a SQLite file
and, for a rescue, what lies whole on a page of the file or its log.
"""

import contextlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound, StoreTrouble
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import Store, exchange, lines, listing, opening, rows
from tuner.store.lines import Ledger, ledger_file, packed_in, readable

#: Exceptions raised if a database or its copy cannot be read.
UNREADABLE = (
    StoreTrouble, NothingFound, OSError, sa.exc.SQLAlchemyError, sqlite3.Error, InputError, *opening.DAMAGE,
)  # fmt: skip
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
    file = _file(url)
    # Read the copy first: additions of a running study reach the tables before the copy.
    copied, copy_damaged = _copied(file)
    ids: set[str] = set()
    intact, damaged = dict.fromkeys(rows.TABLES, 0), 0
    complaints = list(_structure(url)) if file else []
    try:
        for item in _stored(url, strict=True):
            if item is None:
                damaged += 1
                continue
            intact[type(item)] += 1
            ids.update(_ids(item))
    except UNREADABLE as error:
        if file is None:
            raise
        complaints += [str(error)] if not complaints else []
    return Health(
        opening.parsed(url).render_as_string(hide_password=True), tuple(complaints[:COMPLAINTS]),
        intact[Record], intact[Champion], intact[Retraction], intact[SurveyPart], damaged,
        len(copied) if file else None, copy_damaged, len(copied - ids), len(ids - copied),
    )  # fmt: skip


def _file(url: str) -> Path | None:
    """Returns the file of a SQLite database; None for a server.

    Raises:
        NothingFound: There is neither the file nor its second copy.
    """
    file = opening.sqlite_file(opening.parsed(url))
    if file is not None and not file.exists() and not ledger_file(file).exists():
        raise NothingFound(f"there is no database at {file}, nor a second copy of one")
    return file


def _copied(file: Path | None) -> tuple[set[str], int]:
    """Returns the ids in the second copy, and the number of its damaged stretches."""
    ids: set[str] = set()
    damaged = 0
    for item in _as_far_as_it_goes(readable(ledger_file(file))) if file else ():
        ids.update(_ids(item))
        damaged += item is None
    return ids, damaged


def _ids(item: Kept | None) -> Iterator[str]:
    """Returns the id of an item; a champion's with those of its records."""
    if isinstance(item, Champion):
        yield item.record.id
        yield from [item.baseline.id] if item.baseline else []
    if item is not None:
        yield item.id


def complete(url: str) -> int:
    """Adds missing entries to the second copy, which may be younger than the database, or damaged.

    Returns:
        Number of records, champions and retractions added.
    """
    file = opening.sqlite_file(opening.parsed(url))
    if file is None:
        raise InputError("a second copy is kept beside a SQLite file only; a server has its own backups")
    with Store.open(url) as store:
        ledger, added = Ledger(file, store.identity), 0
        copied, _ = _copied(file)
        everything = listing.everything(store, retracted=True)
        missing = (item for item in everything if item.id not in copied)
        while batch := list(itertools.islice(missing, AT_ONCE)):
            ledger.append(batch)
            added += len(batch)
    return added


@dataclass(frozen=True)
class Rescued:
    """The sources of a rescued database.

    Attributes:
        from_tables: Records, champions and retractions that came from the tables.
        from_copy: Further ones that came from the second copy.
        from_pages: Further ones that lay whole on a page of the file or its log.
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
        raise InputError(f"a rescue makes a new file, and {into} or its second copy is there; choose another")
    file = _file(url)
    with Store.open(f"sqlite:///{into}") as store:
        if file is None:
            return Rescued(_saved(store, _stored(url)), 0, 0)
        # Each source is read as far as possible; the next supplies what is missing.
        pages = itertools.chain(packed_in(file), packed_in(Path(f"{file}-wal")))
        sources = (_stored(url), readable(ledger_file(file)), pages)
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
    counts = [sa.select(sa.func.count()).select_from(table) for table in rows.TABLES.values()]
    return sum(store.read(sa.union_all(*counts)))


def _structure(url: str) -> Iterator[str]:
    """Returns SQLite's complaints about its file."""
    try:
        with _connected(url) as connection:
            complaints = connection.exec_driver_sql(f"PRAGMA integrity_check({COMPLAINTS})").scalars().all()
            yield from (str(complaint) for complaint in complaints if complaint != "ok")
    except UNREADABLE as error:
        yield str(error)


@contextlib.contextmanager
def _connected(url: str) -> Iterator[sa.Connection]:
    engine = opening.make_engine(opening.parsed(url), read_only=True, patience_s=30.0)
    try:
        with opening.explained(str(engine.url)), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _stored(url: str, *, strict: bool = False) -> Iterator[Kept | None]:
    """Yields what is stored; None for each row that is damaged.

    Args:
        url: The database.
        strict: True for None also where the columns of a row say something else than its data.

    Raises:
        StoreTrouble: The structure is damaged at the next place to read.
    """
    with Store.open(url, read_only=True) as store:
        for table in rows.TABLES.values():
            for row in _rows(store, table):
                item = _item_of(row)
                yield item if item is None or not strict or _agrees(store, row, item) else None


def _item_of(row: Any) -> Kept | None:
    """What a row holds, as it was written; None if that is damaged."""
    try:
        return lines.unpacked(row.packed) if row is not None else None
    except opening.DAMAGE:
        return None


def _agrees(store: Store, row: Any, item: Kept) -> bool:
    """True if the columns of a row, and the rows that it refers to, are those of its data."""
    with store.reading() as connection:
        try:
            return bool(row._mapping.items() >= store.row(connection, item, make=False).items())
        except sa.exc.NoResultFound:
            return False


def _rows(store: Store, table: sa.Table) -> Iterator[sa.Row[Any] | None]:
    """Yields rows by number, their data packed; None for each that the database finds but cannot return."""
    of, last = table.c.number, 0
    while True:
        numbers = store.read(sa.select(of).where(of > last).order_by(of).limit(AT_ONCE))
        if not numbers or max(numbers) <= last:
            # A damaged tree may return rows again, without end.
            return
        last = max(numbers)
        yield from _read(store, table, numbers)


def _read(store: Store, table: sa.Table, numbers: Sequence[int]) -> list[sa.Row[Any] | None]:
    columns = (
        *(column for column in table.c if column.name != "data"),
        sa.type_coerce(table.c.data, sa.LargeBinary).label("packed"),
    )
    wanted = sa.select(*columns).where(table.c.number.in_(numbers)).order_by(table.c.number)
    try:
        return list(store.rows(wanted))
    except StoreTrouble:
        return [None] if len(numbers) == 1 else [row for one in numbers for row in _read(store, table, [one])]
