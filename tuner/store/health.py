"""Whether a database is sound, what of it can be read, and rescuing that into a new one.

Three places are looked at: the tables as the database reads them, the second copy beside a SQLite file and,
for a rescue, the pages of the file itself.
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
from tuner.results.kept import Kept
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import SurveyPart
from tuner.store import Store, opening, queries, sound, streams, tables
from tuner.store.ledger import Ledger, ledger_file, readable
from tuner.store.salvage import salvaged

Told = TypeVar("Told")

#: What is raised where a database or its copy cannot be read.
UNREADABLE = (StoreTrouble, NothingFound, OSError, sa.exc.SQLAlchemyError, sqlite3.Error, *sound.DAMAGE)
#: Tables of what is kept for good.
KEPT = (tables.records, tables.champions, tables.retractions, tables.surveys)

#: Rows that are read, or stored, at a time.
AT_ONCE = 500
#: Complaints of the database about its own structure that are told.
COMPLAINTS = 10


@dataclass(frozen=True)
class Health:
    """What was found.

    Attributes:
        where: The database.
        complaints: What the database says of its own structure; empty where that is whole.
        records: Records that its tables give whole.
        champions: Champions that its tables give whole.
        retractions: Retractions that its tables give whole.
        surveys: Parts of surveys that its tables give whole.
        damaged: Rows that do not fit their sum or cannot be read.
        copied: Records, champions and retractions that the second copy gives; None where there is
            none.
        copy_damaged: Stretches of it that are damaged.
        only_copied: Of `copied`, those that the tables do not give.
        only_stored: Of what the tables give, that which the second copy does not give.
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
        """Whether nothing is damaged or missing in the database; the copy may lack what is in it."""
        return not (self.complaints or self.damaged or self.only_copied)


def check(url: str) -> Health:
    """Looks at every row of a database; changes nothing.

    Raises:
        NothingFound: There is no database.
        StoreTrouble: Its server does not answer, or its schema is newer.
    """
    parts = opening.parsed(url)
    where, file = parts.render_as_string(hide_password=True), opening.sqlite_file(parts)
    if file is not None and not file.exists() and not ledger_file(file).exists():
        raise NothingFound(f"there is no database at {file}, nor a second copy of one")
    # The copy first: what a running study adds meanwhile is in the tables before it is in the copy.
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
    """Ids in the second copy, and how many stretches of it are damaged."""
    ids: set[str] = set()
    damaged = 0
    for line in _as_far_as_it_goes(readable(ledger_file(file))) if file else ():
        ids.update(_ids(line))
        damaged += line is None
    return ids, damaged


def complete(url: str) -> int:
    """Adds to the second copy what it lacks: it began after the database did, or has been damaged.

    Returns:
        How many records, champions and retractions that were.
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
    """The ids that are told, a champion's with those of its records: a line of the copy has them in it."""
    if isinstance(told, Champion):
        yield told.record.id
        yield from [told.baseline.id] if told.baseline else []
    if told is not None:
        yield told if isinstance(told, str) else told.id


@dataclass(frozen=True)
class Rescued:
    """What a new database was made of.

    Attributes:
        from_tables: Records, champions and retractions that came from the tables.
        from_copy: Those that came from the second copy besides.
        from_pages: Those that came from the file's pages besides.
    """

    from_tables: int
    from_copy: int
    from_pages: int


def rescue(url: str, into: Path) -> Rescued:
    """Brings all that can be read of a database into a new SQLite file; the old one is left as it is.

    Raises:
        InputError: There is a file already where the new one shall be.
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
        # Each source goes as far as it can be read; the next has what it lacks.
        sources = (found, readable(ledger_file(file)), salvaged(file))
        return Rescued(*(_stored(store, _as_far_as_it_goes(source)) for source in sources))


def _as_far_as_it_goes(found: Iterable[Kept | None]) -> Iterator[Kept | None]:
    """What can be read of a source: trouble in reading ends it, trouble in storing is not caught here."""
    try:
        yield from found
    except UNREADABLE:
        yield None


def _size(store: Store) -> int:
    with opening.explained(store._where), store._engine.connect() as connection:
        counts = [sa.select(sa.func.count()).select_from(of) for of in KEPT]
        return sum(int(connection.execute(each).scalar_one()) for each in counts)


def _stored(store: Store, found: Iterable[Kept | None]) -> int:
    """Stores what is not stored yet, and tells how much of it there was, the records of champions included."""
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
    """Stores what can be: a row from before there were sums may hold what no database takes."""
    try:
        add(told)
    except sound.DAMAGE:
        for each in told if len(told) > 1 else ():
            _kept(add, [each])


def _structure(url: str) -> Iterator[str]:
    """What SQLite says of its file; a server looks after its own."""
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
    """Records, champions, retractions, then parts of surveys, as the database reads them; None for damage.

    Args:
        url: Database.
        read: What becomes of a record's row.

    Raises:
        StoreTrouble: The structure is damaged where it was to be read next.
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
    """Records with all that their sums cover; one that refers to nothing is there all the same."""
    of, problem, device, kernel, run = (
        tables.records, tables.problems, tables.devices, tables.kernels, tables.runs,
    )  # fmt: skip
    joined = of.outerjoin(problem, of.c.problem == problem.c.number)
    joined = joined.outerjoin(device, of.c.device == device.c.number)
    joined = joined.outerjoin(kernel, of.c.kernel == kernel.c.number)
    joined = joined.outerjoin(run, of.c.run == run.c.number)
    return queries.record_columns(device.c.info).select_from(joined)


def _pages(store: Store, wanted: Any, table: sa.Table = tables.records) -> Iterator[dict[str, Any] | None]:
    """Rows by number; None for each that the database finds but cannot give."""
    number, last = table.c.number, 0
    while True:
        page = sa.select(number).where(number > last).order_by(number).limit(AT_ONCE)
        with store._engine.connect() as connection:
            numbers = list(connection.execute(page).scalars())
        if not numbers or max(numbers) <= last:
            # A damaged tree may give rows again, in an order that does not end.
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
