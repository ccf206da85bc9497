"""What happens in a run, as lines of JSON in a file, and as lines for people who want to see more."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tuner.errors import InputError
from tuner.results.record import utc_now
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
