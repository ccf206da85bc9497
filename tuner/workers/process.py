"""Worker processes that may crash or hang: started, called with a time limit, killed.

A device worker does everything that touches a device; compile workers compile. Each runs
`tuner.workers.main` in a process of its own session, so that a Ctrl-C in the terminal reaches the study
only, and dies with the study.
"""

import contextlib
import functools
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
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeVar, cast, get_type_hints

from tuner.errors import DeviceTrouble, InputError
from tuner.results.codec import Converter, converters
from tuner.results.measurement import Outcome

T = TypeVar("T")
#: A longer message counts as rubbish.
LIMIT_BYTES = 1 << 30


class ChannelBroken(Exception):
    """The other side closed the channel, wrote rubbish, or stopped in the middle of a message.

    Attributes:
        rubbish: True if bytes arrived that are not a message.
    """

    def __init__(self, reason: str, rubbish: bool = False) -> None:
        super().__init__(reason)
        self.rubbish = rubbish


class Channel:
    """One end of a socket that carries messages, which are JSON objects."""

    def __init__(self, end: socket.socket, limit_s: int = 0) -> None:
        """Takes the socket.

        Args:
            end: The socket.
            limit_s: Seconds that the other side may stop in the middle of a message; 0 for any number.
        """
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", limit_s, 0))
        self._connection = Connection(end.detach())

    def fileno(self) -> int:
        """For selectors."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message.

        Raises:
            ChannelBroken: The other side does not read.
        """
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise ChannelBroken(f"cannot send: {error}") from error

    def receive(self, limit_s: float | None = None) -> dict[str, Any]:
        """Waits for a message.

        Args:
            limit_s: Seconds until it begins; None waits forever.

        Raises:
            ChannelBroken: Closed, rubbish, or too slow.
        """
        message = None
        try:
            if not self._connection.poll(limit_s):
                raise ChannelBroken("no answer: timed out")
            message = json.loads(self._connection.recv_bytes(LIMIT_BYTES))
        except (EOFError, OSError) as error:
            if self._connection.readable:  # it is not after a message of an impossible length
                is_end = isinstance(error, EOFError) or error.errno is None
                raise ChannelBroken("closed its channel" if is_end else f"no answer: {error}") from error
        except ValueError:
            pass
        if not isinstance(message, dict):
            raise ChannelBroken("wrote rubbish into its channel", rubbish=True)
        return message

    def close(self) -> None:
        """Closes this end."""
        self._connection.close()


#: Seconds that a worker may take to start and open its device.
START_LIMIT_S = 120.0
#: Seconds that a worker may stop in the middle of a message.
FRAME_LIMIT_S = 30
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
        outcome: What that makes of a config: it was too slow, has a false clock, or crashed its process.
    """

    def __init__(self, reason: str, outcome: Outcome = Outcome.CRASHED) -> None:
        super().__init__(reason)
        self.outcome = outcome


class Worker:
    """One worker process, which answers requests in their order.

    Attributes:
        waiting: Requests behind the pending one: the limit in seconds, and when it was sent.
        deadline_s: When the answer to the pending one is overdue, by `time.monotonic`; None if none is.
        stopped_s: Seconds since the request in which the process, or the machine, did not run.
    """

    def __init__(self, role: str, spec: str, environment: Mapping[str, str]) -> None:
        """Starts the process, without waiting until it is ready.

        Args:
            role: ``device`` or ``compile``.
            spec: What to open: ``cuda``, ``cpu`` or ``fake:FILE``.
            environment: Variables added to this process's own.
        """
        self.waiting = deque[tuple[float, float]]()
        self.deadline_s: float | None = None
        self.stopped_s = self._sent_s = self._pending_s = self._silent_s = self._looked_s = self._used_s = 0.0
        ours, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        variables = {**os.environ, **environment, "PYTHONPATH": path, "TUNER_CHANNEL_FD": str(theirs.fileno())}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tuner.workers.main", str(theirs.fileno()), role, spec],
            stdin=subprocess.DEVNULL, stdout=self._stderr, stderr=self._stderr,
            # No session of its own: Linux shares cores among sessions, whatever is nice in them.
            pass_fds=(theirs.fileno(),), env=variables, process_group=0,
        )  # fmt: skip
        theirs.close()
        if role == "compile":  # from its first moment: its imports, too, give way to what is timed or answered
            os.setpriority(os.PRIO_PROCESS, self.pid, os.getpriority(os.PRIO_PROCESS, 0) + 5)
        self._channel = Channel(ours, FRAME_LIMIT_S)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fileno(self) -> int:
        """For selectors: readable if the reply, or the end, has come."""
        return self._channel.fileno()

    def request(self, message: Mapping[str, Any], limit_s: float = START_LIMIT_S) -> None:
        """Sends a request; `collect` returns the answers, one after the other.

        Raises:
            WorkerFailed: The worker is gone; behind another request `collect` tells.
        """
        is_first = not self.busy
        self.waiting.append((limit_s, time.monotonic()))
        self._expect()
        try:
            self._channel.send(message)
        except ChannelBroken as error:
            if is_first:
                raise WorkerFailed(self._obituary(error)) from error

    @property
    def busy(self) -> bool:
        """Whether an answer is to come."""
        return self.deadline_s is not None or bool(self.waiting)

    def _expect(self) -> None:
        """Makes the next request the pending one, if none is."""
        if self.deadline_s is None and self.waiting:
            limit_s, self._sent_s = self.waiting.popleft()
            self._pending_s = self._silent_s = self._looked_s = time.monotonic()
            self.deadline_s = self._pending_s + limit_s
            self.stopped_s, self._used_s = 0.0, time.process_time()

    def overdue(self) -> bool:
        """True if the pending request has used up its time, in which its process ran."""
        self._look()
        return self.deadline_s is not None and time.monotonic() > self.deadline_s

    def _look(self) -> None:
        """Gives the time back in which the worker was stopped, or in which this process did not run either."""
        away_s, used_s = time.monotonic() - self._looked_s, time.process_time() - self._used_s
        self._looked_s, self._used_s = self._looked_s + away_s, self._used_s + used_s
        is_paused = away_s > PAUSE_S and used_s < PAUSED_SHARE * away_s
        if self.deadline_s is not None and (is_paused or self._is_stopped()):
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
        self._expect()
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
        self._expect()
        while not self._answers_within(0.0) and not self.overdue():
            self._answers_within(LOOK_S)
        try:
            answer = self._channel.receive(0.01 if self.overdue() else FRAME_LIMIT_S)
        except ChannelBroken as error:
            reason = self._obituary(error)
            is_slow = self.overdue() or self._process.poll() == -signal.SIGALRM
            raise WorkerFailed(reason, Outcome.TIMED_OUT if is_slow else Outcome.CRASHED) from error
        self.deadline_s = None
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
        least_s, most_s = self._silent_s - self._pending_s, time.monotonic() - self._sent_s
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
        if code == -signal.SIGALRM:
            return "its first run did not end in time"
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


def call_of(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """A request to call a method of a worker's bench; `called` answers it.

    Args:
        method: The method, whose annotations say how arguments and result are written as JSON.
        arguments: Its arguments.
    """
    hints = get_type_hints(method)
    written = {name: converters(hints[name])[0](value) for name, value in arguments.items()}
    return {"do": "call", "method": method.__name__, "arguments": written}


def called(owner: object, request: Mapping[str, Any]) -> Any:
    """Calls a method as `call_of` says; returns its result as JSON."""
    method = getattr(owner, request["method"])
    hints = get_type_hints(method)
    arguments = {name: converters(hints[name])[1](value) for name, value in request["arguments"].items()}
    return converters(hints["return"])[0](method(**arguments))


def result_of(method: Callable[..., T], answer: Mapping[str, Any]) -> T:
    """The result of a call in a worker's answer."""
    return cast(T, _return_converters(method)[1](answer["result"]))


@functools.cache
def _return_converters(method: Callable[..., Any]) -> tuple[Converter, Converter]:
    return converters(get_type_hints(method)["return"])
