"""Checks whether a database is sound, and rescues everything readable into a new one.

It reads three places: the tables through the database, the second copy beside a SQLite file and, for a rescue,
the pages of the file itself.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound, StoreTrouble
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.store import Store, opening, queries, sound, streams, tables
from tuner.store.ledger import Ledger, ledger_file, readable
from tuner.store.salvage import salvaged

Told = TypeVar("Told")

#: Exceptions raised if a database or its copy cannot be read.
UNREADABLE = (StoreTrouble, NothingFound, OSError, sa.exc.SQLAlchemyError, sqlite3.Error, *sound.DAMAGE)
#: Tables of the data that is kept for good.
KEPT = (tables.records, tables.champions, tables.retractions, tables.surveys)

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
        damaged: Rows that do not match their checksum or cannot be read.
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
    records = champions = retractions = surveys = damaged = 0
    complaints = list(_structure(url))
    try:
        for told in _tables(url, sound.id_of):
            records += isinstance(told, str)
            champions += isinstance(told, Champion)
            retractions += isinstance(told, Retraction)
            surveys += isinstance(told, SurveyPart)
            damaged += told is None
            ids.update(_ids(told))
    except UNREADABLE as error:
        if file is None:
            raise
        complaints += [str(error)] if not complaints else []
    only_copied, only_stored = len(copied - ids), len(ids - copied)
    return Health(
        where, tuple(complaints[:COMPLAINTS]), records, champions, retractions, surveys, damaged,
        None if file is None else len(copied), copy_damaged, only_copied, only_stored,
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


def _ids(told: Kept | str | None) -> Iterator[str]:
    """Returns the ids in a line of the copy; a champion's with those of its records."""
    if isinstance(told, Champion):
        yield told.record.id
        yield from [told.baseline.id] if told.baseline else []
    if told is not None:
        yield told if isinstance(told, str) else told.id


@dataclass(frozen=True)
class Rescued:
    """The sources of a rescued database.

    Attributes:
        from_tables: Records, champions and retractions that came from the tables.
        from_copy: Further ones that came from the second copy.
        from_pages: Further ones that came from the file's pages.
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
        found = _tables(url, sound.record_of)
        if file is None:
            return Rescued(_stored(store, found), 0, 0)
        # Each source is read as far as possible; the next supplies what is missing.
        sources = (found, readable(ledger_file(file)), salvaged(file))
        return Rescued(*(_stored(store, _as_far_as_it_goes(source)) for source in sources))


def _as_far_as_it_goes(found: Iterable[Kept | None]) -> Iterator[Kept | None]:
    """Yields what can be read of a source. Errors in reading end it; errors in storing are not caught here."""
    try:
        yield from found
    except UNREADABLE:
        yield None


def _size(store: Store) -> int:
    with opening.explained(store._where), store._engine.connect() as connection:
        counts = [sa.select(sa.func.count()).select_from(of) for of in KEPT]
        return sum(int(connection.execute(each).scalar_one()) for each in counts)


def _stored(store: Store, found: Iterable[Kept | None]) -> int:
    """Stores what is not stored yet, and returns its count, including records of champions."""
    before, batch = _size(store), list[Record]()
    for told in found:
        if isinstance(told, Record):
            batch.append(told)
        elif told is not None:
            _kept(_keeper(store, told), [told])
        if len(batch) >= AT_ONCE:
            _kept(store.add, batch)
            batch.clear()
    _kept(store.add, batch)
    return _size(store) - before


def _keeper(store: Store, told: Kept) -> Callable[[Any], int]:
    if isinstance(told, Champion):
        return store.crown
    return store.add_surveys if isinstance(told, SurveyPart) else store.retract


def _kept(add: Callable[[Any], int], told: Sequence[Kept]) -> None:
    """Stores what the database accepts; a row older than checksums may hold values that it refuses."""
    try:
        add(told)
    except sound.DAMAGE:
        for each in told if len(told) > 1 else ():
            _kept(add, [each])


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


def _tables(
    url: str, read: Callable[[Mapping[str, Any]], Told | None]
) -> Iterator[Told | Champion | Retraction | SurveyPart | None]:
    """Yields records, champions, retractions, then parts of surveys; None for each damaged row.

    Args:
        url: Database.
        read: Converts a record's row.

    Raises:
        StoreTrouble: The structure is damaged at the next place to read.
    """
    with Store.open(url, read_only=True) as store, opening.explained(store._where):
        yield from (read(row) if row else None for row in _pages(store, _records()))
        for row in _pages(store, sa.select(tables.champions), tables.champions):
            if row is None:
                yield None
                continue
            numbers = [number for number in (row["record"], row["baseline"]) if number is not None]
            try:
                with store._engine.connect() as connection:
                    by_number = store._by_number(connection, numbers)
                yield sound.champion_of(row, by_number[row["record"]], by_number.get(row["baseline"]))
            except (*sound.DAMAGE, sa.exc.DBAPIError):
                yield None
        for row in _pages(store, sa.select(tables.retractions), tables.retractions):
            yield sound.retraction_of(row) if row else None
        for row in _pages(store, queries.surveys_joined(), tables.surveys):
            yield sound.survey_of(row) if row else None


def _records() -> Any:
    """Selects records with everything that their checksums cover, even if their references are missing."""
    of, problem, device, kernel, run = (
        tables.records, tables.problems, tables.devices, tables.kernels, tables.runs,
    )  # fmt: skip
    joined = of.outerjoin(problem, of.c.problem == problem.c.number)
    joined = joined.outerjoin(device, of.c.device == device.c.number)
    joined = joined.outerjoin(kernel, of.c.kernel == kernel.c.number)
    joined = joined.outerjoin(run, of.c.run == run.c.number)
    return queries.record_columns(device.c.info).select_from(joined)


def _pages(store: Store, wanted: Any, table: sa.Table = tables.records) -> Iterator[dict[str, Any] | None]:
    """Yields rows by number; None for each that the database finds but cannot return."""
    number, last = table.c.number, 0
    while True:
        page = sa.select(number).where(number > last).order_by(number).limit(AT_ONCE)
        with store._engine.connect() as connection:
            numbers = list(connection.execute(page).scalars())
        if not numbers or max(numbers) <= last:
            # A damaged tree may return rows again, without end.
            return
        first, last = min(numbers), max(numbers)
        try:
            yield from _rows(store, wanted.where(number >= first, number <= last).order_by(number))
        except (*sound.DAMAGE, sa.exc.DBAPIError):
            yield from (_row(store, wanted.where(number == each)) for each in numbers)


def _rows(store: Store, wanted: Any) -> list[dict[str, Any]]:
    with store._engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(wanted)]


def _row(store: Store, wanted: Any) -> dict[str, Any] | None:
    try:
        return next(iter(_rows(store, wanted)), None)
    except (*sound.DAMAGE, sa.exc.DBAPIError):
        return None
