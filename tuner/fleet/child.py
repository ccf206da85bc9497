"""The study process of a worker: does what the worker is ordered, one piece of work after the other.

It is a process of its own, so that a study that computes or hangs does not keep the worker from telling that it
lives, and so that it can be stopped: SIGTERM ends a slice in an orderly way. It ends with its worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice, find
from tuner.devices.device_lock import device_lock
from tuner.devices.machine_load import MachineWatch, described, slowed
from tuner.errors import Interrupted, TunerError
from tuner.fleet.orders import DATABASE_VARIABLE, Greeting, Order, Report, WatchOrder, identity_of
from tuner.fleet.sentinels import time_here
from tuner.fleet.studies import Studies
from tuner.night.plan.items import PlanItem
from tuner.results.doubts import OTHERS_PROCESSES
from tuner.results.sentinel import Sentinel
from tuner.study.progress import Progress
from tuner.workers.process import Worker, WorkerFailed, answered


@dataclass(frozen=True)
class Condition:
    """A device and its state.

    Attributes:
        info: The device as the process knows it that opened it.
        versions: Versions of compiler, driver and libraries.
        complaints: What is wrong; empty if it is fit.
    """

    info: DeviceInfo
    versions: Mapping[str, str]
    complaints: tuple[str, ...] = ()


def complaints(found: DetectedDevice) -> Condition:
    """Opens a device, computes something small on it, and looks at its clocks and at who else uses it.

    A CPU that others use is no reason: a night on this machine warns of that, too, and its champions are
    provisional.
    """
    watch = MachineWatch((found,))
    load = watch.load()
    seen: list[str] = []
    if load.seen.get(OTHERS_PROCESSES):
        seen += described(load)
    seen += [f"its clocks are lowered: {reason}" for reason in slowed(found)]
    info, versions, unwell = _opened(found)
    return Condition(info, versions, tuple(seen + ([f"its canary fails: {unwell}"] if unwell else [])))


def _opened(found: DetectedDevice) -> tuple[DeviceInfo, Mapping[str, str], str]:
    """The device, its versions, and why its canary fails; empty if it does not."""
    worker = Worker("device", found.opening, dict(found.environment))
    try:
        hello = answered(worker.ask({"do": "hello"}))
        unwell = str(answered(worker.ask({"do": "canary"}))["unwell"])
        return DeviceInfo.from_json(hello["info"]), hello["versions"], unwell
    except (WorkerFailed, TunerError) as error:
        return found.info, {}, str(error)
    finally:
        worker.close()


#: Seconds between two messages about the progress, and that the end may take once the worker is gone.
TELL_EVERY_S, END_WITHIN_S = 0.5, 3.0
#: Stages whose seconds grow only if something was done.
WORKED = ("opening", "baseline", "compile", "load", "verify", "time", "power", "finals")
#: Seconds to wait for a device that another process still holds.
LOCK_WAIT_S = 15.0
#: Seconds without an order after which the device is closed.
IDLE_S = 10.0


class Child:
    """Serves one worker.

    Attributes:
        lock_wait_s: Seconds to wait for a device that another process still holds.
        studies: Does the work.
    """

    lock_wait_s = LOCK_WAIT_S

    def __init__(self, channel: Connection, spec: str, url: str = "") -> None:
        """Finds the device.

        Args:
            channel: To the worker.
            spec: The device.
            url: How this machine reaches the database, if the coordinator's URL does not serve here.

        Raises:
            DeviceTrouble: There is no such device.
        """
        self._channel = channel
        self._found = find(spec)
        self._working = False
        self._told_s = 0.0
        self._code: Any = None
        self.studies = Studies(self._found, url, self._view, self._waits)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @property
    def device(self) -> DeviceInfo:
        """Its device."""
        return self._found.info

    def serve(self) -> None:
        """Answers until the worker closes the channel."""
        with contextlib.suppress(EOFError, OSError):
            self._channel.send(("progress", {"stage": "opening"}))
            while True:
                try:
                    if not self._channel.poll(IDLE_S):
                        self.studies.rest()
                    message = self._channel.recv()
                except Interrupted:  # the study that is open was told to stop
                    self.studies.stage.close()
                    continue
                self._channel.send(("answer", self._answer(message)))
        self.studies.close()

    def _answer(self, message: Any) -> Any:
        self._working = True
        try:
            if isinstance(message, Greeting):
                return self._report(message)
            return self._timed(message) if isinstance(message, WatchOrder) else self.work(message)
        except (TunerError, KeyboardInterrupt) as error:
            return error if isinstance(error, TunerError) else Interrupted("interrupted")
        finally:
            self._working = False

    def _timed(self, order: WatchOrder) -> list[list[Sentinel]]:
        found, self._code = time_here(self._found, order, {}, self._code)
        return found

    def work(self, order: Order) -> Any:
        """Does a piece of work."""
        return self.studies.work(order)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Outside of a study, which has a handler of its own."""
        if self._working:
            raise Interrupted("stopped")

    def _report(self, greeting: Greeting) -> Report:
        self.studies.open(greeting.database)
        told = self.condition()
        return Report(
            socket.gethostname(), self._found.spec, told.info, told.versions,
            identity_of(path for path, _ in greeting.identity.files), told.complaints,
        )  # fmt: skip

    def condition(self) -> Condition:
        """Looks at the device."""
        return complaints(self._found)

    @contextlib.contextmanager
    def _view(self, item: PlanItem) -> Iterator[Any]:
        yield self._tell

    def _tell(self, progress: Progress) -> None:
        """Tells the worker how far the study is. Seconds that grow while nothing is done do not count."""
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_EVERY_S:
            return
        self._told_s = now_s
        done = sum(progress.spent_s.get(stage, 0.0) for stage in WORKED)
        self.tell(
            stage=progress.stage, trials=progress.trials, done_s=round(done, 2), best_s=progress.best_s,
            best=progress.best, baseline_s=progress.baseline_s,
        )  # fmt: skip

    def tell(self, **progress: Any) -> None:
        """Sends progress."""
        self._channel.send(("progress", progress))

    def _waits(self) -> None:
        """The database is away: the study goes on, or waits, and does not hang."""
        self._channel.send(("progress", {"stage": "waiting for the database", "at_s": time.monotonic()}))


def end_with(life: int) -> None:
    """Ends this process soon after the other end of a pipe was closed, whatever it does then."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(life, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_WITHIN_S)
        os._exit(1)

    threading.Thread(target=watch, name="life", daemon=True).start()


def main(made: type[Child] = Child) -> None:
    """``python -m tuner.fleet.child CHANNEL LIFE SPEC``; the environment names the database, if any.

    Args:
        made: Serves the worker.
    """
    channel, life, spec = sys.argv[1:4]
    end_with(int(life))
    connection = Connection(int(channel))
    try:
        child = made(connection, spec, os.environ.get(DATABASE_VARIABLE, ""))
        with device_lock(child.device, "worker", child.lock_wait_s):
            child.serve()
    except TunerError as error:
        connection.send(("answer", error))


if __name__ == "__main__":
    main()
