"""Rows of jobs, and of what happened to them.

A job is its row. ``asked`` is what was submitted, as `tuner.service.job_queue` checked it, and ``same`` its
digest: equal unfinished jobs are one. ``progress`` is what its process told last, ``report`` what it printed in
the end. ``why`` says why it waits, stopped or failed. Times are ISO 8601, UTC; empty before.
"""

from collections.abc import Collection, Sequence
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

JobRow = sa.Row[Any]
_OF = tables.jobs.c


def submit(store: Store, same: str, priority: int, **job: Any) -> tuple[JobRow, bool]:
    """Stores a job, unless an equal one is unfinished, whose priority it may raise.

    Args:
        store: The store.
        same: Equal for equal jobs.
        priority: The higher, the earlier among those of one submitter.
        job: The columns ``asked``, ``node``, ``submitter``, ``device`` and ``deadline``.

    Returns:
        The job, or the equal one; and whether it is new.
    """
    empty = dict.fromkeys(("why", "started_at", "ended_at"), "")
    row: dict[str, Any] = {"id": new_id(), "state": QUEUED, "process": {}, "progress": {}, "starts": 0}
    row |= {"report": None, "submitted_at": utc_now(), **empty}
    with store.writing() as connection:
        raised = sa.update(tables.jobs).where(_OF.same == same).returning(tables.jobs)
        higher = sa.case((_OF.priority < priority, priority), else_=_OF.priority)
        if (there := connection.execute(raised.values(priority=higher)).one_or_none()) is not None:
            return there, False
        insert = sa.insert(tables.jobs).values(**row, **job, same=same, priority=priority)
        added = connection.execute(insert.returning(tables.jobs)).one()
        _add_event(connection, added.number, QUEUED, "")
        return added, True


def job(store: Reader, job_id: str) -> JobRow | None:
    """The job of an id; None if there is none.

    Raises:
        InputError: It is not a UUID.
    """
    return next(iter(store.rows(sa.select(tables.jobs).where(_OF.id == checked_id(job_id)))), None)


def unfinished(store: Reader, node: str) -> Sequence[JobRow]:
    """The jobs of a node that have not ended, in the order submitted."""
    here = sa.select(tables.jobs).where(_OF.state.in_(UNFINISHED), _OF.node == node)
    return store.rows(here.order_by(_OF.number))


def latest(
    store: Reader, states: Sequence[str], limit: int, before: int = 0, submitter: str = ""
) -> Sequence[JobRow]:
    """The jobs of some states, or of all, the latest first.

    Args:
        store: The store.
        states: Of these states; of all if empty.
        limit: How many.
        before: Only rows before this number; 0 for the latest.
        submitter: Only of this one; of all if empty.
    """
    wanted = sa.select(tables.jobs).where(_OF.state.in_(states or STATES))
    wanted = wanted.where(_OF.number < before) if before else wanted
    wanted = wanted.where(_OF.submitter == submitter) if submitter else wanted
    return store.rows(wanted.order_by(_OF.number.desc()).limit(limit))


def counts(store: Reader) -> dict[str, int]:
    """State -> number of jobs."""
    counted = sa.select(_OF.state, sa.func.count()).group_by(_OF.state)
    return dict.fromkeys(STATES, 0) | dict(map(tuple, store.rows(counted)))


def last_starts(store: Reader, node: str) -> dict[str, str]:
    """Submitter -> when a job of theirs was last started on a node."""
    started = sa.select(_OF.submitter, sa.func.max(_OF.started_at)).where(_OF.node == node)
    return dict(map(tuple, store.rows(started.group_by(_OF.submitter))))


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
            _add_event(connection, number, state, why)
    return number is not None


def note(store: Store, job: JobRow, **columns: Any) -> None:
    """Sets columns of a job without an event, unless its state has changed since."""
    same = sa.update(tables.jobs).where(_OF.number == job.number, _OF.state == job.state)
    with store.writing() as connection:
        connection.execute(same.values(**columns))


def events(store: Reader, job: JobRow, after: int = 0) -> Sequence[sa.Row[Any]]:
    """The changes of a job's state after one of them, in order: ``number``, ``kind``, ``said`` and ``at``."""
    of = tables.job_events.c
    later = sa.select(tables.job_events).where(of.job == job.number, of.number > after)
    return store.rows(later.order_by(of.number))


def _add_event(connection: sa.Connection, number: int, kind: str, why: str) -> None:
    row = {"job": number, "kind": kind, "said": {"why": why} if why else {}, "at": utc_now()}
    connection.execute(sa.insert(tables.job_events).values(**row))
