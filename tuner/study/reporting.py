"""Reports of a run: lines of JSON in a file, one line that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.results.measurement import headline
from tuner.results.record import utc_now
from tuner.results.units import clock, duration, speed
from tuner.study import job_files
from tuner.study.progress import Progress

#: Seconds between two events that only say how far a study is.
PROGRESS_EVERY_S = 10.0
#: Events that people are shown with ``--verbose``.
SHOWN = ("best", "outcome", "dropped", "busy")


class Events:
    """Writes events while it is entered: to a file, to stderr, to both or to none.

    A line has ``time`` (UTC), ``event`` and what belongs to it; times are in seconds.
    """

    def __init__(self, file: Path | None = None, verbose: bool = False) -> None:
        """Keeps where events go; the file is opened by entering.

        Args:
            file: Lines of JSON are appended to it; None for none.
            verbose: True to show the main ones on stderr.
        """
        self._path, self._verbose = file, verbose
        self._file: IO[str] | None = None

    def __enter__(self) -> Events:
        """Opens the file.

        Raises:
            InputError: It cannot be written.
        """
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            except OSError as error:
                raise InputError(
                    f"--log takes a file that can be written, got {self._path} ({error.strerror or error}); "
                    "choose another"
                ) from error
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
            told = " ".join(f"{name}={value}" for name, value in what.items() if name != "problem")
            print(f"{event}: {told}", file=sys.stderr)

    def follow(self, problem: object, report: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """A report that also writes what has changed since the last one."""
        last: dict[str, Any] = {"outcomes": {}, "dropped": {}, "busy": (), "told_s": 0.0}
        about = str(problem)

        def followed(now: Progress) -> None:
            self._changes(about, now, last)
            report(now)

        return followed

    def _changes(self, problem: str, now: Progress, last: dict[str, Any]) -> None:
        if now.stage != last.get("stage"):
            last["stage"] = now.stage
            self.tell("stage", problem=problem, stage=now.stage, trials=now.trials, elapsed_s=now.elapsed_s)
        if now.best_s is not None and now.best_s != last.get("best_s"):
            last["best_s"] = now.best_s
            self.tell("best", problem=problem, time_s=now.best_s, config=now.best, trials=now.trials)
        for name, reason in now.reasons.items():
            if name not in last["outcomes"]:
                last["outcomes"][name] = reason
                self.tell("outcome", problem=problem, outcome=name, reason=reason)
        for name, why in now.dropped.items():
            if name not in last["dropped"]:
                last["dropped"][name] = why
                self.tell("dropped", problem=problem, kernel=name, why=why)
        if now.busy != last["busy"]:
            last["busy"] = now.busy
            self.tell("busy", problem=problem, what=list(now.busy))
        if time.monotonic() - last["told_s"] > PROGRESS_EVERY_S or now.stage == "done":
            last["told_s"] = time.monotonic()
            self.tell("progress", problem=problem, **progress_json(now))


def progress_json(now: Progress) -> Mapping[str, Any]:
    """How far a study is, as plain values."""
    return {
        "stage": now.stage, "trials": now.trials, "outcomes": dict(now.outcomes), "best_s": now.best_s,
        "library_s": now.baseline_s, "left_s": now.left_s, "elapsed_s": now.elapsed_s,
        "spent_s": dict(now.spent_s),
    }  # fmt: skip


def failures(reasons: Mapping[str, str]) -> list[str]:
    """How trials failed, a line for each outcome.

    Args:
        reasons: Outcome -> its first reason.
    """
    return [f"{name.lower().replace('_', ' ')}: {headline(reason)}" for name, reason in reasons.items()]


def where_time_went(progress: Progress) -> str:
    """One line that says what the seconds of a run were spent on."""

    def listed(*names: str) -> str:
        told = [
            f"{name} {progress.spent_s[name]:.1f} s" for name in names if progress.spent_s.get(name, 0) >= 0.05
        ]
        return ", ".join(told) or "nothing"

    wall = listed("opening", "measuring", "compiling", "searching", "bookkeeping", "finals")
    device, beside = listed("load", "verify", "time", "power"), listed("compile", "thinking", "storing")
    return f"{clock(progress.elapsed_s)} in all: {wall}; of measuring: {device}; beside it: {beside}"


#: Seconds between two plain lines.
PLAIN_EVERY_S = 5.0
#: Characters of the bar that shows how much of the time has passed.
BAR = 20


def in_notebook() -> bool:
    """True where output goes to a notebook, which can redraw it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Cell:
    """A line of a notebook's output that is redrawn; IPython is there, since a notebook runs."""

    def __init__(self) -> None:
        self._display = sys.modules["IPython"].display
        self._shown = self._display.display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, line: str) -> None:
        """Replaces the line."""
        self._shown.update({"text/plain": line}, raw=True)


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
        self._live: Any = None
        self._cell: _Cell | None = None
        self._shown_s = 0.0
        self._stage = ""
        self._busy: tuple[str, ...] = ()

    def __enter__(self) -> ProgressView:
        if self._quiet:
            return self
        if in_notebook():
            self._cell = _Cell()
        elif sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows a report; a study calls this a few times a second."""
        job_files.tell(self._problem, progress)
        self._tell_busy(progress)
        if self._cell is not None:
            self._cell.show(self._line(progress))
        elif self._live is not None:
            self._live.update(self._line(progress))
        elif not self._quiet:
            now = time.monotonic()
            if now - self._shown_s >= PLAIN_EVERY_S or progress.stage != self._stage:
                self._shown_s, self._stage = now, progress.stage
                print(self._line(progress), file=sys.stderr)

    def _tell_busy(self, progress: Progress) -> None:
        """Warns once for each way in which the machine is busy: times measured then may be wrong."""
        if progress.busy and progress.busy != self._busy and not self._quiet:
            self._busy = progress.busy
            told = f"the machine is busy, times may be wrong: {'; '.join(progress.busy)}"
            if self._live is not None:
                self._live.console.print(told)
            else:
                print(told, file=sys.stderr)

    def _line(self, progress: Progress) -> str:
        of = f" of {self._limit}" if self._limit else ""
        parts = [progress.stage, f"{progress.trials}{of} trials"]
        if progress.best_s is not None:
            work = self._problem.work
            parts.append(f"best {speed(work.flops, work.bytes, progress.best_s)} ({duration(progress.best_s)})")
            if progress.baseline_s is not None:
                library_s = min(progress.baseline_s, progress.best_blas[1] if progress.best_blas else math.inf)
                parts.append(f"{library_s / progress.best_s:.1%} of the library")
            parts.append(progress.best)
        if progress.front:
            parts.append(f"{progress.front} on the front")
        if progress.dropped:
            parts.append(f"dropped {', '.join(progress.dropped)}")
        failures = [
            f"{count} {name.lower().replace('_', ' ')}"
            for name, count in sorted(progress.outcomes.items())
            if name != "MEASURED"
        ]
        if failures:
            parts.append(", ".join(failures))
        redrawn = self._live is not None or self._cell is not None
        left = f"{clock(progress.left_s)} left" if progress.left_s is not None else ""
        ending = [self._bar(progress) if redrawn and (left or self._limit) else "", left]
        return " | ".join([*parts, *([" ".join(filter(None, ending))] if any(ending) else [])])

    def _bar(self, progress: Progress) -> str:
        """How much of the time, or of the trials, has passed: of what ends first."""
        whole = progress.elapsed_s + (progress.left_s or 0.0)
        timed = progress.elapsed_s / whole if whole and progress.left_s is not None else 0.0
        done = round(BAR * min(max(timed, progress.trials / self._limit if self._limit else 0.0), 1.0))
        return f"{'━' * done}{'╌' * (BAR - done)}"
