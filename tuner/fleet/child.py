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
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock
from tuner.errors import EnvironmentTrouble, InputError, Interrupted, TunerError
from tuner.fleet.condition import Condition, complaints
from tuner.fleet.identity import identity_of
from tuner.fleet.orders import Answer, Database, Greeting, Order, Report
from tuner.fleet.own_file import Outbox
from tuner.nightly.plan.items import PlanItem
from tuner.nightly.stage import Stage
from tuner.nightly.standing import kernels_of, study_of
from tuner.nightly.work import Done, Work
from tuner.store import Store
from tuner.store.patience import PatientStore
from tuner.study.progress import Progress

#: Seconds between two messages about the progress, and that the end may take once the worker is gone.
TELL_EVERY_S, END_WITHIN_S = 0.5, 3.0
#: Stages whose seconds grow only if something was done.
WORKED = ("opening", "baseline", "compile", "load", "verify", "time", "power", "finals")
#: Environment variable with the URL by which this machine reaches the database.
DATABASE_VARIABLE = "TUNER_WORKER_DB"
#: Seconds to wait for a device that another process still holds.
LOCK_WAIT_S = 15.0


class Child:
    """Serves one worker.

    Attributes:
        lock_wait_s: Seconds to wait for a device that another process still holds.
    """

    lock_wait_s = LOCK_WAIT_S

    def __init__(self, channel: Connection, spec: str, folder: Path, url: str = "") -> None:
        """Finds the device.

        Args:
            channel: To the worker.
            spec: The device.
            folder: Of the worker's own files.
            url: How this machine reaches the database, if the coordinator's URL does not serve here.

        Raises:
            DeviceTrouble: There is no such device.
        """
        self._channel, self._folder, self._url = channel, folder, url
        self._found = find(spec)
        self._known: dict[str, Catalogue] = {}
        self._working = False
        self._told_s = 0.0
        self._database: Database | None = None
        self._outbox: Outbox | None = None
        self._store: Any = None
        self._stage: Stage | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @property
    def device(self) -> DeviceInfo:
        """Its device."""
        return self._found.info

    def serve(self) -> None:
        """Answers until the worker closes the channel."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                try:
                    message = self._channel.recv()
                except Interrupted:  # the study that is open was told to stop
                    self._close_stage()
                    continue
                self._channel.send(("answer", self._answer(message)))
        self._close()

    def _answer(self, message: Any) -> Any:
        self._working = True
        try:
            if isinstance(message, Greeting):
                return self._report(message)
            return self._work(message)
        except (TunerError, KeyboardInterrupt) as error:
            return error if isinstance(error, TunerError) else Interrupted("interrupted")
        finally:
            self._working = False

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Outside of a study, which has a handler of its own."""
        if self._working:
            raise Interrupted("stopped")

    def _report(self, greeting: Greeting) -> Report:
        self._open_store(greeting.database)
        told = self.condition()
        outbox = self._outbox
        handed = outbox.handed(self._found.info.uuid) if outbox else None
        return Report(
            socket.gethostname(), self._found.spec, told.info, told.versions,
            identity_of(path for path, _ in greeting.identity.files), told.complaints,
            handed, outbox.kept() if outbox else (),
        )  # fmt: skip

    def condition(self) -> Condition:
        """Looks at the device."""
        return complaints(self._found)

    def stage(self, store: Store) -> Stage:
        """Makes what runs the work."""
        return Stage(store, (self._found,), self._view)

    def _open_store(self, database: Database) -> None:
        if database == self._database:
            return
        self._close()
        if database.url:
            self._store = PatientStore.open(self._url or database.url)
            self._store.waiting = self._waits
            if self._store.identity != database.identity:
                raise InputError(
                    "a worker writes into the coordinator's database, and its own --db is another; give both "
                    "the same"
                )
        else:
            board = self._found.info.uuid or self._found.info.name
            self._outbox = Outbox(self._folder / database.identity / board.replace("/", "-"))
            self._store = self._outbox.store
        self._database = database
        self._stage = self.stage(self._store)

    def _work(self, order: Order) -> Answer:
        begun_s = time.monotonic()
        self._open_store(order.database)
        assert self._stage is not None
        if self._outbox is not None:
            self._outbox.acknowledge(order.stored)
            self._outbox.forget(order.taken)
            if order.lines:
                self._outbox.store.take(order.lines)
        else:
            self._store.claim = order.claim
        trouble = ""
        try:
            done = self._stage.run(self._work_of(order))
        except Interrupted as error:
            done = replace(self._stage.done, lost=str(error), cut=True)
            self._close_stage()
        except TunerError as error:
            done, trouble = replace(self._stage.done, lost=str(error)), str(error)
            self._close_stage()
        return self._handed_in(order, done, trouble, time.monotonic() - begun_s)

    def _handed_in(self, order: Order, done: Done, trouble: str, seconds: float) -> Answer:
        champion = done.finished.champion if done.finished else None
        answer = Answer(order.claim, done, kept=self._outbox is None, trouble=trouble, seconds=seconds)
        if self._outbox is None:
            return answer
        if champion is not None:
            self._outbox.keep(order.claim, champion)
        return replace(answer, handed=self._outbox.handed(self._found.info.uuid))

    def _work_of(self, order: Order) -> Work:
        """The work by this machine's own files.

        Raises:
            EnvironmentTrouble: Something is not here, or is another than the coordinator's.
        """
        try:
            item = order.item.found(self._known)
            kernels = kernels_of(item, self._found.target)
        except InputError as error:
            raise EnvironmentTrouble(f"a worker's kernels are the coordinator's: {error}") from error
        study = study_of(item, self._found.info, kernels)
        if study != order.study:
            self._known.clear()
            raise EnvironmentTrouble(
                f"a worker's kernels are the coordinator's: there the study is {order.study!r}, here "
                f"{study!r}; use the same files"
            )
        return Work(
            order.name, item, kernels, order.turn, order.parts, order.why, order.seconds, order.finals_s,
            order.library, order.seed, order.sampler, order.storage_url,
        )  # fmt: skip

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
        self._channel.send(
            (
                "progress",
                {
                    "stage": progress.stage, "trials": progress.trials, "done_s": round(done, 2),
                    "best_s": progress.best_s, "best": progress.best, "baseline_s": progress.baseline_s,
                },
            )
        )  # fmt: skip

    def _waits(self) -> None:
        """The database is away: the study goes on, or waits, and does not hang."""
        self._channel.send(("progress", {"stage": "waiting for the database", "at_s": time.monotonic()}))

    def _close_stage(self) -> None:
        if self._stage is not None:
            self._stage.close()

    def _close(self) -> None:
        self._close_stage()
        if self._outbox is not None:
            self._outbox.close()
        elif self._store is not None:
            self._store.close()
        self._outbox = self._stage = self._store = self._database = None


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
    """``python -m tuner.fleet.child CHANNEL LIFE SPEC FOLDER``; the environment names the database, if any.

    Args:
        made: Serves the worker.
    """
    channel, life, spec, folder = sys.argv[1:5]
    end_with(int(life))
    connection = Connection(int(channel))
    try:
        child = made(connection, spec, Path(folder), os.environ.get(DATABASE_VARIABLE, ""))
        with device_lock(child.device, "worker", child.lock_wait_s):
            child.serve()
    except TunerError as error:
        connection.send(("answer", error))


if __name__ == "__main__":
    main()
