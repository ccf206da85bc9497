"""Snapshots of a database: the present one, noticed in the background, and earlier ones on demand."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.errors import NothingFound, StoreTrouble, TunerError
from tuner.lookup.asking import parse_device
from tuner.requests.content import Content, stored_models
from tuner.requests.questions import Asked
from tuner.requests.views import Touched, View, retraction_json
from tuner.store import Store, retracting, snapshots

#: Seconds between two looks at database and files.
LOOK_EVERY_S = 0.5
#: A snapshot is followed by the next after this many times as long as it took to open, at the least; but a
#: rollback answers within 5 s.
REST, MOST_REST_S = 10.0, 3.5
#: Earlier snapshots that are kept open.
KEPT_OPEN = 3


class Shelf:
    """Opens snapshots; safe to use from several threads.

    The present snapshot is replaced by `refresh`, which a thread of its own calls: a question never waits for
    it, and costs no look at the database.

    Attributes:
        present: The present snapshot.
        looked_s: When the database was last looked at with success, by `time.monotonic`.
    """

    def __init__(
        self, store: Store, url: str, *, published: Path | None = None, kept: Path | None = None,
        here: Callable[[str], DeviceInfo | str] = parse_device,
    ) -> None:  # fmt: skip
        """Opens the present snapshot.

        Args:
            store: The database, for writing.
            url: Its URL.
            published: Folder of published results; the project's own when None.
            kept: Folder for copies of published results; one in the cache when None.
            here: What the name of a device means on this machine.

        Raises:
            StoreTrouble: The database cannot be used.
        """
        self._store, self._url, self._here = store, url, here
        self._content = Content(store, published, kept)
        self._earlier: OrderedDict[int, View] = OrderedDict()
        self._lock = threading.Lock()
        self._rest_until_s = 0.0
        self.looked_s = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.present = self._open(self._take(), self._url)
        self.present.warm(layouts=1)

    def start(self) -> None:
        """Starts looking for changes."""
        self._thread = threading.Thread(target=self._watch, name="snapshots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops looking, and ends all connections but the store's own."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for view in (*self._earlier.values(), self.present):
            view.close()

    def view(self, number: int | None = None) -> View:
        """A snapshot; the present one without a number.

        Raises:
            NothingFound: There is none of that number, or its published results are no longer on this machine.
        """
        present = self.present
        if number is None or number == present.manifest.number:
            return present
        with self._lock:
            if number in self._earlier:
                self._earlier.move_to_end(number)
                return self._earlier[number]
            manifest = snapshots.manifest(self._store, number)
            if manifest is None:
                raise NothingFound(
                    f"a snapshot has a number of this database, 1 to {present.manifest.number}, got {number}; "
                    "an answer without one tells the present number"
                )
            found = self._earlier[number] = self._open(manifest)
            while len(self._earlier) > KEPT_OPEN:
                self._earlier.popitem(last=False)[1].close()
            return found

    def refresh(self) -> bool:
        """Looks for changes, and opens the next snapshot if there are any.

        Returns:
            True if there is a new snapshot.

        Raises:
            StoreTrouble: The database cannot be used; the present snapshot stays.
        """
        before = self.present
        now = snapshots.positions(self._store), self._content.published(), self._content.code()
        self.looked_s = time.monotonic()
        manifest = before.manifest
        if now == (manifest.positions, manifest.published, manifest.code):
            return False
        begun_s = time.monotonic()
        after = self._open(self._take(), self._url)
        touched = self._touched(before, after)
        if touched is not None:
            after.inherit(before, touched)
        after.warm()
        self.present = after
        with self._lock:
            self._earlier[manifest.number] = before
            while len(self._earlier) > KEPT_OPEN:
                self._earlier.popitem(last=False)[1].close()
        now_s = time.monotonic()
        self._rest_until_s = now_s + min(REST * (now_s - begun_s), MOST_REST_S)
        return True

    def retracted(self, view: View, asked: Asked) -> str:
        """What marks an answer of an earlier snapshot whose record was retracted since; else empty."""
        now = self.present.manifest.positions["tuner_retractions"]
        champion = view.body(asked).answer.champion
        if champion is None or now == view.manifest.positions.get("tuner_retractions"):
            return ""
        library = [champion.baseline.id] if champion.baseline else []
        named = [champion.id, champion.record.id, *library]
        gone = retracting.retracted(self.present.store, named)
        for each in named:
            if each in gone:
                return retraction_json(each, gone[each].made_at, gone[each].reason)
        return ""

    def _take(self) -> snapshots.Manifest:
        return snapshots.take(self._store, self._content.published(), self._content.code())

    def _open(self, manifest: snapshots.Manifest, demand: str = "") -> View:
        published = self._content.copy_of(manifest.published)
        if published is None:
            raise NothingFound(
                f"snapshot {manifest.number} rests on published results that are not kept on this machine (the "
                "cache was cleared, or another machine took it); ask without a snapshot"
            )
        code = self._content.code()
        differs = "" if manifest.code == code else f"the code is {code} and was {manifest.code}"
        store = snapshots.as_of(self._url, manifest)
        store.kept_models = stored_models(published)
        try:
            store.warm()
        except BaseException:
            store.close()
            raise
        return View(manifest, store, published, self._here, differs, demand)

    def _touched(self, before: View, after: View) -> Touched | None:
        """What has come since; None if more than records, champions, and rulings on those of a problem."""
        then, now = before.manifest, after.manifest
        same = (then.published, then.code) == (now.published, now.code)
        others = ("tuner_retractions", "tuner_models")
        if not same or any(then.positions.get(name) != now.positions.get(name) for name in others):
            return None
        if not _only_strangers(before.snapshot.devices(), after.snapshot.devices()):
            return None
        came = snapshots.problems_since(after.store, then.positions)
        if came.ruled_for_all:
            return None
        return Touched(came.recorded, came.crowned)

    def _watch(self) -> None:
        complained = ""
        self.present.warm()
        while not self._stopped.wait(LOOK_EVERY_S):
            if time.monotonic() < self._rest_until_s:
                continue
            try:
                self.refresh()
                complained = ""
            except (TunerError, OSError) as error:
                if not isinstance(error, StoreTrouble) or str(error) != complained:
                    complained = str(error)
                    logging.getLogger(__name__).warning("the last snapshot goes on answering: %s", error)


def _only_strangers(before: Sequence[DeviceInfo], after: Sequence[DeviceInfo]) -> bool:
    """True if no device that came has name or architecture of an earlier one, and so changes no answer."""
    known = {(each.kind, each.name) for each in before} | {(each.kind, each.architecture) for each in before}
    came = [each for each in after if each not in before]
    return all(each in after for each in before) and not any(
        (each.kind, each.name) in known or (each.kind, each.architecture) in known for each in came
    )
