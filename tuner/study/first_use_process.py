"""The process that measures problems at their first use, for a program that goes on meanwhile.

Run as ``python -m tuner.study.first_use_process``. Each line of its input asks for a problem on a device, each
line of its output tells how that ended. It holds the device's lock and the database's while it measures, and
what it needs of a device for a while after. If the program ends, what is being measured is finished and kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice, find
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, LockedByAnother, TunerError
from tuner.lookup import answer
from tuner.lookup.stale import builtin_now
from tuner.store import Store
from tuner.study.first_use import CONFIGS, FirstUse, measure
from tuner.study.locks import occupied
from tuner.study.setup import key_of
from tuner.workers.device_worker import Crew

#: Seconds without a question after which the process ends.
IDLE_S = 10.0
#: Seconds to wait for another process that uses the device, and between two attempts.
LOCK_S, AGAIN_S = 30.0, 0.2
#: Seconds beside those of waiting and timing after which a question ends the process, whatever hangs.
HANGS_S = 120.0
#: How a question may end.
MEASURED, KNOWN, NOTHING, BUSY, FAILED = "measured", "known", "nothing", "busy", "failed"


class Devices:
    """Devices that stay open from one question to the next."""

    def __init__(self) -> None:
        self._open: dict[str, Crew] = {}

    def crew(self, found: DetectedDevice) -> Crew:
        """The workers of a device.

        Raises:
            DeviceTrouble: The device cannot be opened.
        """
        if found.spec not in self._open:
            self._open[found.spec] = Crew([found], CONFIGS)
        self._open[found.spec].open()
        return self._open[found.spec]

    def close(self) -> None:
        """Ends the workers."""
        while self._open:
            self._open.popitem()[1].close()


def answered(asked: Mapping[str, Any], devices: Devices) -> tuple[str, str]:
    """Measures what is asked, unless it is known by now.

    Args:
        asked: ``problem``, ``device``, ``db`` and ``seconds``.
        devices: Devices that are open.

    Returns:
        How it ended, and the reason for people where nothing was measured.
    """
    told = asked["problem"]
    until_s = time.monotonic() + LOCK_S
    while True:
        try:
            operation = builtin_now().operation(told["operation"])
            words = told["dtype"], told["layout"], told["precision"], told.get("epilogue", "")
            problem = operation.problem(told["shape"], *words)
            found = find(asked["device"])
            with Store.open(asked["db"]) as store, occupied(asked["db"], (found,), f"first use of {problem}"):
                return _measured(problem, found, store, asked["seconds"], devices)
        except LockedByAnother as error:
            if time.monotonic() > until_s:
                return BUSY, str(error)
            time.sleep(AGAIN_S)
        except DeviceTrouble as error:
            devices.close()
            return FAILED, str(error)
        except TunerError as error:
            return FAILED, str(error)
        except Exception as error:  # the program goes on without, and is told why
            devices.close()
            return FAILED, f"{type(error).__name__}: {error}"


def _measured(
    problem: Problem, found: DetectedDevice, store: Store, seconds: float, devices: Devices
) -> tuple[str, str]:
    """As `answered`, with the locks held."""
    crew = devices.crew(found)
    # Another process may have measured it while this one waited.
    if answer(store, key_of(problem), crew.devices[0].info).match == "exact":
        return KNOWN, ""
    kernels = builtin_now().serving(problem, found.target)
    champion = measure(FirstUse(problem, kernels, seconds), store, crew, MachineWatch((found,)))
    if champion is None:
        return NOTHING, "none of its most promising configs could be measured"
    return MEASURED, ""


def questions(descriptor: int) -> Iterator[dict[str, Any]]:
    """The lines of an input, until it ends or nothing comes for a while."""
    rest = b""
    while select.select([descriptor], [], [], IDLE_S)[0]:
        read = os.read(descriptor, 1 << 16)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            yield json.loads(line)
            if _ended(descriptor):
                return


def _ended(descriptor: int) -> bool:
    """Whether whoever writes has gone: what was asked beyond this is not measured."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poll.poll(0))


def serve(descriptor: int, replies: TextIO) -> None:
    """Answers the questions of an input, one after the other.

    Args:
        descriptor: The input.
        replies: Where to say how each ended.
    """
    with contextlib.closing(Devices()) as devices:
        for asked in questions(descriptor):
            signal.alarm(int(LOCK_S + HANGS_S + 2 * asked["seconds"]))
            outcome, why = answered(asked, devices)
            signal.alarm(0)
            with contextlib.suppress(BrokenPipeError):
                replies.write(json.dumps({"id": asked["id"], "outcome": outcome, "why": why}) + "\n")
                replies.flush()


def main() -> None:
    """Serves standard input; what anything prints goes nowhere."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(0, replies)
    with contextlib.suppress(BrokenPipeError):
        replies.close()


if __name__ == "__main__":
    main()
