"""Asks a process beside this one to measure problems, and hears how that ended.

The process is started at the first question and ends by itself when there are none. It is no child that this
one waits for: whichever ends first, the other goes on, and what was measured is in the database.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
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
#: Seconds after which a process that did not end by itself is no longer waited for.
END_S = 5.0
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
        by: The process that was asked.
        again: True once it was asked anew, as its process had just ended for lack of questions.
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
    by: subprocess.Popen[str] | None = None
    again: bool = False

    def wait(self) -> None:
        """Waits until it has ended, or for so long since it was asked that it is no use."""
        self.ended.wait(max(0.0, self.asked_s + WAIT_S + 2 * self.seconds - time.monotonic()))

    def end(self, outcome: str, why: str) -> None:
        """It has ended."""
        self.outcome, self.why = outcome, why
        self.done()
        self.ended.set()

    def question(self, number: int) -> str:
        """As the process reads it, one line."""
        key = self.problem
        problem = {
            "operation": key.operation, "shape": key.dims, "dtype": key.dtype, "layout": key.layout,
            "precision": key.precision, **key.told_epilogue,
        }  # fmt: skip
        asked = {
            "id": number, "problem": problem, "device": self.device, "seconds": self.seconds,
            "db": self.db,
        }  # fmt: skip
        return json.dumps(asked) + "\n"


class Process:
    """The process that measures; started again where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._waiting: dict[int, PendingMeasurement] = {}
        self._asked: dict[tuple[ProblemKey, str], PendingMeasurement] = {}
        self._number = 0

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
            asked = self._asked[problem, device] = PendingMeasurement(problem, device, seconds, done)
            self._number += 1
            self._waiting[self._number] = asked
            number = self._number
        # Starting a process takes milliseconds, which are not the caller's.
        threading.Thread(target=self._send, args=(number, asked), daemon=True, name="tuner-first-use").start()
        return asked

    def forget(self) -> None:
        """Lets what has ended be asked for again."""
        with self._lock:
            self._asked = {key: each for key, each in self._asked.items() if not each.outcome}

    def _send(self, number: int, asked: PendingMeasurement) -> None:
        try:
            question = asked.question(number)
            with self._lock:
                asked.by = self._write(question)
        except OSError as error:
            self._end({number: asked}, f"the process that measures cannot be started: {error}")

    def _write(self, question: str) -> subprocess.Popen[str]:
        """Sends a question; a process that has just ended is replaced."""
        for _ in range(2):
            running = self._running
            if running is None or running.poll() is not None:
                running = self._running = _started()
                threading.Thread(
                    target=self._listen, args=(running,), daemon=True, name="tuner-first-use-replies"
                ).start()
            assert running.stdin is not None, "a pipe"
            try:
                running.stdin.write(question)
                running.stdin.flush()
                return running
            except (BrokenPipeError, ValueError):
                self._running = None
        raise BrokenPipeError("it ends at once")

    def _listen(self, running: subprocess.Popen[str]) -> None:
        assert running.stdout is not None, "a pipe"
        for line in running.stdout:
            told: dict[str, Any] = json.loads(line)
            with self._lock:
                asked = self._waiting.pop(told["id"], None)
            if asked is not None:
                asked.end(told["outcome"], told["why"])
        for pipe in (running.stdin, running.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None, "a pipe"
                pipe.close()
        code = running.wait()
        with self._lock:
            if self._running is running:
                self._running = None
            lost = {number: each for number, each in self._waiting.items() if each.by is running}
        # It may have ended, idle, just as it was asked.
        anew = {number: each for number, each in lost.items() if code == 0 and not each.again}
        self._end({number: each for number, each in lost.items() if number not in anew}, _obituary(code))
        for number, each in anew.items():
            each.again = True
            self._send(number, each)

    def _end(self, lost: dict[int, PendingMeasurement], why: str) -> None:
        for number, asked in lost.items():
            with self._lock:
                there = self._waiting.pop(number, None)
            if there is not None:
                asked.end(FAILED, why)

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


def _obituary(code: int) -> str:
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"the process that measures ended with {how}"


def _started() -> subprocess.Popen[str]:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "tuner.study.first_use"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path}, start_new_session=True,
    )  # fmt: skip


#: Processes of a parent, kept so that nothing closes their pipes again.
_ABANDONED: list[subprocess.Popen[str]] = []
PROCESS = Process()


def _after_fork() -> None:
    global PROCESS
    PROCESS.abandon()
    PROCESS = Process()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: PROCESS.release())
