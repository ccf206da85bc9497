"""A study's time: how it is spent, how much is left, and when to report it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from tuner.errors import Interrupted
from tuner.study.progress import Progress

#: Share of the budget kept for the finals, and its bounds in seconds.
FINALS_SHARE, FINALS_LEAST_S, FINALS_MOST_S = 0.10, 1.0, 20.0
#: Seconds between two reports of progress.
REPORT_EVERY_S = 0.2


def finals_share_s(seconds: float | None) -> float:
    """Returns the seconds of a budget that the finals may take; None means no limit."""
    budget_s = seconds or FINALS_MOST_S / FINALS_SHARE
    return min(max(FINALS_SHARE * budget_s, FINALS_LEAST_S), FINALS_MOST_S, budget_s / 2)


class TimeBudget:
    """The time of a study, counted from its creation.

    Attributes:
        progress: The reported progress; its times are updated here.
        finals_s: Seconds that the finals may take.
    """

    def __init__(
        self, seconds: float | None, report: Callable[[Progress], None], finals_s: float | None = None
    ) -> None:
        """Starts.

        Args:
            seconds: Budget of the whole run; None for no limit.
            report: Callback, called a few times a second.
            finals_s: Seconds of it that the finals may take; by default a share.
        """
        self.progress = Progress()
        self.finals_s = finals_share_s(seconds) if finals_s is None else finals_s
        self._seconds, self._report = seconds, report
        self._start_s = time.monotonic()
        self._reported_s = 0.0

    @property
    def search_left_s(self) -> float | None:
        """Seconds left for the search, without those kept for the finals; None without a limit."""
        if self._seconds is None:
            return None
        return self._seconds - self.finals_s - (time.monotonic() - self._start_s)

    def add(self, stage: str, seconds: float) -> None:
        """Adds time spent elsewhere."""
        self.progress.spend(stage, seconds)

    @contextmanager
    def spent(self, stage: str) -> Iterator[None]:
        """Adds the time of its block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def tick(self, stage: str = "") -> None:
        """Reports if it is time, or if a stage begins."""
        now = time.monotonic()
        if stage or now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self.progress.advance(stage, now - self._start_s, self._seconds)
            self._report(self.progress)


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
