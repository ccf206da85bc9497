"""Has running callables look again when an operator goes back to another champion: within a minute.

A call costs too little to look into a database each time. A thread looks now and then at one number of each
database that was asked, and has everything that was prepared forgotten if a crown log has grown. The thread
ends with its process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tuner.errors import TunerError
from tuner.lookup.asking import database_url, opened

#: Seconds between two looks.
LOOK_EVERY_S = 20.0


class Rereading:
    """The thread of one process.

    Attributes:
        forget: Called if a crown log has grown.
    """

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        """Begins nothing yet.

        Args:
            every_s: Seconds between two looks.
        """
        self.forget: Callable[[], None] = lambda: None
        self._every_s = every_s
        self._seen: dict[str, int | None] = {}
        self._process = 0

    def begin(self) -> None:
        """Watches the database that is asked now; starts the thread if this process has none yet.

        Raises:
            InputError: A file that may name the database cannot be read.
        """
        url = database_url()
        if url not in self._seen:
            self._seen[url] = None
            self._look(url)
        if self._process != os.getpid():
            self._process = os.getpid()
            threading.Thread(target=self._go_on, name="tuner-crowns", daemon=True).start()

    def _go_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Looks once; a database that cannot be read is looked at again later."""
        for url in list(self._seen):
            self._look(url)

    def _look(self, url: str) -> None:
        try:
            newest = _newest(url)
        except (TunerError, OSError):
            return
        seen, self._seen[url] = self._seen[url], newest
        if seen is not None and newest != seen:
            self.forget()


def _newest(url: str) -> int:
    """Number of the latest entry that changes who answers; 0 without a database."""
    store = opened(url, patience_s=1.0)
    if store is None:
        return 0
    with store:
        return store.rulings.newest()
