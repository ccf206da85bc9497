"""Worker processes that may crash or hang: started, called with a time limit, killed.

A device worker does everything that touches a device; compile workers compile. Each runs
`tuner.workers.main` in a process of its own session, so that a Ctrl-C in the terminal reaches the study
only, and dies with the study.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tuner.errors import DeviceTrouble, InputError

MAGIC = b"TTF1"
_HEADER = struct.Struct("!4sII")
#: A longer frame counts as rubbish.
LIMIT_BYTES = 1 << 30


class ChannelBroken(Exception):
    """The other side closed the channel, wrote rubbish, or stopped in the middle of a frame.

    Attributes:
        rubbish: True if bytes arrived that are not a frame.
    """

    def __init__(self, reason: str, rubbish: bool = False) -> None:
        super().__init__(reason)
        self.rubbish = rubbish


class Channel:
    """One end of a socket that carries messages: JSON objects, and bytes as their ``code``."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], limit_s: float | None = None) -> None:
        """Sends a message.

        Args:
            message: JSON object; ``code`` may be bytes.
            limit_s: Seconds to wait for the other side to read.

        Raises:
            ChannelBroken: The other side does not read.
        """
        code = message.get("code", b"")
        text = json.dumps({name: value for name, value in message.items() if name != "code"}).encode()
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(_HEADER.pack(MAGIC, len(text), len(code)) + text + code)
        except OSError as error:
            raise ChannelBroken(f"cannot send: {error}") from error

    def receive(self, limit_s: float | None = None) -> dict[str, Any]:
        """Waits for a message.

        Args:
            limit_s: Seconds for the whole of it; None waits forever.

        Raises:
            ChannelBroken: Closed, rubbish, or too slow.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        magic, text_length, code_length = _HEADER.unpack(self._read(_HEADER.size, until))
        message = None
        if magic == MAGIC and text_length + code_length <= LIMIT_BYTES:
            text, code = self._read(text_length, until), self._read(code_length, until)
            with contextlib.suppress(ValueError):
                message = json.loads(text)
        if not isinstance(message, dict):
            raise ChannelBroken("wrote rubbish into its channel", rubbish=True)
        return message | {"code": code}

    def _read(self, length: int, until: float | None) -> bytes:
        parts, missing = [], length
        while missing:
            try:
                self._socket.settimeout(None if until is None else max(until - time.monotonic(), 1e-3))
                part = self._socket.recv(min(missing, 1 << 20))
            except OSError as error:
                raise ChannelBroken(f"no answer: {error}") from error
            if not part:
                raise ChannelBroken("closed its channel")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


#: Seconds that a worker may take to start and open its device.
START_LIMIT_S = 120.0
#: Seconds that the rest of a frame may take after its first bytes.
FRAME_LIMIT_S = 30.0
#: Environment variable with the bytes that a worker may take beyond those that it has when it is ready.
MEMORY_VARIABLE = "TUNER_WORKER_BYTES"
#: Seconds between two looks at a worker that is waited for.
LOOK_S = 0.2
#: A worker may be stopped for so many seconds in all; then it counts as too slow.
STOPPED_LIMIT_S = 300.0
#: This process did not run, as a paused machine does not, if it was away for more seconds and used less of the
#: processor than this share of them.
PAUSE_S, PAUSED_SHARE = 5.0, 0.1
#: What a worker's clock says may differ from the study's by this share and these seconds, for messages.
CLOCK_SHARE, CLOCK_S = 0.05, 0.25
#: Characters of a dead worker's standard error that go into the reason.
STDERR_TAIL = 600


class WorkerFailed(Exception):
    """A worker that had to be given up.

    Attributes:
        timed_out: True if it was killed for being too slow.
        alarmed: True if it ended itself because a run took too long.
    """

    def __init__(self, reason: str, timed_out: bool = False, alarmed: bool = False) -> None:
        super().__init__(reason)
        self.timed_out, self.alarmed = timed_out, alarmed


class Worker:
    """One worker process, with at most one pending request.

    Attributes:
        busy: Whether an answer is to come.
        deadline_s: When it is overdue, by `time.monotonic`.
        stopped_s: Seconds since the request in which the process, or the machine, did not run.
    """

    def __init__(self, role: str, spec: str, environment: Mapping[str, str]) -> None:
        """Starts the process, without waiting until it is ready.

        Args:
            role: ``device`` or ``compile``.
            spec: What to open: ``cuda``, ``cpu`` or ``fake:FILE``.
            environment: Variables added to this process's own.
        """
        self.busy = False
        self.deadline_s: float | None = None
        self.stopped_s = self._sent_s = self._silent_s = self._looked_s = self._used_s = 0.0
        ours, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        variables = {
            **os.environ, **environment, "PYTHONPATH": path, "TUNER_CHANNEL_FD": str(theirs.fileno()),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tuner.workers.main", str(theirs.fileno()), role, spec],
            stdin=subprocess.DEVNULL, stdout=self._stderr, stderr=self._stderr,
            pass_fds=(theirs.fileno(),), env=variables, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._channel = Channel(ours)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def fileno(self) -> int:
        """For selectors: readable if the reply, or the end, has come."""
        return self._channel.fileno()

    def request(self, message: Mapping[str, Any], limit_s: float = START_LIMIT_S) -> None:
        """Sends a request; `collect` returns the answer.

        Raises:
            WorkerFailed: The worker is gone.
        """
        self.expect(limit_s)
        try:
            self._channel.send(message, FRAME_LIMIT_S)
        except ChannelBroken as error:
            raise WorkerFailed(self._obituary(error)) from error

    def ahead(self, message: Mapping[str, Any]) -> None:
        """Sends a request behind the pending ones.

        `expect` and `collect` then wait for one answer after the other. If the worker is gone, `collect` tells.
        """
        with contextlib.suppress(ChannelBroken):
            self._channel.send(message, FRAME_LIMIT_S)

    def expect(self, limit_s: float) -> None:
        """Says that another answer, to this request or one sent ahead, is to come within so many seconds."""
        self._sent_s = self._silent_s = self._looked_s = time.monotonic()
        self.busy, self.deadline_s = True, self._sent_s + limit_s
        self.stopped_s, self._used_s = 0.0, time.process_time()

    def overdue(self) -> bool:
        """True if the pending request has used up its time, in which its process ran."""
        self._look()
        return self.busy and self.deadline_s is not None and time.monotonic() > self.deadline_s

    def _look(self) -> None:
        """Gives the time back in which the worker was stopped, or in which this process did not run either."""
        away_s, used_s = time.monotonic() - self._looked_s, time.process_time() - self._used_s
        self._looked_s, self._used_s = self._looked_s + away_s, self._used_s + used_s
        is_paused = away_s > PAUSE_S and used_s < PAUSED_SHARE * away_s
        if self.busy and self.deadline_s is not None and (is_paused or self._is_stopped()):
            given_s = min(away_s, STOPPED_LIMIT_S - self.stopped_s)
            self.stopped_s, self.deadline_s = self.stopped_s + given_s, self.deadline_s + given_s

    def _is_stopped(self) -> bool:
        """True while a signal or a debugger holds the process."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self.pid}/stat").read_text(errors="replace")
            return status.rpartition(")")[2].split()[0] in "Tt"
        return False

    def arrived(self) -> bool:
        """True if `collect` will not wait long: the reply or the end has come, or its time is up."""
        return self.busy and (self._answers_within(0.0) or self.overdue())

    def _answers_within(self, seconds: float) -> bool:
        """Waits for the reply or the end; notes until when there was none."""
        if select.select([self], [], [], seconds)[0]:
            return True
        self._silent_s = time.monotonic()
        return False

    def collect(self) -> dict[str, Any]:
        """Waits for the answer to the pending request.

        Raises:
            WorkerFailed: It crashed, wrote rubbish, or took too long; it has been killed.
        """
        while not self._answers_within(0.0) and not self.overdue():
            self._answers_within(LOOK_S)
        try:
            answer = self._channel.receive(0.01 if self.overdue() else FRAME_LIMIT_S)
        except ChannelBroken as error:
            reason = self._obituary(error)
            alarmed = self._process.poll() == -signal.SIGALRM
            raise WorkerFailed(reason, timed_out=self.overdue(), alarmed=alarmed) from error
        self.busy = False
        return answer

    def ask(self, message: Mapping[str, Any], limit_s: float = START_LIMIT_S) -> dict[str, Any]:
        """Sends a request, and waits for an answer without trouble.

        Raises:
            WorkerFailed: See `collect`.
            InputError: The worker reported that the request is at fault.
            DeviceTrouble: It reported that the device or the environment is at fault.
        """
        self.request(message, limit_s)
        return answered(self.collect())

    def clock_trouble(self, answer: Mapping[str, Any]) -> str:
        """How the worker's clock contradicts the seconds that this process waited; empty if it does not."""
        least_s, most_s = self._silent_s - self._sent_s, time.monotonic() - self._sent_s
        clock_s = answer.get("clock_s", least_s)
        if (1 - CLOCK_SHARE) * least_s - CLOCK_S <= clock_s <= (1 + CLOCK_SHARE) * most_s + CLOCK_S:
            return ""
        return f"its clock says {clock_s:.3g} s, and the study waited {least_s:.3g} to {most_s:.3g} s for it"

    def _obituary(self, error: ChannelBroken) -> str:
        if not error.rubbish:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.5)
        code = self._process.poll()
        self.kill()
        if error.rubbish:
            return f"the worker {error}"
        if code is None:
            return f"the worker did not answer in time ({error})"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = self._last_words()
        return f"the worker died with {how}" + (f": {tail}" if tail else "")

    def _last_words(self) -> str:
        """Returns the end of the worker's standard output and error."""
        with contextlib.suppress(OSError, ValueError):
            self._stderr.seek(max(self._stderr.seek(0, os.SEEK_END) - STDERR_TAIL, 0))
            return self._stderr.read().decode(errors="replace").strip()
        return ""

    def kill(self) -> None:
        """Ends the process and everything in its session, and waits for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # A process inside the driver may take a while to die, so the wait is limited.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)

    def close(self) -> None:
        """Kills the process and frees what it held."""
        self.kill()
        self._channel.close()
        self._stderr.close()


def answered(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns an answer without trouble.

    Raises:
        InputError: The worker reported that the request is at fault.
        DeviceTrouble: It reported that the device or the environment is at fault.
    """
    if "trouble" in answer:
        raise (InputError if answer.get("bad_input") else DeviceTrouble)(answer["trouble"])
    return answer
