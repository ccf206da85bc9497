"""Streams all records and champions in batches, ordered by id, which is the same in every database.

Nothing stays open between batches, so a long reader does not keep a writer's log from being merged into the
database. Items added meanwhile may or may not be included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.results.crowns import Crown
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, Role
from tuner.results.survey import Kept, SurveyPart
from tuner.store import opening, queries, rows, tables
from tuner.store.reading import Reader

#: Rows of a batch.
AT_ONCE = 500
#: Parts of surveys of a batch, each as long as some hundred records.
SURVEYS_AT_ONCE = 8


@dataclass(frozen=True)
class Selection:
    """Selects records; by default all.

    Attributes:
        operation: Name.
        shape: Values of the dims, in their order.
        device: Name or uuid.
        regime: How time was taken.
    """

    operation: str = ""
    shape: tuple[int, ...] = ()
    device: str = ""
    regime: str = ""

    def has(self, problem: ProblemKey) -> bool:
        """True if this problem's records are selected."""
        shape = tuple(value for _, value in problem.shape)
        return self.operation in ("", problem.operation) and self.shape in ((), shape)


def count(store: Reader) -> int:
    """Counts records."""
    with opening.reading(store._where), store._engine.connect() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.records)).scalar_one())


@dataclass(frozen=True)
class Tally:
    """Counts for one operation on one device.

    Attributes:
        operation: Name.
        device: Name.
        problems: Number of different problems.
        trials: Records of trials.
        failed: Trials whose outcome is neither MEASURED nor PRUNED.
        finals: Records of finals and of the library.
        champions: Champions ever crowned and not retracted.
        first: Time of the first measurement; ISO 8601, UTC.
        last: Time of the last measurement.
        retracted: Retracted records; no other count includes them.
    """

    operation: str
    device: str
    problems: int
    trials: int
    failed: int
    finals: int
    champions: int
    first: str
    last: str
    retracted: int = 0


def tallies(store: Reader) -> list[Tally]:
    """Counts records and champions, by operation and device."""
    of, problem, device = tables.records, tables.problems.c, tables.devices.c
    stands = queries.stands()
    is_trial = sa.and_(of.c.role == Role.TRIAL.value, stands)
    others = sa.and_(of.c.role != Role.TRIAL.value, stands)
    well = of.c.outcome.in_((Outcome.MEASURED.value, Outcome.PRUNED.value))

    def grouped(table: sa.Table, *columns: sa.ColumnElement[Any]) -> Any:
        return (
            sa.select(problem.operation, device.name, *columns)
            .select_from(table)
            .join(tables.problems, table.c.problem == problem.number)
            .join(tables.devices, table.c.device == device.number)
            .group_by(problem.operation, device.name)
            .order_by(problem.operation, device.name)
        )

    counted = grouped(
        of, sa.func.count(of.c.problem.distinct()), _sum(is_trial), _sum(sa.and_(is_trial, sa.not_(well))),
        _sum(others), sa.func.min(of.c.measured_at), sa.func.max(of.c.measured_at), _sum(sa.not_(stands)),
    )  # fmt: skip
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(grouped(tables.champions, _sum(queries.reigns()))).all()
        crowned = {(row[0], row[1]): int(row[2]) for row in found}
        return [
            Tally(
                row[0], row[1], int(row[2]), int(row[3]), int(row[4]), int(row[5]),
                crowned.get((row[0], row[1]), 0), str(row[6]), str(row[7]), int(row[8]),
            )
            for row in connection.execute(counted).all()
        ]  # fmt: skip


def _sum(condition: Any) -> Any:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def recent(store: Reader, wanted: Selection, limit: int) -> list[Record]:
    """Returns the latest stored records, newest first."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.records.c, 0
    chosen: list[int] = []
    page = sa.select(of.number, of.problem, of.device, of.regime).order_by(of.number.desc()).limit(AT_ONCE)
    with opening.reading(store._where), store._engine.connect() as connection:
        while len(chosen) < limit:
            found = connection.execute(page.where(of.number < last) if last else page).all()
            chosen += [row.number for row in found if _fits(row, wanted, problems, devices)]
            if len(found) < AT_ONCE:
                break
            last = found[-1].number
        by_number = store._by_number(connection, chosen[:limit])
    lost = [number for number in chosen[:limit] if number not in by_number]
    if lost:  # an index knows it, and its row or what the row rests on cannot be found
        raise opening.damaged(store._where, f"record {lost[0]} is not where it should be")
    return [by_number[number] for number in chosen[:limit]]


def records(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[Record]:
    """Yields records by id; retracted ones only on request."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.records.c, ""
    while True:
        page = sa.select(of.id, of.number, of.problem, of.device, of.regime).order_by(of.id).limit(AT_ONCE)
        page = page if retracted else page.where(queries.stands())
        with opening.reading(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.id > last) if last else page).all()
            chosen = [row.number for row in found if _fits(row, wanted, problems, devices)]
            by_number = store._by_number(connection, chosen)
        for number in chosen:
            yield by_number[number]
        if len(found) < AT_ONCE:
            return
        last = _onwards(store, last, found[-1].id)


def champions(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[Champion]:
    """Yields every champion ever crowned, by id; retracted ones only on request."""
    problems, devices = _numbers(store, wanted)
    of, last = tables.champions, ""
    while True:
        page = sa.select(of).order_by(of.c.id).limit(AT_ONCE)
        page = page if retracted else page.where(queries.reigns())
        with opening.reading(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.c.id > last) if last else page).all()
            chosen = [row for row in found if _fits(row, wanted, problems, devices)]
            numbers = {row.record for row in chosen} | {row.baseline for row in chosen} - {None}
            by_number = store._by_number(connection, sorted(numbers))
        for row in chosen:
            yield rows.champion_of(dict(row._mapping), by_number[row.record], by_number.get(row.baseline))
        if len(found) < AT_ONCE:
            return
        last = _onwards(store, last, found[-1].id)


def retractions(store: Reader) -> Iterator[Retraction]:
    """Yields every retraction, by id; also of items that are not stored here yet."""
    of, last = tables.retractions, ""
    while True:
        page = sa.select(of).order_by(of.c.id).limit(AT_ONCE)
        with opening.reading(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.c.id > last) if last else page).mappings().all()
            told = [rows.retraction_of(dict(row)) for row in found]
        yield from told
        if len(found) < AT_ONCE:
            return
        last = _onwards(store, last, told[-1].id)


def crowns(store: Reader) -> Iterator[Crown]:
    """The crown log, by id; also of champions that are not stored here yet."""
    yield from store.rulings.log()


def survey_parts(store: Reader, wanted: Selection, *, retracted: bool = False) -> Iterator[SurveyPart]:
    """Parts of surveys, by id; none where a shape is named, for a part has many and stays whole."""
    of, last = tables.surveys.c, ""
    fits = [
        *([of.operation == wanted.operation] if wanted.operation else []),
        *([of.regime == wanted.regime] if wanted.regime else []),
        *([of.device.in_(queries.devices_like(wanted.device))] if wanted.device else []),
        *([] if retracted else [~queries.withdrawn(of.id)]),
    ]
    page = sa.select(of.id).where(*fits).order_by(of.id).limit(SURVEYS_AT_ONCE)
    while not wanted.shape:
        with opening.reading(store._where), store._engine.connect() as connection:
            found = connection.execute(page.where(of.id > last) if last else page).scalars().all()
        if found:
            yield from store._read_surveys(queries.surveys_joined().where(of.id.in_(found)).order_by(of.id))
        if len(found) < SURVEYS_AT_ONCE:
            return
        last = _onwards(store, last, found[-1])


@dataclass(frozen=True)
class SurveyTally:
    """How much was surveyed of one operation on one device in one regime.

    Attributes:
        operation: Name.
        device: Name.
        regime: How time was taken.
        timings: How many, failures among them.
        stored_bytes: What their columns take in the database.
        first: When the first part was stored; ISO 8601, UTC.
        last: When the last was.
    """

    operation: str
    device: str
    regime: str
    timings: int
    stored_bytes: int
    first: str
    last: str


def survey_tallies(store: Reader) -> list[SurveyTally]:
    """How much was surveyed and not taken back, by operation, device and regime."""
    of, name = tables.surveys.c, tables.devices.c.name
    wanted = (
        sa.select(
            of.operation, name, of.regime, sa.func.sum(of.timings), sa.func.sum(sa.func.length(of.data)),
            sa.func.min(of.measured_at), sa.func.max(of.measured_at),
        )
        .join(tables.devices, of.device == tables.devices.c.number)
        .where(~queries.withdrawn(of.id))
        .group_by(of.operation, name, of.regime)
        .order_by(of.operation, name, of.regime)
    )  # fmt: skip
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(wanted).all()
    return [SurveyTally(*row) for row in found]


def everything(store: Reader, wanted: Selection | None = None, *, retracted: bool = False) -> Iterator[Kept]:
    """Yields retractions, records, champions, surveys, then the crown log unless only some are wanted.

    Retractions are known before their targets.
    """
    wanted = wanted or Selection()
    yield from retractions(store)
    yield from records(store, wanted, retracted=retracted)
    yield from champions(store, wanted, retracted=retracted)
    yield from survey_parts(store, wanted, retracted=retracted)
    if wanted == Selection():
        yield from crowns(store)


def _onwards(store: Reader, last: str, now: str) -> str:
    """Returns the start of the next batch; a damaged index could lead in a circle.

    Raises:
        StoreTrouble: The index leads in a circle.
    """
    if now <= last:
        raise opening.damaged(store._where, f"after {last} came {now}")
    return now


def _fits(row: Any, wanted: Selection, problems: set[int], devices: set[int]) -> bool:
    return row.problem in problems and row.device in devices and wanted.regime in ("", row.regime)


def _numbers(store: Reader, wanted: Selection) -> tuple[set[int], set[int]]:
    """Returns the numbers of the selected problems and devices; a database has few of them."""
    of = tables.problems
    devices: sa.Select[Any] = sa.select(tables.devices.c.number)
    if wanted.device:
        devices = queries.devices_like(wanted.device)
    with opening.reading(store._where), store._engine.connect() as connection:
        problems = {
            row.number
            for row in connection.execute(sa.select(of))
            if wanted.has(rows.problem_of(dict(row._mapping)))
        }
        return problems, {int(row[0]) for row in connection.execute(devices)}


def records_since(store: Reader, number: int, count: int) -> list[tuple[int, Record]]:
    """Returns records with their numbers, which are local to the database.

    Args:
        store: The database.
        number: The last number that is known.
        count: Largest number of records.
    """
    of = tables.records.c
    wanted = queries.records_joined().where(of.number > number).order_by(of.number).limit(count)
    with opening.reading(store._where), store._engine.connect() as connection:
        return [(row.number, store._record_of(connection, row)) for row in connection.execute(wanted).all()]


def last_number(store: Reader) -> int:
    """Returns the number of the latest record; 0 if there is none."""
    with opening.reading(store._where), store._engine.connect() as connection:
        found = connection.execute(sa.select(sa.func.max(tables.records.c.number))).scalar()
        return int(found or 0)
