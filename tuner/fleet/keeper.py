"""What a worker holds: its study process, which it starts, watches, stops and replaces.

It runs inside the Dask worker and touches no device. Progress is watched, and not only life: a study process
that gets no further is killed, and the slice is handed out again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from tuner.errors import DeviceTrouble, TunerError
from tuner.fleet.orders import DATABASE_VARIABLE, Answer, Greeting, Order, Report, WatchOrder
from tuner.night.work import Done
from tuner.results.sentinel import Sentinel

#: Seconds between two looks at the study process.
LOOK_S = 0.1
#: Seconds without progress after which a search has stalled. Opening a study and its finals tell nothing of
#: their progress, and limit their own steps (`tuner.workers.device_worker`): they may take so many times that.
STALL_S, UNTOLD = 240.0, 3
#: Seconds that a study process may take to start and look at its device, and to end when it is told to.
START_LIMIT_S, STOP_WITHIN_S = 180.0, 5.0


@dataclass(frozen=True)
class Place:
    """Where and how a worker works.

    Attributes:
        spec: The device.
        folder: For its own files.
        url: How this machine reaches the database; empty to take the coordinator's word.
        stall_s: Seconds without progress after which a search has stalled.
        command: Starts a study process; it gets two descriptors and the device.
    """

    spec: str
    folder: Path
    url: str = ""
    stall_s: float = STALL_S
    command: Sequence[str] = (sys.executable, "-m", "tuner.fleet.child")


@dataclass
class _Watch:
    """When a study process last got further."""

    stall_s: float
    seen: Any = None
    since_s: float = field(default_factory=time.monotonic)
    stage: str = "opening"

    def take(self, progress: dict[str, Any]) -> None:
        told = {name: value for name, value in progress.items() if name != "best"}
        self.stage = str(progress["stage"])
        if told != self.seen:
            self.seen, self.since_s = told, time.monotonic()

    @property
    def stalled(self) -> str:
        """What to say of a study process that gets no further; empty if it does."""
        limits = {"searching": self.stall_s, "starting": START_LIMIT_S}
        limit_s = limits.get(self.stage, UNTOLD * self.stall_s)
        if time.monotonic() - self.since_s < limit_s:
            return ""
        return f"it got no further for {limit_s:.0f} s while {self.stage}, and was killed"


class Keeper:
    """One device of a worker.

    Attributes:
        place: Where and how it works.
        idle_since_s: `time.monotonic` since which nothing is to be done; None while something is.
    """

    def __init__(self, place: Place) -> None:
        """Starts nothing yet.

        Args:
            place: Where and how.
        """
        self.place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopping = ""
        self._claim = 0
        self.idle_since_s: float | None = time.monotonic()

    @property
    def pid(self) -> int | None:
        """Of the study process; None if there is none."""
        return self._process.pid if self._process is not None else None

    def greet(self, greeting: Greeting) -> Report:
        """Looks at the device, and says what this machine is.

        Raises:
            TunerError: The device or the database cannot be used.
        """
        with self._busy(0):
            found = self._asked(greeting, _Watch(START_LIMIT_S), lambda progress: None)
        if isinstance(found, TunerError):
            raise found
        if not isinstance(found, Report):
            raise DeviceTrouble(f"the study process of {self.place.spec} cannot start: {found}")
        return found

    def time(self, order: WatchOrder) -> list[list[Sentinel]]:
        """Times sentinels, a list for each pass.

        Raises:
            TunerError: The device cannot be used, or time is up.
        """
        with self._busy(0):
            found = self._asked(order, _Watch(order.limit_s, stage="searching"), lambda progress: None)
        if isinstance(found, list):
            return found
        raise found if isinstance(found, TunerError) else DeviceTrouble(str(found))

    def work(self, order: Order, told: Callable[[dict[str, Any]], None]) -> Answer:
        """Does a piece of work; whatever happens to the study process becomes an answer.

        Args:
            order: The work.
            told: Called with the progress, a few times a second.
        """
        begun_s = time.monotonic()
        with self._busy(order.claim):
            found = self._asked(order, _Watch(self.place.stall_s), told)
        if isinstance(found, Answer):
            return found
        seconds = time.monotonic() - begun_s
        cut = bool(self._stopping)
        return Answer(order.claim, Done(lost=str(found), cut=cut, spent_s=seconds), seconds=seconds)

    def stop(self, why: str, claim: int | None = None) -> bool:
        """Raises the flag that ends the current work; False if there is none, or it is of another claim."""
        if self.idle_since_s is not None or claim not in (None, self._claim):
            return False
        self._stopping = why
        return True

    def close(self) -> None:
        """Ends the study process; what it measured is stored."""
        self._end()

    @contextlib.contextmanager
    def _busy(self, claim: int) -> Any:
        with self._lock:
            self._stopping, self._claim, self.idle_since_s = "", claim, None
            try:
                yield
            finally:
                self.idle_since_s = time.monotonic()

    def _asked(self, message: Any, watch: _Watch, told: Callable[[dict[str, Any]], None]) -> Any:
        """The study process's answer, or why there is none, in words."""
        try:
            if self._start():
                watch.stage = "starting"
            self._channel.send(message)
            while True:
                if self._channel.poll(LOOK_S):
                    kind, content = self._channel.recv()
                    if kind == "answer":
                        return content
                    watch.take(content)
                    told(content)
                elif self._process is not None and self._process.poll() is not None:
                    raise EOFError
                if self._stopping:
                    return self._stopped()
                if watch.stalled:
                    self._end(kill=True)
                    return watch.stalled
        except (EOFError, OSError):
            code = self._end(kill=True)
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return f"its study process died with {how}"

    def _stopped(self) -> Any:
        """Ends the work in an orderly way, or else the study process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + STOP_WITHIN_S
        while time.monotonic() < until_s:
            if self._channel.poll(LOOK_S):
                kind, content = self._channel.recv()
                if kind == "answer":
                    return content
        self._end(kill=True)
        return f"{self._stopping}, and its study process took longer than {STOP_WITHIN_S:g} s to end"

    def _start(self) -> bool:
        """Starts a study process unless one lives; True if it did."""
        if self._process is not None and self._process.poll() is None:
            return False
        self._end()
        ours, theirs = Pipe()
        life, self._life = os.pipe()
        place = self.place
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        variables = {**os.environ, "PYTHONPATH": path, DATABASE_VARIABLE: place.url}
        arguments = [*place.command, str(theirs.fileno()), str(life), place.spec]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), life), env=variables,
            start_new_session=True,
        )  # fmt: skip
        self._channel: Connection = ours
        theirs.close()
        os.close(life)
        return True

    def _end(self, kill: bool = False) -> int:
        """Ends the study process, and returns its exit code; 0 if there was none."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._channel.close()
        os.close(self._life)
        try:
            if kill:
                process.kill()
            return process.wait(2 * STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
