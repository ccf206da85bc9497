"""Where a study's time goes, how much is left, and when to say so."""

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
    """Seconds of a budget that the finals may take; None stands for no limit."""
    budget_s = seconds or FINALS_MOST_S / FINALS_SHARE
    return min(max(FINALS_SHARE * budget_s, FINALS_LEAST_S), FINALS_MOST_S, budget_s / 2)


class TimeBudget:
    """Starts when it is made.

    Attributes:
        progress: What is reported; its times are kept here.
        finals_s: Seconds that the finals may take.
    """

    def __init__(
        self, seconds: float | None, report: Callable[[Progress], None], finals_s: float | None = None
    ) -> None:
        """Starts.

        Args:
            seconds: Budget of the whole run; None for no limit.
            report: Called a few times a second.
            finals_s: Seconds of it that the finals may take; a share unless given.
        """
        self.progress = Progress()
        self.finals_s = finals_share_s(seconds) if finals_s is None else finals_s
        self._seconds, self._report = seconds, report
        self._start_s = time.monotonic()
        self._reported_s = 0.0

    @property
    def search_left_s(self) -> float | None:
        """Seconds left for the search: what the finals need is kept. None without a limit."""
        if self._seconds is None:
            return None
        return self._seconds - self.finals_s - (time.monotonic() - self._start_s)

    def add(self, stage: str, seconds: float) -> None:
        """Adds time that was spent elsewhere."""
        self.progress.spend(stage, seconds)

    @contextmanager
    def spent(self, stage: str) -> Iterator[None]:
        """Times what is done inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - start)

    def tick(self, stage: str = "") -> None:
        """Reports when it is time, or when a stage begins."""
        now = time.monotonic()
        if stage or now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self.progress.advance(stage, now - self._start_s, self._seconds)
            self._report(self.progress)
