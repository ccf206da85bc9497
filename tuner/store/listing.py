"""Lists and counts for people and programs that look around, and the JSON of single records."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError, NothingFound
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Retraction, Role
from tuner.store import lines, queries, retracting, rows, tables
from tuner.store.reading import Reader
from tuner.store.streams import Selection

#: Problems that a statement may name.
FEW = 100


@dataclass(frozen=True)
class RecordTally:
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


def tallies(store: Reader) -> list[RecordTally]:
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
    with store.reading() as connection:
        crowned = {
            (operation, name): int(champions)
            for operation, name, champions in connection.execute(
                grouped(tables.champions, _sum(queries.reigns()))
            )
        }
        return [
            RecordTally(
                row[0], row[1], int(row[2]), int(row[3]), int(row[4]), int(row[5]),
                crowned.get((row[0], row[1]), 0), row[6], row[7], int(row[8]),
            )
            for row in connection.execute(counted)
        ]  # fmt: skip


def _sum(condition: Any) -> Any:
    return sa.func.sum(sa.case((condition, 1), else_=0))


@dataclass(frozen=True)
class SurveyTally:
    """How much was surveyed of one operation on one device in one regime.

    Attributes:
        operation: Name.
        device: Name.
        regime: How time was taken.
        timings: How many, failures among them.
        stored_bytes: What they take in the database.
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
    with store.reading() as connection:
        return [SurveyTally(*row) for row in connection.execute(wanted)]


def tallies_json(store: Reader) -> list[dict[str, Any]]:
    """Counts of records by operation and device, then those of surveys."""
    return [*map(asdict, tallies(store)), *map(asdict, survey_tallies(store))]


@dataclass(frozen=True)
class MeasuredProblem:
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
        key, device = self.problem, self.device
        return {
            "operation": key.operation, "shape": key.dims, "dtype": key.dtype, "layout": key.layout,
            "precision": key.precision, **key.told_epilogue, "regime": self.regime,
            "device": {"name": device.name, "kind": device.kind, "uuid": device.uuid},
            "records": self.records, "timed": self.timed, "champions": self.champions,
            "crowned_at": self.crowned_at or None,
        }  # fmt: skip


def problems(store: Reader) -> list[MeasuredProblem]:
    """Every problem that was measured, those with the latest champions first. Reads indexes alone."""
    of, champion = tables.records.c, tables.champions.c
    counted = sa.select(of.problem, of.device, of.regime, sa.func.count(), sa.func.count(of.time_s)).group_by(
        of.problem, of.regime, of.device
    )
    crowned = sa.select(
        champion.problem, champion.device, champion.regime, sa.func.count(), sa.func.max(champion.crowned_at)
    ).group_by(champion.problem, champion.device, champion.regime)
    with store.reading() as connection:
        keys, infos = queries.problems_and_devices(connection)
        champions = {tuple(row[:3]): (int(row[3]), str(row[4])) for row in connection.execute(crowned)}
        found = [
            MeasuredProblem(
                keys[problem], infos[device], str(regime), int(count), int(timed),
                *champions.get((problem, device, regime), (0, "")),
            )
            for problem, device, regime, count, timed in connection.execute(counted)
        ]  # fmt: skip
    return sorted(found, key=lambda measured: (measured.crowned_at, str(measured.problem)), reverse=True)


def latest(
    store: Reader, wanted: Selection, limit: int, *, before: int = 0, only: Sequence[str] = ()
) -> list[tuple[int, Record]]:
    """The records stored last with their numbers, newest first; those taken back, too.

    Args:
        store: The store.
        wanted: Which records.
        limit: How many.
        before: Only numbers before this one; 0 for the latest.
        only: Roles and outcomes; any if empty.
    """
    of = tables.records.c
    roles = [name for name in only if name in set(Role)]
    outcomes = [name for name in only if name in set(Outcome)]
    with store.reading() as connection:
        fits = [
            *wanted.conditions(connection, of),
            *([of.number < before] if before else []),
            *([of.role.in_(roles)] if roles else []),
            *([of.outcome.in_(outcomes)] if outcomes else []),
        ]
        page = sa.select(of.number, of.data).where(*fits).order_by(of.number.desc()).limit(limit)
        return [(number, rows.item_of(data)) for number, data in connection.execute(page)]


def trials(
    store: Reader, problem: ProblemKey, device: DeviceInfo | str, regime: str, limit: int
) -> list[Record]:
    """The last records of a problem on a device, `limit` at the most, in order of measurement."""
    of = tables.records.c
    wanted = sa.select(of.data).where(
        of.problem == queries.number_of(problem), of.device.in_(queries.devices_like(device)),
        of.regime == regime, queries.stands(),
    )  # fmt: skip
    found: list[Record] = store.read(wanted.order_by(of.number.desc()).limit(limit))
    return sorted(found, key=lambda record: (record.measured_at, record.id))


def recent_champions(store: Reader, limit: int) -> list[Champion]:
    """The champions crowned last, latest first."""
    of = tables.champions.c
    last = sa.select(of.number).order_by(of.number.desc()).limit(limit)
    wanted = sa.select(of.data).where(of.number.in_(last), queries.reigns())
    return store.read(wanted.order_by(of.number.desc()))


def champions_of(store: Reader, problems: Sequence[ProblemKey]) -> list[Champion]:
    """Every champion that some problems have had, oldest first; retracted ones are left out."""
    of, found = tables.champions.c, list[Champion]()
    for start in range(0, len(problems), FEW):
        named = sa.or_(*(queries.is_problem(problem) for problem in problems[start : start + FEW]))
        wanted = sa.select(of.data).join(tables.problems, of.problem == tables.problems.c.number)
        wanted = wanted.where(named, queries.reigns())
        found += store.read(wanted.order_by(queries.rank_in_time(of.crowned_at), of.id))
    return found


def last_studies(store: Reader, count: int) -> list[str]:
    """Names of the studies with the latest runs, oldest first."""
    of = tables.runs.c
    named = sa.select(of.study).where(of.study != "").group_by(of.study)
    with store.reading() as connection:
        last = connection.execute(named.order_by(sa.func.max(of.number).desc()).limit(count))
        return list(last.scalars())[::-1]


# --- single records ------------------------------------


def record_id(text: str) -> str:
    """An id that a user names, in the form in which it is stored.

    Raises:
        InputError: The text is no UUID.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise InputError(
            f"a record is named by its id, a UUID such as {uuid.UUID(int=0)}, got {text!r}; `tuner "
            f"records list` shows ids in its last column"
        ) from None


def record_named(store: Reader, text: str, where: str) -> tuple[Record, Retraction | None]:
    """The record of an id, and its retraction.

    Raises:
        InputError: The text is no id.
        NothingFound: No record has it.
    """
    named = record_id(text)
    record = store.record(named)
    if record is None:
        raise NothingFound(f"no record of {where} has the id {named}; `tuner records list` shows some")
    return record, retracting.retracted(store, [named]).get(named)


def record_json(record: Record, retraction: Retraction | None) -> dict[str, Any]:
    """Everything stored about a record, and when and why it was taken back."""
    taken_back = f"{retraction.made_at} {retraction.reason}".rstrip() if retraction else None
    told: dict[str, Any] = json.loads(lines.line_of(record))["record"]
    return told | {"taken_back": taken_back}
