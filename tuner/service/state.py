"""What a server holds while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import find, own_devices
from tuner.service.metrics import Metrics
from tuner.service.pool import DevicePool
from tuner.service.settings import Settings
from tuner.service.snapshots import SnapshotCache
from tuner.service.supervisor import JobSupervisor
from tuner.service.tokens import LoginSessions, Throttle, TokenRegistry
from tuner.store import Store

#: Seconds that a write waits for another process.
PATIENCE_S = 10.0
#: Threads that answer from records, that answer by models or many questions, and that do other work.
QUICK, DEEP, WORKING = 2, 1, 8


@dataclass
class Service:
    """What a server holds.

    Attributes:
        settings: How it runs.
        store: The database, for writing.
        cache: Snapshots of it.
        registry: Tokens.
        throttle: Addresses that present wrong tokens.
        sessions: Browsers that are logged in.
        pool: Devices for jobs.
        supervisor: Runs the jobs; None where it runs none.
        metrics: What is counted.
        quick: Limits the threads that answer from records.
        deep: Limits the threads that answer by models, or many questions of one request.
        working: Limits the threads that do other work.
        taking: Records are taken in one stream after the other.
    """

    settings: Settings
    store: Store
    cache: SnapshotCache
    registry: TokenRegistry
    throttle: Throttle
    sessions: LoginSessions
    pool: DevicePool
    supervisor: JobSupervisor | None
    metrics: Metrics
    quick: anyio.CapacityLimiter
    deep: anyio.CapacityLimiter
    working: anyio.CapacityLimiter
    taking: anyio.Semaphore

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, settings: Settings, *, published: Path | None = None, folder: Path | None = None
    ) -> Iterator[Service]:
        """Opens the database, and starts the threads that watch it.

        Args:
            settings: How the server runs.
            published: Folder of published results; the project's own when None.
            folder: Folder for copies of published results and for jobs; one in the cache when None.

        Raises:
            StoreTrouble: The database cannot be used.
            InputError: A device is named wrongly, or the settings would let strangers in.
        """
        found = tuple(map(find, settings.devices)) or own_devices()
        cluster = settings.cluster
        if cluster is not None:
            cluster.check(settings.db)
            cluster = replace(cluster, found=found) if cluster.is_local else cluster
        pool = DevicePool.of(found, cluster)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(Store.open(settings.db, patience_s=PATIENCE_S))
            registry = TokenRegistry(store, settings.local_admin)
            settings.check(has_tokens=not registry.is_open)
            kept = folder / "published" if folder else None
            cache = SnapshotCache(store, settings.db, published=published, kept=kept, here=_Here(pool))
            stack.callback(cache.close)
            stack.callback(registry.close)
            supervisor = None
            if settings.jobs:
                supervisor = JobSupervisor(store, settings.db, pool, folder / "jobs" if folder else None)
                stack.callback(supervisor.close)
                supervisor.start()
            cache.start()
            registry.start()
            yield cls(
                settings, store, cache, registry, Throttle(), LoginSessions(), pool, supervisor,
                Metrics(store, cache),
                anyio.CapacityLimiter(QUICK), anyio.CapacityLimiter(DEEP), anyio.CapacityLimiter(WORKING),
                anyio.Semaphore(1),
            )  # fmt: skip


@dataclass(frozen=True)
class _Here:
    """What the name of a device means on this node: no name leads to a file."""

    pool: DevicePool

    def __call__(self, text: str) -> DeviceInfo | str:
        """The node's own device of that spec or name, or the text, which may name one in the records."""
        own = self.pool.devices
        if not text and own:
            return next(iter(own.values()))[0].info
        for spec, found in own.items():
            if text == spec or text.casefold() == found[0].info.name.casefold():
                return found[0].info
        return text
