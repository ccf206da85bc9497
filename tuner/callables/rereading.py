"""Has running callables look again when an operator goes back to another champion: within a minute.

A call costs too little to look into a database each time. A thread looks now and then at one number, and has
everything that was prepared forgotten if the crown log has grown. The thread ends with its process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tuner.errors import TunerError
from tuner.lookup.asking import opened

#: Seconds between two looks.
LOOK_EVERY_S = 20.0


class Rereading:
    """The thread of one process.

    Attributes:
        forget: Called if the crown log has grown.
    """

    def __init__(self, every_s: float = LOOK_EVERY_S) -> None:
        """Begins nothing yet.

        Args:
            every_s: Seconds between two looks.
        """
        self.forget: Callable[[], None] = lambda: None
        self._every_s = every_s
        self._seen: int | None = None
        self._process = 0

    def begin(self) -> None:
        """Starts the thread if this process has none yet."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self.look()
        threading.Thread(target=self._go_on, name="tuner-crowns", daemon=True).start()

    def _go_on(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Looks once; a database that cannot be read is looked at again later."""
        try:
            newest = _newest()
        except (TunerError, OSError):
            return
        if self._seen is not None and newest != self._seen:
            self.forget()
        self._seen = newest


def _newest() -> int:
    """Number of the latest entry that changes who answers; 0 without a database."""
    store = opened(patience_s=1.0)
    if store is None:
        return 0
    with store:
        return store.rulings.newest()
