"""Who may coordinate a database's fleet, and how its workers reach the database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tuner.declare.hardware import DeviceInfo
from tuner.store import Store
from tuner.store.claims import Claims
from tuner.study.locks import Occupancy

#: Stands for all devices of a fleet in the lock beside a database.
_FLEET = DeviceInfo("a fleet", "fleet", uuid="fleet")


@contextlib.contextmanager
def coordinating(store: Store, url: str) -> Iterator[None]:
    """Keeps other coordinators of this database out while the block runs.

    Raises:
        LockedByAnother: Another coordinator works with it; the message names it.
        EnvironmentTrouble: The lock beside the database cannot be written.
    """
    with Occupancy(url, _FLEET, "a night on a cluster"), Claims(store).coordinating():
        yield


def workers_url(url: str, hand_over: bool) -> str:
    """Returns the URL by which workers write into a database; empty if they hand their records over.

    Args:
        url: The coordinator's.
        hand_over: True if they are to hand over in any case.
    """
    return "" if hand_over or not url.startswith("postgresql") else url
