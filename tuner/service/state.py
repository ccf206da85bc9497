"""What a server holds while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import find, own_devices
from tuner.service.job_runner import Runner
from tuner.service.metrics import Metrics
from tuner.service.offer import Offer
from tuner.service.sessions import Sessions
from tuner.service.settings import Settings
from tuner.service.shelf import Shelf
from tuner.service.tokens import Brake, Keeper
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
        shelf: Snapshots of it.
        keeper: Tokens.
        brake: Addresses that present wrong tokens.
        sessions: Browsers that are logged in.
        offer: Devices for jobs.
        runner: Runs the jobs; None where it runs none.
        metrics: What is counted.
        quick: Limits the threads that answer from records.
        deep: Limits the threads that answer by models, or many questions of one request.
        working: Limits the threads that do other work.
        taking: Records are taken in one stream after the other.
    """

    settings: Settings
    store: Store
    shelf: Shelf
    keeper: Keeper
    brake: Brake
    sessions: Sessions
    offer: Offer
    runner: Runner | None
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
        offer = Offer.of(found, cluster)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(Store.open(settings.db, patience_s=PATIENCE_S))
            keeper = Keeper(store, settings.local_admin)
            settings.check(has_tokens=not keeper.is_open)
            kept = folder / "published" if folder else None
            shelf = Shelf(store, settings.db, published=published, kept=kept, here=_Here(offer))
            stack.callback(shelf.close)
            stack.callback(keeper.close)
            runner = None
            if settings.jobs:
                runner = Runner(store, settings.db, offer, folder / "jobs" if folder else None)
                stack.callback(runner.close)
                runner.start()
            shelf.start()
            keeper.start()
            yield cls(
                settings, store, shelf, keeper, Brake(), Sessions(), offer, runner, Metrics(store, shelf),
                anyio.CapacityLimiter(QUICK), anyio.CapacityLimiter(DEEP), anyio.CapacityLimiter(WORKING),
                anyio.Semaphore(1),
            )  # fmt: skip


@dataclass(frozen=True)
class _Here:
    """What the name of a device means on this node: no name leads to a file."""

    offer: Offer

    def __call__(self, text: str) -> DeviceInfo | str:
        """The node's own device of that spec or name, or the text, which may name one in the records."""
        own = self.offer.devices
        if not text and own:
            return next(iter(own.values()))[0].info
        for spec, found in own.items():
            if text == spec or text.casefold() == found[0].info.name.casefold():
                return found[0].info
        return text
