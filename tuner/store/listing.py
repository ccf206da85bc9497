"""Lists for people and programs that look around: pages of records, problems, the history of a champion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import opening, queries, rows, tables
from tuner.store.reading import Reader
from tuner.store.streams import Selection

#: Problems whose numbers a statement may name.
FEW = 500


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
    with opening.reading(store._where), store._engine.connect() as connection:
        keys = {
            row["number"]: rows.problem_of(dict(row))
            for row in connection.execute(sa.select(tables.problems)).mappings()
        }
        infos = {
            number: rows.device_of(info)
            for number, info in connection.execute(sa.select(tables.devices.c.number, tables.devices.c.info))
        }
        champions = {tuple(row[:3]): (int(row[3]), str(row[4])) for row in connection.execute(crowned)}
        found = [
            MeasuredProblem(
                keys[problem], infos[device], str(regime), int(count), int(timed),
                *champions.get((problem, device, regime), (0, "")),
            )
            for problem, device, regime, count, timed in connection.execute(counted)
        ]  # fmt: skip
    return sorted(found, key=lambda each: (each.crowned_at, str(each.problem)), reverse=True)


def records(
    store: Reader, wanted: Selection, only: Sequence[str], before: int, limit: int
) -> list[tuple[int, Record]]:
    """Records with their numbers, newest first.

    Args:
        store: The store.
        wanted: Which records.
        only: Roles and outcomes; any if empty.
        before: Only numbers before this one; 0 for the latest.
        limit: How many.
    """
    of = tables.records.c
    roles = [each for each in only if each in {role.value for role in Role}]
    outcomes = [each for each in only if each in {outcome.value for outcome in Outcome}]
    fits = [
        *([of.number < before] if before else []),
        *([of.role.in_(roles)] if roles else []),
        *([of.outcome.in_(outcomes)] if outcomes else []),
        *([of.regime == wanted.regime] if wanted.regime else []),
        *([of.device.in_(queries.devices_like(wanted.device))] if wanted.device else []),
    ]
    with opening.reading(store._where), store._engine.connect() as connection:
        numbers = _problems(connection, wanted)
        if numbers is not None:
            fits.append(of.problem.in_(numbers))
        page = sa.select(of.number).where(*fits).order_by(of.number.desc()).limit(limit)
        chosen = list(connection.execute(page).scalars())
        by_number = store._by_number(connection, chosen)
    return [(number, by_number[number]) for number in chosen]


def _problems(connection: sa.Connection, wanted: Selection) -> Any:
    """Numbers of the problems that are wanted, or a query for them; None for all."""
    if not wanted.operation and not wanted.shape:
        return None
    of = tables.problems
    named = sa.select(of).where(of.c.operation == wanted.operation) if wanted.operation else sa.select(of)
    if not wanted.shape:
        return sa.select(of.c.number).where(of.c.operation == wanted.operation)
    fitting = (
        row["number"] for row in connection.execute(named).mappings() if wanted.has(rows.problem_of(dict(row)))
    )
    return list(fitting)[:FEW]


def trials(
    store: Reader, problem: ProblemKey, device: DeviceInfo | str, regime: str, limit: int
) -> list[Record]:
    """The last records of a problem on a device, `limit` at the most, in order of measurement."""
    of = tables.records.c
    wanted = queries.records_joined().where(
        queries.is_problem(problem), of.device.in_(queries.devices_like(device)), of.regime == regime,
        queries.stands(),
    )  # fmt: skip
    found = store._read(wanted.order_by(of.number.desc()).limit(limit))
    return sorted(found, key=lambda record: (record.measured_at, record.id))


def recent_champions(store: Reader, limit: int) -> list[Champion]:
    """The champions crowned last, latest first."""
    of = tables.champions
    last = sa.select(of.c.number).order_by(of.c.number.desc()).limit(limit)
    wanted = queries.champions_joined().where(of.c.number.in_(last), queries.reigns())
    return store._read_champions(wanted.order_by(of.c.number.desc()))


def champions_of(store: Reader, problems: Sequence[ProblemKey]) -> list[Champion]:
    """Every champion that some problems have had, oldest first; retracted ones are left out."""
    of, found = tables.champions.c, []
    for start in range(0, len(problems), FEW // 5):
        some = sa.or_(*(queries.is_problem(each) for each in problems[start : start + FEW // 5]))
        wanted = queries.champions_joined().where(some, queries.reigns())
        found += store._read_champions(wanted.order_by(queries.rank_in_time(of.crowned_at), of.id))
    return found


def has_optuna_tables(store: Reader) -> bool:
    """True if Optuna has kept studies in the same database."""
    with opening.reading(store._where), store._engine.connect() as connection:
        return sa.inspect(connection).has_table("studies")
