"""What a worker's study process does for orders: finds the problem and the database, runs slices and finals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.devices.detect import DetectedDevice
from tuner.errors import EnvironmentTrouble, InputError, Interrupted, TunerError
from tuner.fleet.orders import Answer, Database, Handed, Order
from tuner.fleet.own_file import Outbox
from tuner.night.standing import kernels_of, study_of
from tuner.night.work import Done, Work
from tuner.store import Store
from tuner.store.patience import PatientStore, patiently

if TYPE_CHECKING:
    from tuner.night.night import Stage, View

#: Seconds between two hand-overs of records during a slice.
HAND_OVER_EVERY_S = 3.0


class Studies:
    """The studies of one device, one at a time.

    Attributes:
        outbox: What is yet to be handed over; None if records go into the coordinator's database.
    """

    def __init__(
        self,
        found: DetectedDevice,
        folder: Path,
        url: str,
        view: View,
        waiting: Callable[[], None],
        made: Callable[[Store], Stage] | None = None,
    ) -> None:
        """Begins without a database.

        Args:
            found: The device.
            folder: Of the worker's own files.
            url: How this machine reaches the database, if the coordinator's URL does not serve here.
            view: Shows the progress of each study.
            waiting: Called while the database is away.
            made: Makes what runs the work; by default a stage with the device.
        """
        self.outbox: Outbox | None = None
        self._found, self._folder, self._url, self._waiting = found, folder, url, waiting
        self._made = made or (lambda store: _stage(store, found, view))
        self._known: dict[str, Catalogue] = {}
        self._database: Database | None = None
        self._store: Any = None
        self.stage: Any = None
        self._handed_s, self._sent = 0.0, 0

    def open(self, database: Database) -> None:
        """Opens a database, unless it is open.

        Raises:
            InputError: The worker's own URL leads to another database than the coordinator's.
            StoreTrouble: It cannot be used.
        """
        if database == self._database:
            return
        self.close()
        if database.url:
            url = self._url or database.url
            self._store = patiently(lambda: PatientStore.open(url), waiting=self._waiting)
            self._store.waiting = self._waiting
            if self._store.identity != database.identity:
                raise InputError(
                    "a worker writes into the coordinator's database, and its own --db is another; give both "
                    "the same"
                )
        else:
            board = self._found.info.uuid or self._found.info.name
            self.outbox = Outbox(self._folder / database.identity / board.replace("/", "-"))
            self._store = self.outbox.store
        self._database = database
        self.stage = self._made(self._store)

    def work(self, order: Order) -> Answer:
        """Does a piece of work; a study or device that fails is an answer.

        Raises:
            StoreTrouble: The database cannot be opened.
        """
        begun_s = time.monotonic()
        self.open(order.database)
        if self.outbox is None:
            self._store.claim = order.claim
        else:
            self.outbox.acknowledge(order.stored)
            self._sent, self._handed_s = self.outbox.stored, begun_s
            self.outbox.forget(order.taken)
            if order.lines:
                self.outbox.store.take(order.lines)
        trouble = ""
        try:
            done = self.stage.run(self._work_of(order))
        except Interrupted as error:
            done = replace(self.stage.done, lost=str(error), cut=True)
            self.stage.close()
        except TunerError as error:
            done, trouble = replace(self.stage.done, lost=str(error)), str(error)
            self.stage.close()
        return self._handed_in(order, done, trouble, time.monotonic() - begun_s)

    def _handed_in(self, order: Order, done: Done, trouble: str, seconds: float) -> Answer:
        champion = done.finished.champion if done.finished else None
        answer = Answer(order.claim, done, kept=self.outbox is None, trouble=trouble, seconds=seconds)
        if self.outbox is None:
            return answer
        if champion is not None:
            self.outbox.keep(order.claim, champion)
        return replace(answer, handed=self.outbox.handed(self._found.info.uuid))

    def handed(self) -> Handed | None:
        """Returns what was measured since the last call, every few seconds, in case that this machine is lost.

        The answer has all of it again, since nobody says whether this arrives.
        """
        now_s = time.monotonic()
        if self.outbox is None or now_s - self._handed_s < HAND_OVER_EVERY_S:
            return None
        self._handed_s = now_s
        found = self.outbox.handed(self._found.info.uuid, self._sent)
        self._sent = found.mark if found is not None else self._sent
        return found

    def _work_of(self, order: Order) -> Work:
        """The work by this machine's own files.

        Raises:
            EnvironmentTrouble: Something is not here, or is another than the coordinator's.
        """
        try:
            item = order.item.found(self._known)
            kernels = kernels_of(item, self._found.target)
        except InputError as error:
            raise EnvironmentTrouble(f"a worker's kernels are the coordinator's: {error}") from error
        study = study_of(item, self._found.info, kernels)
        if study != order.study:
            self._known.clear()
            raise EnvironmentTrouble(
                f"a worker's kernels are the coordinator's: there the study is {order.study!r}, here "
                f"{study!r}; use the same files"
            )
        return Work(
            order.name, item, kernels, order.turn, order.parts, order.why, order.seconds, order.finals_s,
            order.library, order.seed, order.sampler, order.storage_url,
        )  # fmt: skip

    def rest(self) -> None:
        """Closes the device, and a study that is open: nobody has asked for anything for a while."""
        if self.stage is not None:
            self.stage.close()

    def close(self) -> None:
        """Ends the study and the connection; what was measured is stored."""
        if self.stage is not None:
            self.stage.close()
        if self._store is not None:
            self._store.close()
        self.outbox = self.stage = self._store = self._database = None


def _stage(store: Store, found: DetectedDevice, view: View) -> Stage:
    """A stage with the device; what searches import takes a second that a worker without one need not spend."""
    from tuner.night.night import Stage

    return Stage(store, (found,), view)
