"""Coordinates the fleet of one database: connects to a cluster, and runs nights and jobs on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.fleet.clusters import Cluster, ClusterRequest, connected
from tuner.fleet.night import FleetNight
from tuner.night.plan.items import Plan
from tuner.store import Store
from tuner.store.claims import Claims
from tuner.study.locks import Occupancy

#: Stands for all devices of a fleet in the lock beside a database.
_FLEET = DeviceInfo("a fleet", "fleet", uuid="fleet")


@dataclass(frozen=True)
class Fleet:
    """A cluster and the database of its records. It runs plans, one after the other.

    Attributes:
        cluster: The cluster.
        store: The database.
        url: The database's URL for workers.
        hold: Makes sure that this is still the only coordinator.
        anywhere: True if workers on other machines may take part.
    """

    cluster: Cluster
    store: Store
    url: str
    anywhere: bool
    hold: Callable[[], None]

    def night(self, plan: Plan, seed: int, deadline_s: float | None, **more: Any) -> FleetNight:
        """Makes a night: `run` tunes it, in any thread, `snapshot` shows it, `stopped` ends it from outside.

        Args:
            plan: The plan; a job of one problem is a plan of one item.
            seed: Seed of the searches.
            deadline_s: `time.monotonic` at which to stop; None without a deadline.
            more: More attributes of `FleetNight`.
        """
        client, url = self.cluster.client, self.url
        return FleetNight(
            plan, self.store, client, seed, deadline_s, url, anywhere=self.anywhere, hold=self.hold, **more
        )


@contextlib.contextmanager
def coordinating(store: Store, url: str) -> Iterator[Callable[[], None]]:
    """Keeps other coordinators of this database out while the block runs.

    Raises:
        LockedByAnother: Another coordinator works with it; the message names it.
        EnvironmentTrouble: The lock beside the database cannot be written.
    """
    with Occupancy(url, _FLEET, "a fleet"), Claims(store).coordinating() as hold:
        yield hold


def absolute_url(url: str) -> str:
    """A database's URL that holds in any folder."""
    prefix = "sqlite:///"
    return f"{prefix}{Path(url.removeprefix(prefix)).absolute()}" if url.startswith(prefix) else url


@contextlib.contextmanager
def opened(url: str, request: ClusterRequest) -> Iterator[Fleet]:
    """Opens a database and a cluster; both are let go at the end of the block.

    Args:
        url: The database.
        request: The cluster.

    Raises:
        InputError: It is no cluster.
        EnvironmentTrouble: The cluster does not answer.
        StoreTrouble: The database cannot be used.
        LockedByAnother: Another coordinator works with it.
    """
    with Store.open(url) as store, coordinating(store, url) as hold, connected(request) as cluster:
        yield Fleet(cluster, store, absolute_url(url), url.startswith("postgresql"), hold)
