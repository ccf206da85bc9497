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
from concurrent.futures import Future, wait
from pathlib import Path
from typing import IO, Any

from tuner.lookup.asking import database_url
from tuner.results.record import ProblemKey

#: Seconds that a call waits at the most beside those of timing: for the device, compilers and arrays.
WAIT_S = 90.0
#: How a question ends where the process ended before it answered.
FAILED = "failed"


class PendingMeasurement(Future[tuple[str, str]]):
    """A problem that is to be measured; its result is how that ended, and why where nothing was measured.

    It ends as ``measured``, ``known`` (another process did it), ``nothing``, ``busy`` or ``failed``.

    Attributes:
        problem: The problem.
        device: ``cpu`` or ``cuda:0``.
        seconds: Seconds of timing at the most.
        question: As the process reads it, one line; with the database that is to know the result.
    """

    def __init__(self, problem: ProblemKey, device: str, seconds: float, changed: Callable[[], None]) -> None:
        """Writes the question.

        Args:
            problem: The problem.
            device: Where.
            seconds: Seconds of timing at the most.
            changed: Called in another thread once it has ended, before those who wait go on.
        """
        super().__init__()
        self.problem, self.device, self.seconds, self._changed = problem, device, seconds, changed
        self._until_s = time.monotonic() + WAIT_S + 2 * seconds
        words = {
            "operation": problem.operation, "shape": problem.dims, "dtype": problem.dtype,
            "layout": problem.layout, "precision": problem.precision, **problem.told_epilogue,
        }  # fmt: skip
        question = {"id": 0, "problem": words, "device": device, "seconds": seconds, "db": database_url()}
        self.question = json.dumps(question) + "\n"

    def end(self, outcome: tuple[str, str]) -> None:
        """It has ended."""
        self._changed()
        self.set_result(outcome)

    def wait(self) -> None:
        """Waits until it has ended, or for so long since it was asked that it is no use."""
        wait([self], max(0.0, self._until_s - time.monotonic()))


class MeasuringProcess:
    """The process that measures; started again where it has ended. A thread asks it one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._asked: dict[tuple[ProblemKey, str], PendingMeasurement] = {}
        self._waiting: queue.SimpleQueue[PendingMeasurement] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(
        self, problem: ProblemKey, device: str, seconds: float, changed: Callable[[], None]
    ) -> PendingMeasurement:
        """Has a problem measured, unless it was asked for before; returns at once. See `PendingMeasurement`."""
        with self._lock:
            known = self._asked.get((problem, device))
            if known is not None:
                return known
            pending = self._asked[problem, device] = PendingMeasurement(problem, device, seconds, changed)
            self._waiting.put(pending)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True, name="tuner-first-use")
                self._thread.start()
        return pending

    def forget(self) -> None:
        """Lets what has ended be asked for again."""
        with self._lock:
            self._asked = {key: pending for key, pending in self._asked.items() if not pending.done()}

    def _serve(self) -> None:
        while True:
            pending = self._waiting.get()
            try:
                outcome = self._answer(pending.question)
            except (OSError, ValueError) as error:
                outcome = FAILED, f"the process that measures cannot be started: {error}"
            pending.end(outcome)

    def _answer(self, question: str) -> tuple[str, str]:
        """Outcome and reason; a process that ended, idle, just as it was asked is replaced once."""
        code = 0
        for _ in range(2):
            if self._running is None or self._running.poll() is not None:
                self._running = _started()
            stdin, stdout = _pipes(self._running)
            with contextlib.suppress(BrokenPipeError):
                stdin.write(question)
                stdin.flush()
            line = stdout.readline()
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer["outcome"], answer["why"]
            for pipe in (stdin, stdout):
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
            code, self._running = self._running.wait(), None
            if code:
                break
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return FAILED, f"the process that measures ended with {how}"

    def release(self) -> None:
        """Lets the process end once it has finished what it measures, without waiting for it."""
        if self._running is None:
            return
        with contextlib.suppress(OSError, ValueError):
            _pipes(self._running)[0].close()
        if self._running.poll() is None:
            self._running.returncode = 0  # it goes on by itself: nobody is to wait for it, or warn that it runs

    def abandon(self) -> None:
        """In a child process: its parent's is not its own."""
        if self._running is None:
            return
        for pipe in _pipes(self._running):
            with contextlib.suppress(OSError, ValueError):
                os.close(pipe.fileno())
        self._running.returncode = 0
        _ABANDONED.append(self._running)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


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
