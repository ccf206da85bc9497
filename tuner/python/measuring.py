"""Asks a process beside this one to measure problems, and hears how that ended.

The process is started at the first question and ends by itself when there are none. It is no child that this
one waits for: whichever ends first, the other goes on, and what was measured is in the database.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.lookup.asking import database_url
from tuner.results.record import ProblemKey

#: Seconds that a call waits at the most beside those of timing: for the device, compilers and arrays.
WAIT_S = 90.0
#: How a question ends where the process ended before it answered.
FAILED = "failed"


@dataclass
class PendingMeasurement:
    """A problem that is to be measured.

    Attributes:
        problem: The problem.
        device: ``cpu`` or ``cuda:0``.
        seconds: Seconds of timing at the most.
        done: Called once it has ended, in another thread.
        db: URL of the database that is to know the result.
        outcome: ``measured``, ``known`` (another process did), ``nothing``, ``busy`` or ``failed``; empty
            before it has ended.
        why: The reason where nothing was measured.
        ended: Set once it has ended.
        asked_s: When it was asked, by `time.monotonic`.
    """

    problem: ProblemKey
    device: str
    seconds: float
    done: Callable[[], None]
    db: str = field(default_factory=database_url)
    outcome: str = ""
    why: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    asked_s: float = field(default_factory=time.monotonic)

    def wait(self) -> None:
        """Waits until it has ended, or for so long since it was asked that it is no use."""
        self.ended.wait(max(0.0, self.asked_s + WAIT_S + 2 * self.seconds - time.monotonic()))

    def end(self, outcome: str, why: str) -> None:
        """It has ended."""
        self.outcome, self.why = outcome, why
        self.done()
        self.ended.set()

    @property
    def question(self) -> str:
        """As the process reads it, one line."""
        key = self.problem
        problem = {
            "operation": key.operation, "shape": key.dims, "dtype": key.dtype, "layout": key.layout,
            "precision": key.precision, **key.told_epilogue,
        }  # fmt: skip
        question = {"id": 0, "problem": problem, "device": self.device, "seconds": self.seconds, "db": self.db}
        return json.dumps(question) + "\n"


class MeasuringProcess:
    """The process that measures; started again where it has ended. A thread asks it one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._asked: dict[tuple[ProblemKey, str], PendingMeasurement] = {}
        self._waiting: queue.SimpleQueue[PendingMeasurement] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(
        self, problem: ProblemKey, device: str, seconds: float, done: Callable[[], None]
    ) -> PendingMeasurement:
        """Has a problem measured, unless it was asked for before; returns at once.

        Args:
            problem: The problem.
            device: Where.
            seconds: Seconds of timing at the most.
            done: Called once it has ended, in another thread; not if it was asked for before.
        """
        with self._lock:
            known = self._asked.get((problem, device))
            if known is not None:
                return known
            pending = self._asked[problem, device] = PendingMeasurement(problem, device, seconds, done)
            self._waiting.put(pending)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="tuner-first-use")
                self._thread.start()
        return pending

    def forget(self) -> None:
        """Lets what has ended be asked for again."""
        with self._lock:
            self._asked = {key: pending for key, pending in self._asked.items() if not pending.outcome}

    def _serve(self) -> None:
        while True:
            pending = self._waiting.get()
            try:
                outcome, why = self._answer(pending.question)
            except (OSError, ValueError) as error:
                outcome, why = FAILED, f"the process that measures cannot be started: {error}"
            pending.end(outcome, why)

    def _answer(self, question: str) -> tuple[str, str]:
        """Outcome and reason; a process that ended, idle, just as it was asked is replaced once."""
        code = 0
        for _ in range(2):
            running = self._running
            if running is None or running.poll() is not None:
                running = self._running = _started()
            assert running.stdin is not None, "a pipe"
            assert running.stdout is not None, "a pipe"
            with contextlib.suppress(BrokenPipeError):
                running.stdin.write(question)
                running.stdin.flush()
            line = running.stdout.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer["outcome"], answer["why"]
            self._close(running)
            self._running, code = None, running.wait()
            if code:
                break
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return FAILED, f"the process that measures ended with {how}"

    @staticmethod
    def _close(running: subprocess.Popen[str]) -> None:
        for pipe in (running.stdin, running.stdout):
            with contextlib.suppress(OSError, ValueError):
                assert pipe is not None, "a pipe"
                pipe.close()

    def release(self) -> None:
        """Lets the process end once it has finished what it measures, without waiting for it."""
        running = self._running
        if running is None:
            return
        with contextlib.suppress(OSError, ValueError):
            assert running.stdin is not None, "a pipe"
            running.stdin.close()
        if running.poll() is None:
            running.returncode = 0  # it goes on by itself: nobody is to wait for it, or to warn that it runs

    def abandon(self) -> None:
        """In a child process: its parent's is not its own."""
        running = self._running
        for pipe in (running.stdin, running.stdout) if running is not None else ():
            with contextlib.suppress(OSError, ValueError):
                assert pipe is not None, "a pipe"
                os.close(pipe.fileno())
        if running is not None:
            running.returncode = 0
            _ABANDONED.append(running)


def _started() -> subprocess.Popen[str]:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.study.first_use"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip


#: Processes of a parent, kept so that nothing closes their pipes again.
_ABANDONED: list[subprocess.Popen[str]] = []
PROCESS = MeasuringProcess()


def _after_fork() -> None:
    global PROCESS
    PROCESS.abandon()
    PROCESS = MeasuringProcess()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: PROCESS.release())
