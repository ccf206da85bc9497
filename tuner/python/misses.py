"""What happens at a problem that nobody tuned: the policy, and a process beside this one that measures.

The process is started at the first question and ends by itself when there are none. It is no child that this
one waits for: whichever ends first, the other goes on, and what was measured is in the database.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from tuner.errors import InputError, UnknownName
from tuner.lookup.asking import database_url
from tuner.results.objectives import LIBRARY_BITS
from tuner.results.record import ProblemKey

#: The environment variable that says what holds where nothing else does.
VARIABLE = "TUNER_ON_MISS"
#: The library runs; what the lookup predicts runs; its best configs are measured.
LIBRARY, PREDICT, MEASURE = POLICIES = ("library", "predict", "measure")
#: Seconds of timing at the most, unless said.
SECONDS = 2.0
#: Bits that calls keep to: any, or the library's.
BITS = "", LIBRARY_BITS


@dataclass(frozen=True, eq=False)
class CallPolicy:
    """What happens at a problem without an exact answer. Equal ones are one object, and quick keys.

    Attributes:
        how: One of `POLICIES`.
        seconds: Seconds of timing at the most, where it is measured.
        wait: True to wait until it has been measured.
        bits: One of `BITS`.
    """

    how: str = PREDICT
    seconds: float = SECONDS
    wait: bool = False
    bits: str = ""


_policy = cache(CallPolicy)
#: The policy of the surrounding block; None where there is none.
CHOSEN: ContextVar[CallPolicy | None] = ContextVar("on_miss", default=None)
#: The process' own policy: None until it is set, or the environment was read.
_own: list[CallPolicy | None] = [None]
#: Grows whenever a problem that nobody tuned may have another answer: what was prepared for it is old.
EPOCH = array("q", [0])
#: The policies of all blocks that are open; how often one was opened or closed.
OPEN: list[CallPolicy] = []
TURNS = array("q", [0])


def expire() -> None:
    """Has calls of problems that nobody tuned decided anew."""
    EPOCH[0] += 1


def chosen() -> CallPolicy:
    """The policy that holds here.

    Raises:
        UnknownName: The environment's is none.
    """
    policy = CHOSEN.get() or _own[0]
    if policy is None:
        how = os.environ.get(VARIABLE) or PREDICT
        policy = _own[0] = _policy(checked(how, f"policy in {VARIABLE}", POLICIES))
    return policy


class on_miss:  # noqa: N801 - called as a function is
    """Sets what happens at a problem that nobody tuned on its device.

    ``tuner.on_miss("measure")`` holds for the process from then on; as a context manager, for the block, in the
    present thread (or asynchronous task).

    - ``library``: the library runs.
    - ``predict``, the default: what the lookup answers runs, a kernel where its gain outweighs the uncertainty.
    - ``measure``: the 8 most promising configs and the library are compiled, verified and timed in a process
      beside this one, which waits its turn for the device. Meanwhile calls go on as with ``predict``; later
      ones, of other processes too, find the result in the database.
    """

    def __init__(self, how: str, *, seconds: float = SECONDS, wait: bool = False, bits: str = "") -> None:
        """Sets it.

        Args:
            how: ``library``, ``predict`` or ``measure``.
            seconds: Seconds of timing at the most, for ``measure``; on a CPU, of compiling, too.
            wait: True to have the first call wait for the result, for ``measure``.
            bits: ``library`` for kernels alone that give the library's bits: until one is measured, the library
                runs. Problems that have a champion are not touched; `tuner.matmul` has bits for these, too.

        Raises:
            UnknownName: No such policy, or bits.
            InputError: Seconds that are not above 0.
        """
        if not (seconds > 0 and math.isfinite(seconds)):
            raise InputError(f"on_miss: seconds are a number above 0, got {seconds!r}; leave them away for 2")
        how, bits = checked(how, "policy", POLICIES), checked(bits, "class of bits", BITS)
        self._policy = _policy(how, float(seconds), bool(wait), bits)
        self._before = _own[0]
        self._token: Token[CallPolicy | None] | None = None
        _own[0] = self._policy
        expire()

    def __enter__(self) -> None:
        """Holds for the block alone."""
        _own[0] = self._before
        self._token = CHOSEN.set(self._policy)
        OPEN.append(self._policy)
        TURNS[0] += 1

    def __exit__(self, *error: object) -> None:
        assert self._token is not None, "entered before"
        CHOSEN.reset(self._token)
        OPEN.remove(self._policy)
        TURNS[0] += 1


def checked(name: str, what: str, known: Collection[str]) -> str:
    """A name that is one of those that are known.

    Raises:
        UnknownName: It is none.
    """
    if name not in known:
        raise UnknownName(what, name, known)
    return name


#: Seconds that a call waits at the most beside those of timing: for the device, compilers and arrays.
WAIT_S = 90.0
#: How a question ends where the process ended before it answered.
FAILED = "failed"


class MeasuringProcess:
    """The process that measures; started again where it has ended. It is asked one question at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._asked: dict[tuple[ProblemKey, str, str], Future[tuple[str, str]]] = {}

    def ask(
        self, problem: ProblemKey, device: str, seconds: float, changed: Callable[[], None], bits: str = ""
    ) -> Future[tuple[str, str]]:
        """Has a problem measured, unless it was asked for before; returns at once.

        Args:
            problem: The problem.
            device: ``cpu`` or ``cuda:0``.
            seconds: Seconds of timing at the most.
            changed: Called in another thread once it has ended, before those who wait go on.
            bits: Class of bits that the champion keeps to; empty for any.

        Returns:
            How it will have ended (``measured``, ``known`` for what another process did, ``nothing``, ``busy``,
            ``failed``), and why where nothing was measured.
        """
        question = {"id": 0, "problem": problem.as_keys(), "device": device, "seconds": seconds}
        question |= {"bits": bits, "db": database_url()}
        pending: Future[tuple[str, str]] = Future()
        known = self._asked.setdefault((problem, device, bits), pending)
        if known is pending:
            arguments = json.dumps(question) + "\n", pending, changed
            threading.Thread(target=self._serve, args=arguments, daemon=True).start()
        return known

    def forget(self) -> None:
        """Lets what has ended be asked for again."""
        self._asked = {key: pending for key, pending in list(self._asked.items()) if not pending.done()}

    def _serve(self, question: str, pending: Future[tuple[str, str]], changed: Callable[[], None]) -> None:
        with self._turn:
            try:
                outcome = self._answer(question)
            except (OSError, ValueError) as error:
                outcome = FAILED, f"the process that measures cannot be started: {error}"
        changed()
        pending.set_result(outcome)

    def _answer(self, question: str) -> tuple[str, str]:
        """Outcome and reason."""
        process = self._running
        if process is None or process.poll() is not None:
            process = self._running = _started()
        stdin, stdout = _pipes(process)
        with contextlib.suppress(BrokenPipeError):
            stdin.write(question)
            stdin.flush()
        line = stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer["outcome"], answer["why"]
        with contextlib.suppress(OSError):
            stdin.close()
        stdout.close()
        code = process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return FAILED, f"the process that measures ended with {how}"

    def release(self) -> None:
        """Lets the process end once it has finished what it measures; nobody waits for it, or warns of it."""
        process = self._running
        if process is None or process.poll() is not None:
            return
        stdin, stdout = _pipes(process)
        idle = self._turn.acquire(blocking=False)  # else a thread reads its answer
        for pipe in (stdin, stdout) if idle else (stdin,):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()
        process.returncode = 0


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


PROCESS = MeasuringProcess()


def _after_fork() -> None:
    """The process is the parent's; a child starts one of its own."""
    global PROCESS
    PROCESS.release()
    PROCESS = MeasuringProcess()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: PROCESS.release())
