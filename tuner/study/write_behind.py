"""Stores records in a thread beside measuring, so that devices need not wait for the disk."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tuner.results.record import Record


class WriteBehind:
    """Stores records in order; all waiting ones go into one transaction.

    It works inside ``with`` only, and leaving the block waits until all is stored. On a CPU target the thread
    would disturb timing; with `inline` a record is stored before `put` returns.

    Attributes:
        storing_s: Seconds that storing took in the thread.
    """

    def __init__(self, store: Callable[[list[Record]], object], inline: bool) -> None:
        """Prepares it.

        Args:
            store: Stores records in one transaction; they are on disk when it returns.
            inline: True to store in `put`.
        """
        self._store, self._inline = store, inline
        self._changed = threading.Condition()
        self._waiting: collections.deque[tuple[Record, Callable[[], None]]] = collections.deque()
        self._storing = 0
        self._closed = True
        self._failure: BaseException | None = None
        self.storing_s = 0.0

    @property
    def pending(self) -> int:
        """Records that are not stored yet.

        Raises:
            Exception: What storing raised.
        """
        with self._changed:
            self._check()
            return len(self._waiting) + self._storing

    def put(self, record: Record, stored: Callable[[], None]) -> None:
        """Stores a record, soon.

        Args:
            record: The record to store.
            stored: Called once it is on disk, possibly in another thread.

        Raises:
            Exception: Storing this record or an earlier one raised it.
        """
        if self._inline:
            self._store([record])
            stored()
            return
        with self._changed:
            self._check()
            self._waiting.append((record, stored))
            self._changed.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> WriteBehind:
        """Starts the thread."""
        if not self._inline:
            self._closed = False
            self._thread = threading.Thread(target=self._run, name="write behind", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all is stored; re-raises errors of storing, unless another error is already raised."""
        if self._inline:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if error is None:
            self._check()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            with self._changed:
                self._failure = error

    def _step(self) -> bool:
        """Stores the waiting records; False if there are none and no more will come."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            taken = list(self._waiting)
            self._waiting.clear()
            self._storing = len(taken)
        if not taken:
            return False
        start = time.perf_counter()
        self._store([record for record, _ in taken])
        self.storing_s += time.perf_counter() - start
        for _, stored in taken:
            stored()
        with self._changed:
            self._storing = 0
        return True
