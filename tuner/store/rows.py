"""What is kept as rows: columns by which it is searched, what it shares with others, and shared conditions."""

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results import record as results
from tuner.results.codec import storable
from tuner.results.record import Champion, ProblemKey, Record, Retraction, checked_id
from tuner.results.survey import Kept, SurveyPart
from tuner.results.verdict import Crown
from tuner.store import tables
from tuner.store.lines import json_text

#: What is kept -> its table, in the order in which it is read: retractions are known before their targets.
TABLES: Mapping[type, sa.Table] = {
    Retraction: tables.retractions, Record: tables.records, Champion: tables.champions,
    SurveyPart: tables.surveys, Crown: tables.crowns,
}  # fmt: skip


def columns_of(item: Kept) -> dict[str, Any]:
    """The columns by which something is searched, and what the rows say that it refers to; None for none."""
    match item:
        case Record():
            columns: dict[str, Any] = {
                "problem": problem_row(item.problem), "device": device_row(item.device), "run": run_row(item),
                "kernel": {
                    "name": item.kernel, "source_hash": item.source_hash, "origin": storable(item.origin),
                },
                "regime": item.regime, "role": item.role.value, "outcome": item.measurement.outcome.value,
                "time_s": item.measurement.time_s, "config": config_text(item.config),
                "measured_at": item.measured_at,
            }  # fmt: skip
        case Champion(record=record, baseline=library):
            columns = {
                "problem": problem_row(record.problem), "device": device_row(record.device),
                "record": {"id": checked_id(record.id)},
                "baseline": {"id": checked_id(library.id)} if library else None,
                "regime": record.regime, "speedup": item.speedup, "crowned_at": item.crowned_at,
            }  # fmt: skip
        case Retraction():
            columns = {"of": checked_id(item.of), "made_at": item.made_at}
        case SurveyPart():
            columns = {
                "device": device_row(item.device), "run": run_row(item), "operation": item.operation,
                "regime": item.regime, "timings": len(item.timings), "measured_at": item.measured_at,
            }  # fmt: skip
        case Crown():
            columns = {"act": item.act.value, "problem": item.problem and problem_row(item.problem)}
    return columns | {"id": checked_id(item.id)}


def config_text(config: Mapping[str, Any]) -> str:
    """A config as JSON text, its parameters in their order."""
    return json_text(dict(config))


def problem_row(problem: ProblemKey) -> dict[str, str]:
    """Columns of a problem; its precision stands behind the dtype."""
    return {name: value if name != "shape" else json_text(value) for name, value in problem.to_json().items()}


def problem_of(row: Any) -> ProblemKey:
    """The problem of a row that has its columns."""
    data = {name: getattr(row, name) for name in tables.PROBLEM}
    return ProblemKey.from_json(data | {"shape": json.loads(row.shape)})


@functools.lru_cache(maxsize=256)
def device_row(device: DeviceInfo) -> Mapping[str, str]:
    """Columns of a device; a change of any field, e.g. the driver's version, makes another row."""
    info = json_text(device.to_json(), sort_keys=True)
    name = {"kind": device.kind, "name": device.name, "uuid": device.uuid}
    return {"digest": _digest_of(info), "info": info, **name}


def device_of(info: str) -> DeviceInfo:
    """The device of a row's ``info``."""
    return DeviceInfo.from_json(json.loads(info))


def run_row(item: Record | SurveyPart) -> dict[str, str]:
    """Columns that the records of a run, or the parts of a survey, share."""
    versions = json_text(dict(item.versions), sort_keys=True)
    digest = _digest_of(item.study, item.session, versions)
    return {"digest": digest, "study": item.study, "session": item.session, "versions": versions}


def _digest_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# --- conditions that several queries share -------------


def withdrawn(of: Any) -> Any:
    """Condition: the item with this UUID was retracted, by a retraction that still counts."""
    made = tables.retractions.alias("made")
    return sa.select(made.c.number).where(made.c.of == of, in_force(made)).correlate_except(made).exists()


def in_force(made: Any = tables.retractions) -> Any:
    """Condition: the retraction was not itself retracted."""
    undone = tables.retractions.alias("undone")
    return ~sa.select(undone.c.number).where(undone.c.of == made.c.id).correlate(made).exists()


def stands(table: Any = tables.records) -> Any:
    """Condition: the record, or the part of a survey, was not retracted."""
    return ~withdrawn(table.c.id)


def reigns(champion: Any = tables.champions) -> Any:
    """Condition: neither the champion was retracted, nor its record, nor its library's record."""
    named = tables.records.alias("named")
    gone = (
        sa.select(named.c.number)
        .where(named.c.number.in_([champion.c.record, champion.c.baseline]), withdrawn(named.c.id))
        .correlate(champion)
        .exists()
    )
    return sa.and_(~withdrawn(champion.c.id), ~gone)


def rank_in_time(when: Any) -> Any:
    """`tuner.results.record.rank_in_time` for a column."""
    latest = sa.bindparam("latest", callable_=results.latest_credible, unique=True, type_=sa.Text)
    return sa.case((when > latest, sa.literal("0") + when), else_=when)


def fits(table: sa.Table, **wanted: Any) -> list[Any]:
    """Conditions for rows of a table, by column; any value fits if None or nothing is wanted.

    What a row refers to is told by ``problem``, ``device``, ``operation``, ``study``, ``shape``,
    which are sizes, and ``kernels``, which are names with source hashes.
    """
    of, conditions = table.c, list[Any]()
    for name, value in wanted.items():
        if value in (None, "", ()):
            continue
        if name == "problem":
            conditions.append(of.problem == number_of(value).scalar_subquery())
        elif name == "device":
            conditions.append(of.device.in_(devices_like(value)))
        elif name == "kernels":
            conditions.append(of.kernel.in_(kernels_like(value)))
        elif name == "study":
            conditions.append(of.run.in_(sa.select(tables.runs.c.number).where(tables.runs.c.study == value)))
        elif name == "operation" and name not in of:
            problem = tables.problems.c
            conditions.append(of.problem.in_(sa.select(problem.number).where(problem.operation == value)))
        elif name == "shape":
            sizes = ",".join(f'["%",{size}]' for size in value)
            problem = tables.problems.c
            conditions.append(of.problem.in_(sa.select(problem.number).where(problem.shape.like(f"[{sizes}]"))))
        else:
            conditions.append(of[name] == str(value))
    return conditions


def number_of(problem: ProblemKey) -> sa.Select[Any]:
    """Selects the number of a problem."""
    of = tables.problems.c
    same = (of[name] == value for name, value in problem_row(problem).items())
    return sa.select(of.number).where(*same)


def devices_like(device: DeviceInfo | str) -> Any:
    """Numbers of the devices of this kind and name; a text is a name or a uuid."""
    of = tables.devices.c
    if isinstance(device, str):
        fits = sa.or_(of.name == device, sa.and_(of.uuid == device, of.uuid != ""))
    else:
        fits = sa.and_(of.kind == device.kind, of.name == device.name)
    return sa.select(of.number).where(fits)


def kernels_like(hashes: Mapping[str, str]) -> Any:
    """Numbers of these kernels with these source hashes; an empty hash stands for any."""
    of = tables.kernels.c
    fits = [
        sa.and_(of.name == name, *([of.source_hash.in_(results.equivalent_hashes(now))] if now else []))
        for name, now in hashes.items()
    ]
    return sa.select(of.number).where(sa.or_(sa.false(), *fits))


#: The tables that answers rest on.
ANSWERING = (tables.records, tables.champions, tables.retractions, tables.surveys, tables.crowns, tables.models)
#: As text, which is quicker than a statement that is put together: it is asked before every answer.
_POSITIONS = "SELECT " + ", ".join(
    f"(SELECT coalesce(max(number), 0) FROM {table.name}) AS {table.name}" for table in ANSWERING
)


def positions(connection: sa.Connection) -> dict[str, int]:
    """Table that answers rest on -> number of its last row."""
    return {name: int(number) for name, number in connection.exec_driver_sql(_POSITIONS).one()._mapping.items()}


def problems_and_devices(
    connection: sa.Connection, *fits: Any
) -> tuple[dict[int, ProblemKey], dict[int, DeviceInfo]]:
    """Problems that meet some conditions, and all devices, by their numbers."""
    device, problems = tables.devices.c, sa.select(tables.problems).where(*fits)
    return (
        {row.number: problem_of(row) for row in connection.execute(problems)},
        {row.number: device_of(row.info) for row in connection.execute(sa.select(device.number, device.info))},
    )
