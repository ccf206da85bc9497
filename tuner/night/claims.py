"""Claims: which worker of a fleet works on which study, and whether what it brings still counts.

A claim's number is its fencing token: numbers only grow, and of all claims on a study at most the latest runs.
A worker that was declared dead may come back. Its records are facts and are stored; it may crown no champion,
because the store looks at its claim in the same transaction. No clock decides: times are for people.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, TypeVar

import sqlalchemy as sa

from tuner.errors import LockedByAnother, StoreTrouble
from tuner.results.record import Champion, utc_now
from tuner.store import Store, opening
from tuner.store.tables import claims

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds to wait for a database that is away, between two attempts at first, and at the most.
PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 1800.0, 0.2, 5.0
#: States of a claim: at work; ended well; its worker was declared dead; stopped from outside; the study or the
#: device failed.
RUNNING, DONE, LOST, STOPPED, FAILED = "running", "done", "lost", "stopped", "failed"
#: Takes the lock of coordinators, whose name is a number: it lives as long as the connection that took it.
_LOCK = sa.text(f"SELECT pg_try_advisory_lock({0x666C656574})")


class Claims:
    """The claims in a database. One coordinator at a time writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take(self, night: str, study: str, what: str, worker: str, device: str, board: str) -> int:
        """Gives a study to a worker, and takes it away from any other.

        Returns:
            The claim's number.

        Raises:
            StoreTrouble: The database cannot be written.
        """
        now = utc_now()
        row = {
            "night": night, "study": study, "what": what, "worker": worker, "device": device, "board": board,
            "state": RUNNING, "why": "", "trials": 0, "started_at": now, "progressed_at": now, "ended_at": "",
        }  # fmt: skip
        others = sa.and_(claims.c.study == study, claims.c.state == RUNNING)
        with self._store.writing() as connection:
            self._end(connection, others, LOST, f"the study was given to {worker}")
            (number,) = connection.execute(claims.insert().values(**row)).inserted_primary_key or (0,)
            return int(number)

    def end(self, number: int, state: str, why: str = "", trials: int | None = None) -> bool:
        """Ends a claim; False if it had ended before, so that what it brings does not count."""
        with self._store.writing() as connection:
            return self._end(connection, claims.c.number == number, state, why, trials) == 1

    def abandon(self, why: str, night: str | None = None) -> int:
        """Ends the running claims of a night, or all that an earlier coordinator left behind; counts them."""
        with self._store.writing() as connection:
            return self._end(connection, sa.true() if night is None else claims.c.night == night, LOST, why)

    def of(self, night: str | None = None) -> Sequence[sa.Row[Any]]:
        """Returns the claims of a night, or all, as rows of the table, in order of their numbers."""
        wanted = sa.select(*claims.c).order_by(claims.c.number)
        if night is not None:
            wanted = wanted.where(claims.c.night == night)
        return self._store.rows(wanted)

    @contextlib.contextmanager
    def coordinating(self) -> Iterator[Callable[[], None]]:
        """Keeps other coordinators out while the block runs, on a server; a file has a lock beside it.

        The lock ends with this process in any case, and with a connection that breaks.

        Yields:
            Checks that the lock is still held, and takes it again after the server was restarted. It raises
            `LockedByAnother` if another coordinator came first, and `StoreTrouble` while the server is away.

        Raises:
            LockedByAnother: Another coordinator works with this database.
        """
        if self._store._engine.dialect.name != "postgresql":
            yield lambda: None
            return
        where = self._store._where
        with opening.explained(where):
            connection = self._store._engine.connect()

        def is_held() -> bool:
            """Takes the lock, which this connection may have; one that broke is made anew."""
            connection.rollback()
            return bool(connection.execute(_LOCK).scalar_one())

        def hold() -> None:
            with opening.explained(where):
                try:
                    held = is_held()
                except sa.exc.DBAPIError:
                    held = is_held()
                connection.commit()
            if not held:
                raise LockedByAnother(
                    f"one coordinator at a time works with a database, and another works with {where}; wait "
                    f"for it or stop it, or give it this plan as a job"
                )

        try:
            hold()
            yield hold
        finally:
            # A server takes a moment to see that a connection was closed, and the pool must not keep this one.
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.rollback()
                connection.execute(sa.text("SELECT pg_advisory_unlock_all()"))
            connection.invalidate()
            connection.close()

    @staticmethod
    def _end(
        connection: sa.Connection, which: sa.ColumnElement[bool], state: str, why: str,
        trials: int | None = None,
    ) -> int:  # fmt: skip
        now = utc_now()
        values: dict[str, object] = {"state": state, "why": why, "ended_at": now}
        if trials is not None:
            values |= {"trials": trials, "progressed_at": now}
        running = claims.update().where(which, claims.c.state == RUNNING)
        return int(connection.execute(running.values(**values)).rowcount)


class FencedStore(Store):
    """A store that crowns only while a claim runs, and dates champions by one clock; records count in any case.

    Attributes:
        claim: Number of the claim under which this process works; 0 for none.
    """

    claim: int = 0

    def _crownable(self, connection: sa.Connection, champions: Sequence[Champion]) -> Sequence[Champion]:
        """None without a claim that runs; dated by the server's clock: those of workers may be apart."""
        if not (champions and self.claim and _holds(connection, self.claim)):
            return []
        if connection.dialect.name != "postgresql":
            return champions
        now = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
        crowned_at = now.astimezone(UTC).isoformat(timespec="microseconds")
        return [replace(champion, crowned_at=crowned_at) for champion in champions]


def _holds(connection: sa.Connection, number: int) -> bool:
    # On a server the row stays as it is until the champion is stored; a SQLite file has one writer at a time.
    wanted = sa.select(claims.c.state).where(claims.c.number == number)
    if connection.dialect.name == "postgresql":
        wanted = wanted.with_for_update()
    return connection.execute(wanted).scalar() == RUNNING


# --- a database that is away ---------------------------


def patiently(
    call: Callable[[], T], patience_s: float = PATIENCE_S, waiting: Callable[[], None] = lambda: None
) -> T:
    """Repeats a call while the database is away.

    Args:
        call: What to do; it may be done twice.
        patience_s: Seconds after which it fails.
        waiting: Called before each pause.

    Raises:
        StoreTrouble: The database refused, or stayed away.
    """
    until_s, pause_s = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return call()
        except StoreTrouble as error:
            is_away = isinstance(error.__cause__, sa.exc.OperationalError | sa.exc.InterfaceError)
            if not is_away or time.monotonic() > until_s:
                raise
            if pause_s == FIRST_PAUSE_S:
                _log.warning("the database is away, and measuring goes on meanwhile: %s", error)
        waiting()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _waiting(call: Callable[..., T]) -> Callable[..., T]:
    """A method of a `PatientStore` that waits for the database; an iterator is read once."""

    def called(self: PatientStore, *which: Any, **more: Any) -> T:
        given = [list(value) if isinstance(value, Iterator) else value for value in which]
        return patiently(lambda: call(self, *given, **more), self.wait_s, lambda: self.waiting())

    return called


class PatientStore(FencedStore):
    """A `FencedStore` whose reads and writes wait for a database on a server to come back.

    Attributes:
        wait_s: Seconds that each call may wait.
        waiting: Called before each pause, possibly in another thread.
    """

    wait_s = PATIENCE_S
    add = _waiting(FencedStore.add)
    records = _waiting(FencedStore.records)
    champion = _waiting(FencedStore.champion)
    champions = _waiting(FencedStore.champions)

    def waiting(self) -> None:
        """Tells nobody, unless it is replaced."""
