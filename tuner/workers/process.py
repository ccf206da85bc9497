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
    """One worker process, with at most one pending request."""

    def __init__(self, role: str, spec: str, environment: Mapping[str, str]) -> None:
        """Starts the process, without waiting until it is ready.

        Args:
            role: ``device`` or ``compile``.
            spec: What to open: ``cuda``, ``cpu`` or ``fake:FILE``.
            environment: Variables added to this process's own.
        """
        self.busy = False
        self.deadline_s: float | None = None
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

    def ahead(self, message: Mapping[str, Any]) -> bool:
        """Sends a request behind the pending one; False if the worker is gone, as `collect` then tells.

        When the pending one has been answered, `expect` and `collect` wait for this one's answer.
        """
        try:
            self._channel.send(message, FRAME_LIMIT_S)
        except ChannelBroken:
            return False
        return True

    def expect(self, limit_s: float) -> None:
        """Says that another answer, to this request or one sent ahead, is to come within so many seconds."""
        self.busy, self.deadline_s = True, time.monotonic() + limit_s

    def overdue(self) -> bool:
        """True if the pending request has used up its time."""
        return self.busy and self.deadline_s is not None and time.monotonic() > self.deadline_s

    def arrived(self) -> bool:
        """True if `collect` will not wait long: the reply or the end has come, or its time is up."""
        return self.busy and (self.overdue() or bool(select.select([self], [], [], 0)[0]))

    def collect(self, limit_s: float | None = None) -> dict[str, Any]:
        """Waits for the answer to the pending request.

        Args:
            limit_s: Seconds to wait; by default those of a frame, or none if the request is overdue.

        Raises:
            WorkerFailed: It crashed, wrote rubbish, or took too long; it has been killed.
        """
        try:
            usual_s = 0.01 if self.overdue() else FRAME_LIMIT_S
            answer = self._channel.receive(usual_s if limit_s is None else limit_s)
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
        return answered(self.collect(limit_s))

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
