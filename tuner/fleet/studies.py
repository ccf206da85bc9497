"""What a worker's study process does for orders: finds the problem and the database, runs slices and finals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.declare.catalogue import Catalogue
from tuner.devices.detect import DetectedDevice
from tuner.errors import EnvironmentTrouble, InputError, Interrupted, TunerError
from tuner.fleet.orders import Answer, Database, Order
from tuner.night.standing import kernels_of, study_of
from tuner.night.work import Work
from tuner.store import Store
from tuner.store.claims import PatientStore, patiently

if TYPE_CHECKING:
    from tuner.night.night import Stage, View


class Studies:
    """The studies of one device, one at a time; records go into the coordinator's database."""

    def __init__(
        self,
        found: DetectedDevice,
        url: str,
        view: View,
        waiting: Callable[[], None],
        made: Callable[[Store], Stage] | None = None,
    ) -> None:
        """Begins without a database.

        Args:
            found: The device.
            url: How this machine reaches the database, if the coordinator's URL does not serve here.
            view: Shows the progress of each study.
            waiting: Called while the database is away.
            made: Makes what runs the work; by default a stage with the device.
        """
        self._found, self._url, self._waiting = found, url, waiting
        self._made = made or (lambda store: _stage(store, found, view))
        self._known: dict[str, Catalogue] = {}
        self._database: Database | None = None
        self._store: Any = None
        self.stage: Any = None

    def open(self, database: Database) -> None:
        """Opens a database, unless it is open.

        Raises:
            InputError: The worker's own URL leads to another database than the coordinator's.
            StoreTrouble: It cannot be used.
        """
        if database == self._database:
            return
        self.close()
        url = self._url or database.url
        self._store = patiently(lambda: PatientStore.open(url), waiting=self._waiting)
        self._store.waiting = self._waiting
        if self._store.identity != database.identity:
            raise InputError(
                "a worker writes into the coordinator's database, and its own --db is another; give both "
                "the same"
            )
        self._database = database
        self.stage = self._made(self._store)

    def work(self, order: Order) -> Answer:
        """Does a piece of work; a study or device that fails is an answer.

        Raises:
            StoreTrouble: The database cannot be opened.
        """
        begun_s = time.monotonic()
        self.open(order.database)
        self._store.claim = order.claim
        trouble = ""
        try:
            done = self.stage.run(self._work_of(order))
        except Interrupted as error:
            done = replace(self.stage.done, lost=str(error), cut=True)
            self.stage.close()
        except TunerError as error:
            done, trouble = replace(self.stage.done, lost=str(error)), str(error)
            self.stage.close()
        return Answer(order.claim, done, trouble, time.monotonic() - begun_s)

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
        self.stage = self._store = self._database = None


def _stage(store: Store, found: DetectedDevice, view: View) -> Stage:
    """A stage with the device; what searches import takes a second that a worker without one need not spend."""
    from tuner.night.night import Stage

    return Stage(store, (found,), view)
