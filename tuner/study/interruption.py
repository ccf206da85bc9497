"""Handles Ctrl-C and SIGTERM in a study."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from tuner.errors import Interrupted

INTERRUPTED = "interrupted; every finished trial is kept, and the same command continues"


class Stoppable(Protocol):
    """A search that can be asked to end."""

    @property
    def stop(self) -> str:
        """Reason why it ended or will end; empty if it goes on."""
        ...

    def stop_because(self, why: str) -> None:
        """Makes it end after the current trials."""
        ...


class Interruption:
    """The first Ctrl-C or SIGTERM ends a search in an orderly way, the second at once."""

    def __init__(self) -> None:
        """Begins outside of any search, so a signal ends the block at once."""
        self._search: Stoppable | None = None

    @contextmanager
    def ends(self, search: Stoppable) -> Iterator[None]:
        """While the block runs, the first signal stops this search.

        Raises:
            Interrupted: The search was stopped by a signal, or a second signal came.
        """
        self._search = search
        try:
            yield
        finally:
            self._search = None
        if search.stop == INTERRUPTED:
            raise Interrupted(INTERRUPTED)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals while the block runs.

        In a thread other than the main one it does nothing, because Python allows handlers only in the main
        thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._search is None or self._search.stop == INTERRUPTED:
            raise Interrupted(INTERRUPTED, twice=self._search is not None)
        self._search.stop_because(INTERRUPTED)
