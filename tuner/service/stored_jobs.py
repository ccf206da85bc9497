"""Rows of the service: jobs with their events, tokens, and files that jobs may name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tuner.errors import InputError, NothingFound
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


def submit(store: Store, job: Job) -> tuple[Job, bool]:
    """Stores a job, unless an equal one is unfinished.

    Returns:
        The job, or the equal one; and whether it is new.
    """
    of = tables.jobs
    row = {name: value for name, value in vars(job).items() if name != "number"} | {"submitted_at": utc_now()}
    with store.writing() as connection:
        there = connection.execute(sa.select(of).where(of.c.same == job.same)).one_or_none()
        if there is not None:
            return Job(**there._mapping), False
        added = Job(**connection.execute(sa.insert(of).values(**row).returning(of)).one()._mapping)
        _tell(connection, added.number, QUEUED, {})
        return added, True


def job(store: Reader, job_id: str) -> Job | None:
    """The job of an id; None if there is none.

    Raises:
        InputError: It is not a UUID.
    """
    named = _read(store, sa.select(tables.jobs).where(tables.jobs.c.id == checked_id(job_id)))
    return named[0] if named else None


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
        counted = connection.execute(sa.select(of.state, sa.func.count()).group_by(of.state)).all()
    return dict.fromkeys(STATES, 0) | {str(state): int(count) for state, count in counted}


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
        connection.execute(sa.update(of).where(of.c.id == one.id).values(progress=progress))
        _tell(connection, one.number, PROGRESS, progress)
        mine = sa.and_(events.c.job == one.number, events.c.kind == PROGRESS)
        number = events.c.number
        kept = sa.select(number).where(mine).order_by(number.desc()).limit(PROGRESS_KEPT)
        connection.execute(sa.delete(events).where(mine, number.not_in(kept)))


def events(store: Reader, one: Job, after: int = 0, limit: int = EVENTS_AT_ONCE) -> list[JobEvent]:
    """The events of a job after one of them, in order."""
    of = tables.job_events.c
    wanted = sa.select(tables.job_events).where(of.job == one.number, of.number > after)
    with store.reading() as connection:
        later = connection.execute(wanted.order_by(of.number).limit(limit)).all()
    return [JobEvent(row.number, row.kind, row.said, row.at) for row in later]


def _tell(connection: sa.Connection, number: int, kind: str, said: Mapping[str, Any]) -> None:
    row = {"job": number, "kind": kind, "said": dict(said), "at": utc_now()}
    connection.execute(sa.insert(tables.job_events).values(**row))


def _read(store: Reader, wanted: sa.Select[Any]) -> list[Job]:
    with store.reading() as connection:
        return [Job(**row) for row in connection.execute(wanted).mappings()]


# --- tokens: name, scopes, times, and the digest of the secret ---


@dataclass(frozen=True)
class StoredToken:
    """A token without its secret.

    Attributes:
        name: Whom it was given to.
        digest: SHA-256 of the secret, hexadecimal.
        scopes: What it allows.
        created_at: ISO 8601, UTC.
        expires_at: ISO 8601, UTC.
        revoked_at: ISO 8601, UTC; empty while it is valid.
        used_at: When it was last used, to about a minute; empty if never.
    """

    name: str
    digest: str
    scopes: tuple[str, ...]
    created_at: str
    expires_at: str
    revoked_at: str = ""
    used_at: str = ""

    @property
    def valid(self) -> bool:
        """True if it is neither revoked nor expired."""
        return not self.revoked_at and utc_now() < self.expires_at

    def to_json(self) -> dict[str, Any]:
        """What may be told of it."""
        state = "revoked" if self.revoked_at else "valid" if self.valid else "expired"
        return {
            "name": self.name, "scopes": list(self.scopes), "state": state, "created_at": self.created_at,
            "expires_at": self.expires_at, "revoked_at": self.revoked_at or None,
            "used_at": self.used_at or None,
        }  # fmt: skip


def add_token(store: Store, token: StoredToken) -> None:
    """Stores a token.

    Raises:
        InputError: There is one of that name.
    """
    of = tables.tokens
    row = {**vars(token), "scopes": ",".join(token.scopes)}
    with store.writing() as connection:
        if connection.execute(sa.select(of.c.number).where(of.c.name == token.name)).first():
            raise InputError(
                f"a token has a name of its own, and there is one named {token.name!r} (revoked ones keep "
                f"theirs, for the log); choose another, such as {token.name}-2"
            )
        connection.execute(sa.insert(of).values(**row))


def tokens(store: Reader) -> list[StoredToken]:
    """All tokens, in the order made, revoked and expired ones included."""
    of = tables.tokens
    columns = [of.c[name] for name in StoredToken.__dataclass_fields__]
    with store.reading() as connection:
        stored = connection.execute(sa.select(*columns).order_by(of.c.number)).mappings()
        return [StoredToken(**{**row, "scopes": tuple(row["scopes"].split(","))}) for row in stored]


def revoke_token(store: Store, name: str) -> None:
    """Revokes a token for good.

    Raises:
        NothingFound: None has the name.
    """
    of = tables.tokens
    with store.writing() as connection:
        token = connection.execute(sa.select(of.c.revoked_at).where(of.c.name == name)).one_or_none()
        if token is None:
            raise NothingFound(f"no token is named {name!r}; `tuner token list` shows them")
        if not token.revoked_at:
            connection.execute(sa.update(of).where(of.c.name == name).values(revoked_at=utc_now()))


def note_uses(store: Store, times: dict[str, str]) -> None:
    """Stores when tokens were last used: name -> ISO 8601, UTC."""
    of = tables.tokens
    with store.writing() as connection:
        for name, when in times.items():
            connection.execute(sa.update(of).where(of.c.name == name).values(used_at=when))


# --- files that jobs may name ---


@dataclass(frozen=True)
class AllowedFile:
    """A file that jobs may name.

    Attributes:
        path: The file, absolute.
        digest: SHA-256 over all files that it is made of.
        covers: These files: itself, the modules beside it, the sources of its kernels.
        allowed_at: ISO 8601, UTC.
    """

    path: str
    digest: str
    covers: tuple[str, ...]
    allowed_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "file": self.path, "digest": self.digest, "covers": list(self.covers),
            "allowed_at": self.allowed_at,
        }  # fmt: skip


def allow(store: Store, node: str, file: AllowedFile) -> None:
    """Allows a file on a node, in place of an earlier state of it."""
    of = tables.allowed_files
    row = {**vars(file), "node": node, "allowed_at": utc_now()}
    with store.writing() as connection:
        connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == file.path))
        connection.execute(sa.insert(of).values(**row))


def disallow(store: Store, node: str, path: str) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    of = tables.allowed_files
    with store.writing() as connection:
        gone = connection.execute(sa.delete(of).where(of.c.node == node, of.c.path == path)).rowcount
    if not gone:
        raise NothingFound(f"{path} is not allowed here; `tuner allow --list` shows what is")


def allowed_files(store: Reader, node: str) -> list[AllowedFile]:
    """What is allowed on a node, by path."""
    of = tables.allowed_files
    with store.reading() as connection:
        allowed = connection.execute(sa.select(of).where(of.c.node == node).order_by(of.c.path)).all()
    return [AllowedFile(row.path, row.digest, tuple(row.covers), row.allowed_at) for row in allowed]
