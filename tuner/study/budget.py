"""A study's time: how it is spent, how much is left, and when to report it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
