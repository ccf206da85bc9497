"""How far a study is, what came of it, how its time is spent, and what a signal does.

Progress is told as lines of JSON in a file, one line that is redrawn on a terminal, and plain lines elsewhere.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from tuner.declare.problem import Problem
from tuner.errors import InputError, Interrupted
from tuner.results.measurement import Measurement, Outcome, headline, totals
from tuner.results.objectives import Front
from tuner.results.record import Champion, utc_now
from tuner.results.units import clock, duration, speed
from tuner.study import job_files


@dataclass
class Progress:
    """The progress of a study.

    Attributes:
        stage: ``opening``, ``searching``, ``finals`` or ``done``.
        trials: Finished trials, including earlier runs.
        outcomes: Outcome -> trials.
        reasons: Failed outcome -> the first reason for it.
        dropped: Dropped kernel -> reason.
        classes_s: Class of bits -> best time of a config of it, in seconds.
        best_s: Best median so far in seconds.
        best: Kernel and config with that median.
        baseline_s: The library's best median in seconds; None without a library, or before it is measured.
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
    classes_s: dict[str, float] = field(default_factory=dict)
    best_s: float | None = None
    best: str = ""
    baseline_s: float | None = None
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

    def notice(self, measurement: Measurement) -> None:
        """Notes the class of a trial's bits, whether the study keeps to it or not."""
        bits, time_s = measurement.bits, measurement.time_s
        if bits and time_s and not measurement.outcome.failed:
            self.classes_s[bits] = min(time_s, self.classes_s.get(bits, math.inf))

    def spend(self, stage: str, seconds: float) -> None:
        """Adds time to a stage."""
        self.spent_s[stage] = self.spent_s.get(stage, 0.0) + seconds

    @property
    def totals(self) -> dict[str, int]:
        """Counts of the trials, as `tuner.results.measurement.totals` has them."""
        return totals(self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """How far the study is, as plain values."""
        return {
            "stage": self.stage, "trials": self.trials, "outcomes": dict(self.outcomes), "best_s": self.best_s,
            "library_s": self.baseline_s, "elapsed_s": round(self.elapsed_s, 1),
            "left_s": None if self.left_s is None else round(self.left_s, 1),
        }  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The result of a study.

    Attributes:
        champion: Champion of the finals; None if nothing could be measured.
        progress: The final progress.
        stopped: Reason why the search ended; empty if it was told to end.
        front: The Pareto front, if there are several objectives.
        ranges: With an invariant dim, a config for each range of it, as champions that are not crowned.
    """

    champion: Champion | None
    progress: Progress
    stopped: str
    front: Front | None = None
    ranges: tuple[Champion, ...] = ()


#: Share of the budget kept for the finals, and its bounds in seconds.
FINALS_SHARE, FINALS_LEAST_S, FINALS_MOST_S = 0.10, 1.0, 20.0
#: Finals of one config take as long as verifying it so many times in the search: over each poison, at other
#: shapes, after the rounds, and the library. They are left at most this share of a budget.
FINALS_CHECKS, FINALS_MOST_SHARE = 12, 0.5
#: Seconds between two reports of progress.
REPORT_EVERY_S = 0.2


def finals_share_s(seconds: float | None) -> float:
    """Returns the seconds of a budget that the finals may take; None means no limit."""
    budget_s = seconds or FINALS_MOST_S / FINALS_SHARE
    return min(max(FINALS_SHARE * budget_s, FINALS_LEAST_S), FINALS_MOST_S, FINALS_MOST_SHARE * budget_s)


class TimeBudget:
    """The time of a study, counted from its creation.

    Attributes:
        progress: The reported progress; its times are updated here.
        finals_s: Seconds that are kept for the finals.
        states_s: Seconds of these beside those of checks and rounds.
    """

    states_s = 0.0

    def __init__(
        self, seconds: float | None, report: Callable[[Progress], None] = lambda progress: None,
        finals_s: float | None = None,
    ) -> None:  # fmt: skip
        """Starts.

        Args:
            seconds: Budget of the whole run; None for no limit.
            report: Callback, called a few times a second.
            finals_s: Seconds of it that the finals may take; by default a share.
        """
        self.progress = Progress()
        self.finals_s = finals_share_s(seconds) if finals_s is None else finals_s
        self._seconds, self._report, self._is_told = seconds, report, finals_s is not None
        self._start_s, self._check_s = time.monotonic(), math.inf
        self._reported_s, self._inner_s = 0.0, 0.0

    @property
    def search_left_s(self) -> float | None:
        """Seconds left for the search, without those kept for the finals; None without a limit."""
        if self._seconds is None:
            return None
        return self._seconds - self.finals_s - (time.monotonic() - self._start_s)

    def verified(self, seconds: float) -> None:
        """Keeps more for the finals where to load and verify a config takes so many seconds at best."""
        self._check_s = min(self._check_s, seconds)
        if self._seconds is not None and not self._is_told:
            wanted_s = max(finals_share_s(self._seconds), FINALS_CHECKS * self._check_s) + self.states_s
            self.finals_s = min(wanted_s, FINALS_MOST_SHARE * self._seconds)

    @property
    def finals_left_s(self) -> float:
        """Seconds that the finals may take: what was kept, or the rest of the budget if that is less."""
        left_s = self.search_left_s
        return self.finals_s if left_s is None or self._is_told else max(self.finals_s + min(left_s, 0.0), 0.0)

    def give_back(self, seconds: float) -> None:
        """Takes time out of the count in which a device did not run."""
        self._start_s += seconds

    @contextmanager
    def spent(self, stage: str) -> Iterator[None]:
        """Adds the time of its block to a stage, without that of stages inside."""
        start_s, outer_s, self._inner_s = time.perf_counter(), self._inner_s, 0.0
        try:
            yield
        finally:
            passed_s = time.perf_counter() - start_s
            self.progress.spend(stage, passed_s - self._inner_s)
            self._inner_s = outer_s + passed_s

    def tick(self, stage: str = "") -> None:
        """Reports if it is time, or if a stage begins."""
        now, progress = time.monotonic(), self.progress
        if stage or now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            progress.stage, progress.elapsed_s = stage or progress.stage, now - self._start_s
            if self._seconds is not None:
                progress.left_s = max(self._seconds - progress.elapsed_s, 0.0)
            self._report(progress)


INTERRUPTED = "interrupted; every finished trial is kept, and the same command continues"


class Stoppable(Protocol):
    """A search that can be asked to end.

    Attributes:
        stop: Reason why it ended, or will end after the current trials; empty if it goes on.
    """

    stop: str


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
        self._search.stop = INTERRUPTED


#: Seconds between two events that only say how far a study is.
PROGRESS_EVERY_S = 10.0
#: Events that people are shown with ``--verbose``, and what they are not shown of them.
SHOWN, UNSHOWN = ("best", "outcome", "dropped", "busy"), ("problem", "elapsed_s")


class Events:
    """Writes events while it is entered: to a file, to stderr, to both or to none.

    A line has ``time`` (UTC), ``event`` and what belongs to it; times are in seconds.
    """

    def __init__(self, file: Path | None = None, verbose: bool = False) -> None:
        """Opens the file.

        Args:
            file: Lines of JSON are appended to it; None for none.
            verbose: True to show the main ones on stderr.

        Raises:
            InputError: The file cannot be written.
        """
        self._verbose, self._file = verbose, None
        try:
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                self._file = file.open("a", encoding="utf-8")
        except OSError as error:
            rule, why = "--log takes a file that can be written", error.strerror or error
            raise InputError(f"{rule}, got {file} ({why}); choose another") from error

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.tell("error", kind=type(error).__name__, message=str(error))
        if self._file is not None:
            self._file.close()

    def tell(self, event: str, **what: Any) -> None:
        """Writes one event."""
        if self._file is not None:
            line = {"time": utc_now(), "event": event} | what
            print(json.dumps(line, default=str), file=self._file, flush=True)
        if self._verbose and event in SHOWN:
            words = " ".join(f"{name}={value}" for name, value in what.items() if name not in UNSHOWN)
            print(f"{event}: {words}", file=sys.stderr)

    def follow(self, problem: object, report: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """A report that also writes what has changed since the last one."""
        about, written, progress_at_s = str(problem), set[tuple[str, str]](), -math.inf

        def followed(now: Progress) -> None:
            nonlocal progress_at_s
            for event, what in _news(now):
                if (event, str(what)) not in written:
                    written.add((event, str(what)))
                    self.tell(event, problem=about, **what, trials=now.trials, elapsed_s=now.elapsed_s)
            if time.monotonic() - progress_at_s > PROGRESS_EVERY_S or now.stage == "done":
                progress_at_s = time.monotonic()
                self.tell("progress", problem=about, **now.to_json(), spent_s=dict(now.spent_s))
            report(now)

        return followed


def _news(now: Progress) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events with what they tell; each is written once."""
    yield "stage", {"stage": now.stage}
    if now.best_s is not None:
        yield "best", {"time_s": now.best_s, "config": now.best}
    for outcome, reason in now.reasons.items():
        yield "outcome", {"outcome": outcome, "reason": reason}
    for kernel, why in now.dropped.items():
        yield "dropped", {"kernel": kernel, "why": why}
    if now.busy:
        yield "busy", {"what": list(now.busy)}


def failures(reasons: Mapping[str, str]) -> list[str]:
    """How trials failed, a line for each outcome.

    Args:
        reasons: Outcome -> its first reason.
    """
    return [f"{name.lower().replace('_', ' ')}: {headline(reason)}" for name, reason in reasons.items()]


def where_time_went(progress: Progress) -> str:
    """One line that says what the seconds of a run were spent on."""

    def listed(*names: str) -> str:
        spent_s = {name: progress.spent_s.get(name, 0.0) for name in names}
        return ", ".join(f"{name} {s:.1f} s" for name, s in spent_s.items() if s >= 0.05) or "nothing"

    wall = listed("opening", "measuring", "compiling", "searching", "bookkeeping", "finals")
    device, beside = listed("load", "verify", "time", "power"), listed("compile", "thinking", "storing")
    return f"{clock(progress.elapsed_s)} in all: {wall}; of measuring: {device}; beside it: {beside}"


#: What is shown while finals are held: nothing is told until they are over.
FINALS = "finals: the best are checked once more and timed in turn with the library"
#: Seconds between two plain lines.
PLAIN_EVERY_S = 5.0


def in_notebook() -> bool:
    """True where output goes to a notebook, which can redraw it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def notebook_line() -> Callable[[str], None]:
    """A line of a notebook's output: what it is called with replaces it."""
    shown = sys.modules["IPython"].display.display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: shown.update({"text/plain": line}, raw=True)


def job_note(subject: str, progress: Progress, flops: float = 0.0) -> dict[str, Any]:
    """Progress as the server is told of it that started this command as a job.

    Args:
        subject: The problem; empty for a night on a fleet.
        progress: Of the study or night.
        flops: Of a run; 0 for a night on a fleet.
    """
    best_s = progress.best_s
    return progress.to_json() | job_files.counts() | {
        "problem": subject, "best": progress.best, "busy": list(progress.busy),
        "tflops": flops / best_s / 1e12 if best_s and flops else None,
    }  # fmt: skip


class ProgressView:
    """Shows a study's progress while it is entered; silent when quiet."""

    def __init__(self, problem: Problem, quiet: bool, trials: int | None = None) -> None:
        """Shows nothing yet.

        Args:
            problem: What is tuned.
            quiet: True to show nothing.
            trials: Trials after which the study ends; None without such a limit.
        """
        self._problem, self._quiet, self._limit = problem, quiet, trials
        self._redraw: Callable[[str], None] | None = None
        self._shown = ExitStack()
        self._told_s, self._stage = 0.0, ""
        self._busy: tuple[str, ...] = ()

    def __enter__(self) -> ProgressView:
        if self._quiet:
            return self
        if in_notebook():
            self._redraw = notebook_line()
        elif sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            live = Live(console=Console(stderr=True), refresh_per_second=5, transient=True)
            self._redraw = self._shown.enter_context(live).update
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def __call__(self, progress: Progress) -> None:
        """Shows a report; a study calls this a few times a second."""
        problem = self._problem
        job_files.tell(progress.stage, lambda: job_note(str(problem), progress, problem.work.flops))
        if self._quiet:
            return
        if progress.busy not in ((), self._busy):
            # It is told once for each way in which the machine is busy.
            self._busy = progress.busy
            print(f"the machine is busy, times may be wrong: {'; '.join(progress.busy)}", file=sys.stderr)
        now = time.monotonic()
        if self._redraw is not None:
            self._redraw(self._line(progress))
        elif now - self._told_s >= PLAIN_EVERY_S or progress.stage != self._stage:
            self._told_s, self._stage = now, progress.stage
            print(self._line(progress), file=sys.stderr)

    def _line(self, progress: Progress) -> str:
        of = f" of {self._limit}" if self._limit else ""
        stage = FINALS if progress.stage == "finals" else progress.stage
        parts = [stage, f"{progress.trials}{of} trials"]
        if progress.best_s is not None:
            work = self._problem.work
            parts.append(f"best {speed(work.flops, work.bytes, progress.best_s)} ({duration(progress.best_s)})")
            if progress.baseline_s is not None:
                parts.append(f"{progress.baseline_s / progress.best_s:.1%} of the library")
            parts.append(progress.best)
        if progress.dropped:
            parts.append(f"dropped {', '.join(progress.dropped)}")
        failed = {name: count for name, count in progress.outcomes.items() if name != Outcome.MEASURED.value}
        parts.append(", ".join(f"{failed[name]} {name.lower().replace('_', ' ')}" for name in sorted(failed)))
        parts.append(f"{clock(progress.left_s)} left" if progress.left_s is not None else "")
        return " | ".join(filter(None, parts))
