"""Lists, counts and streams for people and programs that look around, and the JSON of single records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError, NothingFound
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, Role, checked_id
from tuner.results.survey import Kept, SurveyPart
from tuner.results.verdict import Crown
from tuner.store import lines, opening, retracting, rows, tables
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

    @classmethod
    def parsed(cls, operation: str = "", shape: str = "", device: str = "", regime: str = "") -> Selection:
        """Reads what a user names; empty texts select everything.

        Raises:
            InputError: The shape is not a list of sizes such as ``1024,1024,512``.
        """
        try:
            sizes = tuple(int(size) for size in shape.replace("x", ",").split(",") if size)
        except ValueError:
            raise InputError(f"a shape is whole numbers such as 1024,1024,512, got {shape!r}") from None
        return cls(operation, sizes, device, regime)

    def has(self, problem: ProblemKey) -> bool:
        """True if this problem's records are selected."""
        shape = tuple(value for _, value in problem.shape)
        return self.operation in ("", problem.operation) and self.shape in ((), shape)

    def conditions(self, table: sa.Table) -> list[Any]:
        """Conditions for rows of a table: records, champions or parts of surveys.

        A part of a survey has many shapes and stays whole: none is selected by a shape.
        """
        if self.shape and "problem" not in table.c:
            return [sa.false()]
        return rows.fits(table, **vars(self))


# --- streams -------------------------------------------


def count(store: Reader) -> int:
    """Counts records."""
    return int(store.read(sa.select(sa.func.count()).select_from(tables.records))[0])


def stream(
    store: Reader, kind: type[Kept], wanted: Selection | None = None, *, retracted: bool = False
) -> Iterator[Any]:
    """Yields what is kept of a kind by id, which is the same in every database.

    Nothing stays open between batches, so a long reader does not keep a writer's log from being merged into the
    database. Items added meanwhile may or may not be included.

    Args:
        store: The store.
        kind: Records, champions, retractions, parts of surveys or entries of the crown log.
        wanted: Which records, champions and parts of surveys; all if None.
        retracted: True to include what was taken back.
    """
    table, last = rows.TABLES[kind], ""
    size = SURVEYS_AT_ONCE if kind is SurveyPart else AT_ONCE
    page = sa.select(table.c.id, table.c.data).order_by(table.c.id).limit(size)
    if kind not in (Retraction, Crown) and not retracted:
        page = page.where(rows.reigns() if kind is Champion else rows.stands(table))
    if wanted is not None:
        page = page.where(*wanted.conditions(table))
    while True:
        batch = store.rows(page.where(table.c.id > last) if last else page)
        yield from (row.data for row in batch)
        if len(batch) < size:
            return
        if batch[-1].id <= last:  # a damaged index could lead in a circle
            raise opening.damaged(store._where, f"after {last} came {batch[-1].id}")
        last = batch[-1].id


def everything(store: Reader, wanted: Selection | None = None, *, retracted: bool = False) -> Iterator[Kept]:
    """Yields retractions, records, champions, surveys, then the crown log unless only some are wanted.

    Retractions are known before their targets.
    """
    some = wanted if wanted != Selection() else None
    for kind in rows.TABLES:
        if kind is Crown and some is not None:
            continue
        yield from stream(store, kind, None if kind is Retraction else some, retracted=retracted)


def latest(
    store: Reader, wanted: Selection, limit: int, *, before: int = 0, role: Role | None = None,
    outcome: Outcome | None = None,
) -> list[tuple[int, Record]]:  # fmt: skip
    """The records stored last with their numbers, newest first; those taken back, too.

    Args:
        store: The store.
        wanted: Which records.
        limit: How many.
        before: Only numbers before this one; 0 for the latest.
        role: Only of this role.
        outcome: Only of this outcome.
    """
    of, fits = tables.records.c, wanted.conditions(tables.records)
    fits += rows.fits(tables.records, role=role, outcome=outcome)
    fits += [of.number < before] if before else []
    page = sa.select(of.number, of.data).where(*fits).order_by(of.number.desc()).limit(limit)
    return [(row.number, row.data) for row in store.rows(page)]


def trials(
    store: Reader, problem: ProblemKey, device: DeviceInfo | str, regime: str, limit: int
) -> list[Record]:
    """The last records of a problem on a device, `limit` at the most, in order of measurement."""
    of, named = tables.records.c, {"problem": problem, "device": device, "regime": regime}
    wanted = sa.select(of.data).where(*rows.fits(tables.records, **named), rows.stands())
    last: list[Record] = store.read(wanted.order_by(of.number.desc()).limit(limit))
    return sorted(last, key=lambda record: (record.measured_at, record.id))


# --- counts --------------------------------------------


def tallies(store: Reader) -> list[dict[str, Any]]:
    """Counts of records and champions by operation and device, and when the first and the last was measured.

    Records that were taken back are in ``retracted`` alone, and in the times. A trial whose outcome is neither
    MEASURED nor PRUNED is ``failed``; ``finals`` are records of finals and of the library.
    """
    of, stands = tables.records.c, rows.stands()
    is_trial = of.role == Role.TRIAL.value
    failed = of.outcome.in_([outcome.value for outcome in Outcome if outcome.failed])
    counted = _by_place(
        tables.records.join(tables.problems), tables.problems.c.operation,
        problems=sa.func.count(of.problem.distinct()), trials=_sum(is_trial, stands),
        failed=_sum(is_trial, stands, failed), finals=_sum(~is_trial, stands),
        first=sa.func.min(of.measured_at), last=sa.func.max(of.measured_at), retracted=_sum(~stands),
    )  # fmt: skip
    crowned = _by_place(
        tables.champions.join(tables.problems), tables.problems.c.operation, champions=_sum(rows.reigns())
    )
    with store.reading() as connection:
        champions = {(row.operation, row.device): row.champions for row in connection.execute(crowned)}
        return [
            {**row._mapping, "champions": champions.get((row.operation, row.device), 0)}
            for row in connection.execute(counted)
        ]


def _by_place(of: Any, operation: Any, *more: Any, **figures: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Figures of rows by operation, device and more."""
    place = operation, tables.devices.c.name.label("device"), *more
    wanted = sa.select(*place, *(figure.label(name) for name, figure in figures.items()))
    return wanted.select_from(of.join(tables.devices)).group_by(*place).order_by(*place)


def _sum(*conditions: Any) -> Any:
    return sa.func.sum(sa.case((sa.and_(*conditions), 1), else_=0))


def survey_tallies(store: Reader) -> list[dict[str, Any]]:
    """How much was surveyed and not taken back, by operation, device and regime; failures count as timings."""
    of = tables.surveys.c
    wanted = _by_place(
        tables.surveys, of.operation, of.regime,
        timings=sa.func.sum(of.timings), first=sa.func.min(of.measured_at), last=sa.func.max(of.measured_at),
        stored_bytes=sa.func.sum(sa.func.length(of.data, type_=sa.Integer)),
    )  # fmt: skip
    return [dict(row._mapping) for row in store.rows(wanted.where(rows.stands(tables.surveys)))]


class MeasuredProblem(NamedTuple):
    """A problem that was measured on a device.

    Attributes:
        problem: Which.
        device: Where.
        regime: How time was taken.
        records: Its records, those taken back included.
        timed: Those of them that have a time.
        champions: Champions that it had.
        crowned_at: When the last was crowned; empty without one.
    """

    problem: ProblemKey
    device: DeviceInfo
    regime: str
    records: int
    timed: int
    champions: int
    crowned_at: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        device = {name: getattr(self.device, name) for name in ("name", "kind", "uuid")}
        return {
            **self.problem.as_keys(), "regime": self.regime, "device": device, "records": self.records,
            "timed": self.timed, "champions": self.champions, "crowned_at": self.crowned_at or None,
        }  # fmt: skip


def problems(store: Reader) -> list[MeasuredProblem]:
    """Every problem that was measured, those with the latest champions first. Reads indexes alone."""

    def grouped(of: Any, *columns: Any) -> sa.Select[Any]:
        place = of.problem, of.device, of.regime
        return sa.select(*place, sa.func.count(), *columns).group_by(*place)

    counted = grouped(tables.records.c, sa.func.count(tables.records.c.time_s))
    crowned = grouped(tables.champions.c, sa.func.max(tables.champions.c.crowned_at))
    with store.reading() as connection:
        keys, infos = rows.problems_and_devices(connection)
        champions = {tuple(row[:3]): row[3:] for row in connection.execute(crowned)}
        return sorted(
            (
                MeasuredProblem(keys[row[0]], infos[row[1]], *row[2:], *champions.get(tuple(row[:3]), (0, "")))
                for row in connection.execute(counted)
            ),
            key=lambda measured: (measured.crowned_at, str(measured.problem)),
            reverse=True,
        )


# --- single records ------------------------------------


def record_named(store: Reader, text: str, where: str) -> tuple[Record, Retraction | None]:
    """The record of an id, and its retraction.

    Raises:
        InputError: The text is no id.
        NothingFound: No record has it.
    """
    named = checked_id(text)
    record = store.record(named)
    if record is None:
        raise NothingFound(f"no record of {where} has the id {named}; `tuner records list` shows some")
    return record, retracting.retracted(store, [named]).get(named)


def record_json(record: Record, retraction: Retraction | None) -> dict[str, Any]:
    """Everything stored about a record, and when and why it was taken back."""
    taken_back = f"{retraction.made_at} {retraction.reason}".rstrip() if retraction else None
    fields: Mapping[str, Any] = json.loads(lines.line_of(record))["record"]
    return {**fields, "taken_back": taken_back}
