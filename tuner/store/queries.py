"""Conditions that several queries share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tuner.declare.hardware import DeviceInfo
from tuner.results.record import Champion, ProblemKey, equivalent_hashes, latest_credible
from tuner.store import rows, tables


def withdrawn(of: Any) -> Any:
    """Condition: the item with this UUID was retracted, by a retraction that still counts."""
    made, undone = tables.retractions.alias("made"), tables.retractions.alias("undone")
    is_undone = sa.select(undone.c.number).where(undone.c.of == made.c.id).correlate(made).exists()
    return sa.select(made.c.number).where(made.c.of == of, ~is_undone).correlate_except(made).exists()


def stands(record: Any = tables.records) -> Any:
    """Condition: the record was not retracted."""
    return ~withdrawn(record.c.id)


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
    return sa.case((when > latest_credible(), sa.literal("0") + when), else_=when)


def is_problem(problem: ProblemKey) -> Any:
    """Condition on problems: this one."""
    return sa.and_(*(tables.problems.c[name] == value for name, value in rows.problem_row(problem).items()))


def number_of(problem: ProblemKey) -> Any:
    """The number of a problem, for a condition on what refers to it."""
    return sa.select(tables.problems.c.number).where(is_problem(problem)).scalar_subquery()


def boards(uuid: str) -> Any:
    """Numbers of the devices with this uuid."""
    return sa.select(tables.devices.c.number).where(tables.devices.c.uuid == uuid)


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
        of.name == name if not now else sa.and_(of.name == name, of.source_hash.in_(equivalent_hashes(now)))
        for name, now in hashes.items()
    ]
    return sa.select(of.number).where(sa.or_(sa.false(), *fits))


def place(champion: Champion) -> tuple[Any, ...]:
    """The columns that a champion is unique for, in the order in which champions are listed."""
    problem, device = champion.record.problem, champion.record.device
    shape = tuple(value for _, value in problem.shape)
    return (
        problem.operation, shape, problem.arithmetic, problem.layout, device.kind, device.name,
        champion.record.regime,
    )  # fmt: skip


def problems_and_devices(
    connection: sa.Connection, *fits: Any
) -> tuple[dict[int, ProblemKey], dict[int, DeviceInfo]]:
    """Problems that meet some conditions, and all devices, by their numbers."""
    device, problems = tables.devices.c, sa.select(tables.problems).where(*fits)
    return (
        {row.number: rows.problem_of(row) for row in connection.execute(problems)},
        {
            row.number: rows.device_of(row.info)
            for row in connection.execute(sa.select(device.number, device.info))
        },
    )
