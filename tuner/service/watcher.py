"""A watcher in a thread of its own, which goes on whatever goes wrong."""

import contextlib
import logging
import threading

from tuner.errors import TunerError

_LOG = logging.getLogger(__name__)


class Watcher(threading.Thread):
    """Looks at something again and again. A trouble is logged once until it passes or becomes another.

    Attributes:
        closing: What it holds until it ends.
    """

    def __init__(self, effect: str, every_s: float) -> None:
        """Prepares the thread.

        Args:
            effect: What a trouble means, for the log.
            every_s: Seconds between two looks.
        """
        super().__init__(name=effect, daemon=True)
        self.closing = contextlib.ExitStack()
        self._effect, self._every_s = effect, every_s
        self._woken, self._ended = threading.Event(), threading.Event()

    def look(self) -> None:
        """What is done each time."""
        raise NotImplementedError

    def wake(self) -> None:
        """Looks at once."""
        self._woken.set()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._woken.set()
        self.join()

    def run(self) -> None:
        """Looks until it is closed."""
        complaint = ""
        with self.closing:
            while not self._ended.is_set():
                try:
                    self.look()
                    complaint = ""
                except Exception as error:  # without this thread, what it keeps would stay as it is for good
                    if str(error) != complaint:
                        complaint = str(error)
                        known = isinstance(error, (TunerError, OSError))
                        _LOG.warning("%s: %s", self._effect, error, exc_info=None if known else error)
                self._woken.wait(self._every_s)
                self._woken.clear()
