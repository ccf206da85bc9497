"""Jobs of the service as they are stored, with their events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
#: Events of progress that are kept of one job; the latest.
PROGRESS_KEPT = 200
PROGRESS = "progress"
#: Events that are read at a time.
EVENTS_AT_ONCE = 500


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
        process: Of the process that runs it: ``pid``, ``started`` (seconds since the epoch), ``folder``.
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


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job.

    Attributes:
        number: Its row; events of a job come in its order.
        kind: A state, or ``progress``.
        said: What there is to say.
        at: ISO 8601, UTC.
    """

    number: int
    kind: str
    said: Mapping[str, Any]
    at: str


#: Columns that are kept as JSON.
_AS_JSON = ("asked", "process", "progress", "report")


def submit(store: Store, job: Job) -> tuple[Job, bool]:
    """Stores a job, unless an equal one is unfinished.

    Returns:
        The job, or the equal one; and whether it is new.
    """
    of = tables.jobs
    row = {name: value for name, value in vars(job).items() if name != "number"} | {"submitted_at": utc_now()}
    row |= {name: json.dumps(row[name]) for name in _AS_JSON}
    with store.writing() as connection:
        there = connection.execute(sa.select(of).where(of.c.same == job.same)).one_or_none()
        if there is not None:
            return _job(there), False
        added = _job(connection.execute(sa.insert(of).values(**row).returning(of)).one())
        _tell(connection, added.number, QUEUED, {})
        return added, True


def job(store: Reader, job_id: str) -> Job | None:
    """The job of an id; None if there is none.

    Raises:
        InputError: It is not a UUID.
    """
    found = _read(store, sa.select(tables.jobs).where(tables.jobs.c.id == checked_id(job_id)))
    return found[0] if found else None


def unfinished(store: Reader, node: str) -> list[Job]:
    """The jobs of a node that have not ended, in the order submitted."""
    of = tables.jobs.c
    wanted = sa.select(tables.jobs).where(of.state.in_(UNFINISHED), of.node == node).order_by(of.number)
    return _read(store, wanted)


def count_unfinished(store: Reader, submitter: str | None = None) -> int:
    """How many jobs have not ended, of one submitter or of all."""
    of = tables.jobs.c
    wanted = sa.select(sa.func.count()).select_from(tables.jobs).where(of.state.in_(UNFINISHED))
    wanted = wanted if submitter is None else wanted.where(of.submitter == submitter)
    with store.reading() as connection:
        return int(connection.execute(wanted).scalar_one())


def counts(store: Reader) -> dict[str, int]:
    """State -> number of jobs."""
    of = tables.jobs.c
    with store.reading() as connection:
        found = connection.execute(sa.select(of.state, sa.func.count()).group_by(of.state)).all()
    return dict.fromkeys(STATES, 0) | {str(state): int(count) for state, count in found}


def latest(store: Reader, states: Sequence[str], limit: int, before: int = 0) -> list[Job]:
    """The jobs of some states, or of all, the latest first.

    Args:
        store: The store.
        states: Of these states; of all if empty.
        limit: How many.
        before: Only rows before this number; 0 for the latest.
    """
    of = tables.jobs.c
    wanted = sa.select(tables.jobs).order_by(of.number.desc()).limit(limit)
    wanted = wanted.where(of.state.in_(states)) if states else wanted
    return _read(store, wanted.where(of.number < before) if before else wanted)


def last_starts(store: Reader, node: str) -> dict[str, str]:
    """Submitter -> when a job of theirs was last started on a node."""
    of = tables.jobs.c
    wanted = sa.select(of.submitter, sa.func.max(of.started_at)).where(of.node == node).group_by(of.submitter)
    with store.reading() as connection:
        return {str(name): str(when) for name, when in connection.execute(wanted)}


def change(
    store: Store, job_id: str, among: Iterable[str], state: str, said: Mapping[str, Any] | None = None,
    **columns: Any,
) -> bool:  # fmt: skip
    """Changes the state of a job, with an event, if its present state is among some.

    Args:
        store: The store.
        job_id: The job.
        among: States in which the change is possible.
        state: The new one.
        said: What the event says.
        columns: More columns that change.

    Returns:
        Whether it was changed.
    """
    of = tables.jobs
    new = columns | {"state": state} | ({} if state in UNFINISHED else {"same": job_id, "ended_at": utc_now()})
    new |= {name: json.dumps(new[name]) for name in _AS_JSON if name in new}
    fits = sa.and_(of.c.id == job_id, of.c.state.in_(list(among)))
    with store.writing() as connection:
        number = connection.execute(sa.select(of.c.number).where(fits)).scalar()
        if number is None:
            return False
        connection.execute(sa.update(of).where(fits).values(**new))
        _tell(connection, number, state, said or {})
    return True


def note(store: Store, job_id: str, why: str) -> None:
    """Sets why a queued job waits, without an event."""
    of = tables.jobs
    with store.writing() as connection:
        connection.execute(sa.update(of).where(of.c.id == job_id, of.c.state == QUEUED).values(why=why))


def progressed(store: Store, one: Job, progress: Mapping[str, Any]) -> None:
    """Stores the progress of a job, with an event; of these a job keeps the latest."""
    of, events = tables.jobs, tables.job_events
    with store.writing() as connection:
        connection.execute(sa.update(of).where(of.c.id == one.id).values(progress=json.dumps(progress)))
        _tell(connection, one.number, PROGRESS, progress)
        mine = sa.and_(events.c.job == one.number, events.c.kind == PROGRESS)
        oldest_kept = (
            sa.select(events.c.number)
            .where(mine)
            .order_by(events.c.number.desc())
            .offset(PROGRESS_KEPT)
            .limit(1)
        )
        last = connection.execute(oldest_kept).scalar()
        if last is not None:
            connection.execute(sa.delete(events).where(mine, events.c.number <= last))


def events(store: Reader, one: Job, after: int = 0, limit: int = EVENTS_AT_ONCE) -> list[JobEvent]:
    """The events of a job after one of them, in order."""
    of = tables.job_events.c
    wanted = sa.select(tables.job_events).where(of.job == one.number, of.number > after)
    with store.reading() as connection:
        found = connection.execute(wanted.order_by(of.number).limit(limit)).all()
    return [JobEvent(row.number, row.kind, json.loads(row.said), row.at) for row in found]


def _tell(connection: sa.Connection, number: int, kind: str, said: Mapping[str, Any]) -> None:
    row = {"job": number, "kind": kind, "said": json.dumps(dict(said)), "at": utc_now()}
    connection.execute(sa.insert(tables.job_events).values(**row))


def _read(store: Reader, wanted: sa.Select[Any]) -> list[Job]:
    with store.reading() as connection:
        return [_job(row) for row in connection.execute(wanted).all()]


def _job(row: sa.Row[Any]) -> Job:
    told = dict(row._mapping)
    return Job(**told | {name: json.loads(told[name]) for name in _AS_JSON})
