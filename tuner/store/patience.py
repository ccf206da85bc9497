"""A store that waits while its database is away: each call is repeated until it succeeds.

Repeating is safe, since all that is added has a UUID.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import sqlalchemy as sa

from tuner.errors import StoreTrouble
from tuner.results.record import Champion, Record
from tuner.store.claims import FencedStore

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds to wait for a database that is away, between two attempts at first, and at the most.
PATIENCE_S, FIRST_PAUSE_S, LONGEST_PAUSE_S = 1800.0, 0.2, 5.0


def is_away(error: StoreTrouble) -> bool:
    """True if the database could not be reached, as opposed to one that refused."""
    return isinstance(error.__cause__, sa.exc.OperationalError | sa.exc.InterfaceError)


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
            if not is_away(error) or time.monotonic() > until_s:
                raise
            if pause_s == FIRST_PAUSE_S:
                _log.warning("the database is away, and measuring goes on meanwhile: %s", error)
        waiting()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class PatientStore(FencedStore):
    """A `FencedStore` whose reads and writes wait for a database on a server to come back.

    Attributes:
        wait_s: Seconds that each call may wait.
        waiting: Called before each pause, possibly in another thread.
    """

    wait_s = PATIENCE_S

    def waiting(self) -> None:
        """Tells nobody, unless it is replaced."""

    def _until_back(self, call: Callable[[], T]) -> T:
        return patiently(call, self.wait_s, lambda: self.waiting())

    def add(self, records: Record | Iterable[Record]) -> int:
        """See `Store.add`."""
        wanted = [records] if isinstance(records, Record) else list(records)
        return self._until_back(lambda: super(PatientStore, self).add(wanted))

    def crown(self, champions: Champion | Iterable[Champion]) -> int:
        """See `Store.crown`."""
        wanted = [champions] if isinstance(champions, Champion) else list(champions)
        return self._until_back(lambda: super(PatientStore, self).crown(wanted))

    def records(self, **query: Any) -> list[Record]:
        """See `Reader.records`."""
        return self._until_back(lambda: super(PatientStore, self).records(**query))

    def champion(self, *which: Any, **more: Any) -> Champion | None:
        """See `Reader.champion`."""
        return self._until_back(lambda: super(PatientStore, self).champion(*which, **more))

    def champions(self, *which: Any, **more: Any) -> list[Champion]:
        """See `Reader.champions`."""
        return self._until_back(lambda: super(PatientStore, self).champions(*which, **more))
