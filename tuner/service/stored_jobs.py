"""Rows of jobs, and of what happened to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tuner.results.record import checked_id, new_id, utc_now
from tuner.store import Store, tables
from tuner.store.reading import Reader

QUEUED, RUNNING, STOPPING = "queued", "running", "stopping"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
#: States of a job that has not ended.
UNFINISHED = (QUEUED, RUNNING, STOPPING)
STATES = (*UNFINISHED, DONE, FAILED, CANCELLED)

_OF = tables.jobs.c


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        asked: What was submitted, checked, as `tuner.service.job_queue` writes it.
        same: Digest of it: equal unfinished jobs are one.
        node: Name of the machine that runs it.
        submitter: Name of the token that it came with.
        device: Spec of the device.
        priority: The higher, the earlier among those of one submitter.
        deadline: ISO 8601, UTC; empty without one.
        state: One of `STATES`.
        why: Why it waits, stopped or failed, in words.
        process: Unused.
        progress: As its process told last.
        report: What its process printed in the end; None before.
        starts: How often a process was started for it.
        submitted_at: ISO 8601, UTC.
        started_at: When it was first started; empty before.
        ended_at: Empty before.
        id: UUID.
        number: Its row; 0 before it is stored.
    """

    asked: Mapping[str, Any]
    same: str
    node: str
    submitter: str
    device: str
    priority: int = 0
    deadline: str = ""
    state: str = QUEUED
    why: str = ""
    process: Mapping[str, Any] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    report: Any = None
    starts: int = 0
    submitted_at: str = ""
    started_at: str = ""
    ended_at: str = ""
    id: str = field(default_factory=new_id)
    number: int = 0


def submit(store: Store, job: Job) -> tuple[Job, bool]:
    """Stores a job, unless an equal one is unfinished, whose priority it may raise.

    Returns:
        The job, or the equal one; and whether it is new.
    """
    row = {name: value for name, value in vars(job).items() if name != "number"} | {"submitted_at": utc_now()}
    with store.writing() as connection:
        raised = sa.update(tables.jobs).where(_OF.same == job.same).returning(tables.jobs)
        priority = sa.case((_OF.priority < job.priority, job.priority), else_=_OF.priority)
        there = connection.execute(raised.values(priority=priority)).one_or_none()
        if there is not None:
            return Job(**there._mapping), False
        insert = sa.insert(tables.jobs).values(**row).returning(tables.jobs)
        added = Job(**connection.execute(insert).one()._mapping)
        _add_event(connection, added.number, QUEUED, {})
        return added, True


def job(store: Reader, job_id: str) -> Job | None:
    """The job of an id; None if there is none.

    Raises:
        InputError: It is not a UUID.
    """
    return next(iter(_jobs(store, _OF.id == checked_id(job_id))), None)


def unfinished(store: Reader, node: str) -> list[Job]:
    """The jobs of a node that have not ended, in the order submitted."""
    return _jobs(store, _OF.state.in_(UNFINISHED), _OF.node == node)


def latest(
    store: Reader, states: Sequence[str], limit: int, before: int = 0, submitter: str | None = None
) -> list[Job]:
    """The jobs of some states, or of all, the latest first.

    Args:
        store: The store.
        states: Of these states; of all if empty.
        limit: How many.
        before: Only rows before this number; 0 for the latest.
        submitter: Only of this one; of all if None.
    """
    fits: list[sa.ColumnElement[bool]] = [_OF.state.in_(states)] if states else []
    fits += [_OF.number < before] if before else []
    fits += [_OF.submitter == submitter] if submitter is not None else []
    return _jobs(store, *fits, order=_OF.number.desc(), limit=limit)


def _jobs(
    store: Reader, *fits: sa.ColumnElement[bool], order: Any = _OF.number, limit: int | None = None
) -> list[Job]:
    wanted = sa.select(tables.jobs).where(*fits).order_by(order).limit(limit)
    with store.reading() as connection:
        return [Job(**row) for row in connection.execute(wanted).mappings()]


def counts(store: Reader) -> dict[str, int]:
    """State -> number of jobs."""
    return dict.fromkeys(STATES, 0) | _by(store, _OF.state, sa.func.count())


def unfinished_of(store: Reader) -> dict[str, int]:
    """Submitter -> number of jobs that have not ended."""
    return _by(store, _OF.submitter, sa.func.count(), _OF.state.in_(UNFINISHED))


def last_starts(store: Reader, node: str) -> dict[str, str]:
    """Submitter -> when a job of theirs was last started on a node."""
    return _by(store, _OF.submitter, sa.func.max(_OF.started_at), _OF.node == node)


def _by(store: Reader, column: Any, figure: Any, *fits: sa.ColumnElement[bool]) -> dict[str, Any]:
    with store.reading() as connection:
        rows = connection.execute(sa.select(column, figure).where(*fits).group_by(column))
        return dict(map(tuple, rows))


def change(store: Store, job_id: str, among: Collection[str], state: str, why: str, **columns: Any) -> bool:
    """Changes the state of a job, with an event, if its present state is among some.

    Args:
        store: The store.
        job_id: The job.
        among: States in which the change is possible.
        state: The new one.
        why: Why, in words.
        columns: More columns that change.

    Returns:
        Whether it was changed.
    """
    new = columns | {"state": state, "why": why}
    new |= {} if state in UNFINISHED else {"same": job_id, "ended_at": utc_now()}
    fits = sa.update(tables.jobs).where(_OF.id == job_id, _OF.state.in_(among))
    with store.writing() as connection:
        number = connection.execute(fits.values(**new).returning(_OF.number)).scalar()
        if number is not None:
            _add_event(connection, number, state, {"why": why} if why else {})
    return number is not None


def note(store: Store, job_id: str, why: str) -> None:
    """Sets why a queued job waits, without an event."""
    queued = sa.update(tables.jobs).where(_OF.id == job_id, _OF.state == QUEUED)
    with store.writing() as connection:
        connection.execute(queued.values(why=why))


def progressed(store: Store, job_id: str, progress: Mapping[str, Any]) -> None:
    """Stores the progress of a job."""
    with store.writing() as connection:
        connection.execute(sa.update(tables.jobs).where(_OF.id == job_id).values(progress=progress))


def events(store: Reader, one: Job, after: int = 0) -> Sequence[sa.Row[Any]]:
    """The changes of a job's state after one of them, in order: ``number``, ``kind``, ``said`` and ``at``."""
    of = tables.job_events.c
    later = sa.select(tables.job_events).where(of.job == one.number, of.number > after).order_by(of.number)
    with store.reading() as connection:
        return connection.execute(later).all()


def _add_event(connection: sa.Connection, number: int, kind: str, said: Mapping[str, Any]) -> None:
    row = {"job": number, "kind": kind, "said": dict(said), "at": utc_now()}
    connection.execute(sa.insert(tables.job_events).values(**row))
