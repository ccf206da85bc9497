"""How far a study is, what came of it, how its time is spent, and what a signal does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from tuner.errors import Interrupted
from tuner.results.measurement import Measurement, Outcome
from tuner.results.objectives import Front
from tuner.results.record import Champion, Pair


@dataclass
class Progress:
    """The progress of a study.

    Attributes:
        stage: ``opening``, ``searching``, ``finals`` or ``done``.
        trials: Finished trials, including earlier runs.
        outcomes: Outcome -> trials.
        reasons: Failed outcome -> the first reason for it.
        dropped: Dropped kernel -> reason.
        best_s: Best median so far in seconds.
        best: Kernel and config with that median.
        front: Configs on the Pareto front; 0 with one objective.
        baseline_s: The library's median in seconds; None without a library, or before it is measured.
        best_blas: Core type and median in seconds of the library set to the best core type of this CPU, if it
            chose another by itself.
        busy: What is wrong with the machine, observed while opening devices or searching; empty if it is quiet.
        spent_s: Seconds by stage. Wall time: ``opening`` (with ``baseline``), ``measuring``, ``compiling``
            (no config was ready to measure), ``searching`` (none was ready to compile), ``bookkeeping``
            and ``finals``. Device time within ``measuring``: ``load``, ``verify``, ``time``, ``power``.
            Beside it: ``compile`` of all workers, ``thinking`` of the search, and ``storing``.
        left_s: Seconds left; None without a limit.
        elapsed_s: Seconds since the start.
    """

    stage: str = "opening"
    trials: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    best_s: float | None = None
    best: str = ""
    front: int = 0
    baseline_s: float | None = None
    best_blas: tuple[str, float] | None = None
    busy: tuple[str, ...] = ()
    spent_s: dict[str, float] = field(default_factory=dict)
    left_s: float | None = None
    elapsed_s: float = 0.0

    def count(self, measurement: Measurement) -> None:
        """Counts one more trial."""
        self.trials += 1
        name = measurement.outcome.value
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if measurement.outcome.failed:
            self.reasons.setdefault(name, measurement.reason)

    def lead(self, time_s: float, best: str) -> None:
        """Sets the best config so far."""
        self.best_s, self.best = time_s, best

    def set_front(self, configs: int) -> None:
        """Sets the number of configs on the Pareto front."""
        self.front = configs

    def set_baseline(self, time_s: float | None) -> None:
        """Sets the library's time."""
        self.baseline_s = time_s

    def set_best_blas(self, core_type: str, time_s: float) -> None:
        """Sets the library's time with the core type that suits this CPU best."""
        self.best_blas = (core_type, time_s)

    def observe_load(self, busy: tuple[str, ...]) -> None:
        """Sets what is wrong with the machine now; if nothing is, the earlier observation stays."""
        self.busy = busy or self.busy

    def drop(self, kernel: str, why: str) -> None:
        """Records that a kernel was dropped from the search."""
        self.dropped[kernel] = why

    def spend(self, stage: str, seconds: float) -> None:
        """Adds time to a stage."""
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + seconds

    def set_spent(self, stage: str, seconds: float) -> None:
        """Sets the total time of a stage that counts for itself."""
        self.spent_s[stage] = seconds

    def advance(self, stage: str, elapsed_s: float, budget_s: float | None) -> None:
        """Time has passed.

        Args:
            stage: The stage that begins; empty if none does.
            elapsed_s: Seconds since the start.
            budget_s: Seconds of the whole run; None for no limit.
        """
        self.stage, self.elapsed_s = stage or self.stage, elapsed_s
        self.left_s = None if budget_s is None else max(budget_s - elapsed_s, 0.0)

    @property
    def totals(self) -> dict[str, int]:
        """``total``, ``measured`` and ``failed`` trials, then each outcome's count."""
        failed = sum(count for name, count in self.outcomes.items() if Outcome(name).failed)
        measured = self.outcomes.get(Outcome.MEASURED.value, 0)
        return {"total": self.trials, "measured": measured, "failed": failed, **self.outcomes}


@dataclass(frozen=True)
class Result:
    """The result of a study.

    Attributes:
        champion: Champion of the finals; None if nothing could be measured.
        progress: The final progress.
        stopped: Reason why the search ended; empty if it was told to end.
        pairs: The champion's pairs in the finals, with every other finalist and the library.
        front: The Pareto front, if there are several objectives.
        unplayed: Why the next best configs did not replace finalists that turned out wrong; else empty.
    """

    champion: Champion | None
    progress: Progress
    stopped: str
    pairs: tuple[Pair, ...] = ()
    front: Front | None = None
    unplayed: str = ""


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
