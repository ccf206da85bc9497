"""Runs the search in a thread of its own, so that it works while devices measure."""

from __future__ import annotations

import collections
import threading
import time

from tuner.results.measurement import Outcome
from tuner.search import Candidate, Search

#: A candidate, its outcome, its time in seconds, and its other objectives.
Told = tuple[Candidate, Outcome, float | None, tuple[float, ...]]
#: Configs requested in one call; results reported meanwhile wait for it.
REQUESTED_AT_ONCE = 4
#: Seconds that closing waits for the thread.
CLOSE_WITHIN_S = 1.0


class BackgroundSearch:
    """Keeps a few candidates ready.

    On a CPU target the search would disturb timing. With `inline` it runs only inside `want`.

    Attributes:
        thinking_s: Seconds spent on asking and telling, wherever they ran.
    """

    def __init__(self, search: Search, inline: bool) -> None:
        """Starts the thread, unless inline.

        Args:
            search: The search; nothing else may use it from now on.
            inline: True to search only inside `want`.
        """
        self._search, self._inline = search, inline
        self._changed = threading.Condition()
        self._told: collections.deque[Told] = collections.deque()
        self._found: collections.deque[Candidate] = collections.deque()
        self._dropped: list[str] = []
        self._wanted = 0
        self._exhausted = False
        self._closed = False
        self._failure: BaseException | None = None
        self.thinking_s = 0.0
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        if not inline:
            self._thread.start()

    @property
    def stopped(self) -> str:
        """Reason why the search requests nothing more."""
        return self._search.stopped

    @property
    def exhausted(self) -> bool:
        """True if no more candidates come until a result is reported."""
        with self._changed:
            return self._exhausted and not self._told and not self._found

    def tell(
        self, candidate: Candidate, outcome: Outcome, time_s: float | None, others: tuple[float, ...] = ()
    ) -> None:
        """Reports the result of a candidate; see `Search.tell`."""
        with self._changed:
            self._told.append((candidate, outcome, time_s, others))
            self._exhausted = False
            self._changed.notify_all()

    def drop(self, kernel: str) -> None:
        """Requests no more configs of a kernel, once the reported results are processed."""
        with self._changed:
            self._dropped.append(kernel)

    def want(self, count: int) -> None:
        """Sets the number of candidates that should be ready, including those that are."""
        with self._changed:
            self._wanted = max(count, 0)
            self._changed.notify_all()
        if self._inline:
            while self._step():
                pass

    def take(self) -> list[Candidate]:
        """Returns the candidates that are ready.

        Raises:
            Exception: The search raised it.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            found = list(self._found)
            self._found.clear()
            self._wanted = max(self._wanted - len(found), 0)
            return found

    def _run(self) -> None:
        try:
            while not self._closed:
                if not self._step():
                    with self._changed:
                        if not self._closed and not self._told and not self._asks():
                            self._changed.wait()
        except BaseException as error:
            with self._changed:
                self._failure = error

    def _asks(self) -> bool:
        return self._wanted > len(self._found) and not self._exhausted

    def _step(self) -> bool:
        """Processes reported results, then requests a few configs; False if there was nothing to do."""
        with self._changed:
            told, dropped = list(self._told), list(self._dropped)
            self._told.clear()
            self._dropped.clear()
            count = min(self._wanted - len(self._found), REQUESTED_AT_ONCE) if self._asks() else 0
        start = time.perf_counter()
        for candidate, outcome, time_s, others in told:
            self._search.tell(candidate, outcome, time_s, others)
        for kernel in dropped:
            self._search.drop(kernel)
        found = self._search.ask(count) if count > 0 else []
        with self._changed:
            self.thinking_s += time.perf_counter() - start
            self._found.extend(found)
            if count > 0 and not found and not self._told:
                self._exhausted = True
        return bool(told or found)

    def close(self) -> None:
        """Ends the thread, without waiting for a long computation; unprocessed results are in the records.

        May be called again, and from another thread.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._wanted = 0
            self._changed.notify_all()
        if not self._inline:
            self._thread.join(CLOSE_WITHIN_S)
            if self._thread.is_alive():
                return
        self._step()
        self._search.close()
