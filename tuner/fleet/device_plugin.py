"""The device of a worker, as a plugin of Dask's worker process: runs studies, and ends them if they hang.

Studies run in the one thread of the worker's executor, and this plugin watches them from its event loop.
Progress is watched, and not only life: a process whose study gets no further kills itself, and Dask's nanny
starts another. The process ends with its nanny.
"""

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker

from tuner.declare.catalogue import Catalogue
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock
from tuner.devices.machine_load import MachineWatch, slowed
from tuner.errors import EnvironmentTrouble, InputError, Interrupted, TunerError
from tuner.fleet import orders
from tuner.night.claims import PatientStore, patiently
from tuner.night.night import Stage
from tuner.night.sentinels import Code
from tuner.night.stored import Sentinel
from tuner.night.work import Assignment, kernels_of, study_of
from tuner.results.measurement import OTHERS_PROCESSES, complaints
from tuner.store import Store
from tuner.study.progress import Progress
from tuner.workers.device_worker import Crew

#: Topic of the messages about progress.
PROGRESS = "tile-tuner-progress"
#: Seconds between two looks at the study, and between two messages about its progress.
LOOK_S, TELL_EVERY_S = 0.1, 0.5
#: Seconds without progress after which a search has stalled. Opening a study and its finals tell nothing of
#: their progress, and limit their own steps (`tuner.workers.device_worker`): they may take so many times that.
STALL_S, UNTOLD = 240.0, 3
#: Seconds that a look at the device may take, that a device held by another process is waited for, and that a
#: study may take to end when it is told to.
START_LIMIT_S, LOCK_WAIT_S, STOP_WITHIN_S = 180.0, 15.0, 5.0
#: Seconds without an order after which the device is closed, and for which a worker that ends keeps its answer.
IDLE_S, KEEP_ANSWER_S = 10.0, 1.0
#: Stages whose seconds grow only if something was done.
WORKED = ("opening", "baseline", "compile", "load", "verify", "time", "power", "finals")
#: Why a worker ends for good.
TOLD_TO_END, LIFETIME_OVER, WAS_IDLE = "its worker was told to end", "its lifetime is over", "it was idle"


@dataclass
class _Task:
    """What the executor's thread does now.

    Attributes:
        limit_s: Seconds without progress after which a search has stalled.
        order: The order; None for a greeting and for sentinels.
        progress: What it last told.
        progressed_s: `time.monotonic` when it last got further.
        interrupted: True once it was told to end.
    """

    limit_s: float
    order: orders.Order | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    progressed_s: float = field(default_factory=time.monotonic)
    interrupted: bool = False

    @property
    def stalled(self) -> str:
        """Why the study must be killed; empty if it gets further."""
        stage = self.progress.get("stage", "opening")
        limit_s = self.limit_s * (1 if stage == "searching" or self.order is None else UNTOLD)
        if time.monotonic() - self.progressed_s < limit_s:
            return ""
        return f"it got no further for {limit_s:.0f} s while {stage}, and was killed"


@contextlib.contextmanager
def _own_files() -> Iterator[None]:
    """Whatever this machine's files lack is its own trouble, and no fault of the problem."""
    try:
        yield
    except InputError as error:
        raise EnvironmentTrouble(f"a worker's kernels are the coordinator's: {error}") from error


class DevicePlugin(WorkerPlugin):
    """One device of a worker, in the process that Dask's nanny keeps.

    Attributes:
        spec: The device.
        cores: The process, and what it starts, run on these; None for all.
        device: The device, once the worker runs.
        stage: Runs the work; None without a database.
        lock_wait_s: Seconds to wait for a device that another process still holds.
    """

    name = "tile-tuner"
    lock_wait_s = LOCK_WAIT_S

    def __init__(
        self, spec: str, url: str = "", stall_s: float = STALL_S, idle_exit_s: float = math.inf,
        ends_at: float = math.inf, cores: set[int] | None = None,
    ) -> None:  # fmt: skip
        """Keeps what the worker process needs, and touches no device.

        Args:
            spec: The device.
            url: How this machine reaches the database; empty to take the coordinator's word.
            stall_s: Seconds without progress after which a search has stalled.
            idle_exit_s: The worker ends after so many seconds without work.
            ends_at: `time.time` at which the worker ends.
            cores: The process, and what it starts, run on these; None for all.
        """
        self.spec = spec
        self.cores, self._url, self._stall_s = cores, url, stall_s
        self._idle_exit_s, self._ends_at = idle_exit_s, ends_at

    async def setup(self, worker: Any) -> None:
        """Begins to watch, in the worker process.

        Raises:
            DeviceTrouble: There is no such device.
        """
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        self.device = find(self.spec)
        self._worker, self._busy = worker, threading.Lock()
        self._lock: contextlib.ExitStack | None = None
        self._task: _Task | None = None
        self._idle_since_s = time.monotonic()
        self._sent_s = self._stopped_s = 0.0
        self._stopping = self._ending = ""
        self._code: Code = {}
        self._store: PatientStore | None = None
        self._database: orders.Database | None = None
        self.stage: Any = None
        self._catalogues: dict[Path | None, Catalogue] = {}
        # Ctrl-C reaches the coordinator, which stops its workers in an orderly way.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end, TOLD_TO_END)
        self._watching = asyncio.create_task(self._watch())

    def greet(self, greeting: orders.Greeting) -> orders.WorkerReport:
        """Looks at the device, and says what this machine is.

        Raises:
            TunerError: The device or the database cannot be used.
        """
        with self._at_work(_Task(START_LIMIT_S)):
            self._open(greeting.database)
            identity = orders.identity_of(greeting.files)
            return replace(self.condition(), host=socket.gethostname(), identity=identity)

    def condition(self) -> orders.WorkerReport:
        """Opens a device, computes something small on it, and looks at its clocks and at who else uses it.

        A CPU that others use is no reason: a night on this machine warns of that, too, and its champions are
        provisional.
        """
        load = MachineWatch((self.device,)).load()
        troubles = list(complaints(load)) if load.get(OTHERS_PROCESSES) else []
        troubles += [f"its clocks are lowered: {reason}" for reason in slowed(self.device)]
        info, versions, unwell = self.device.info, dict[str, str](), ""
        try:
            with Crew((self.device,)) as crew:
                worker = crew.devices[0]
                info, versions = worker.info, dict(worker.versions)
                unwell = worker.trusted({"do": "canary"})["unwell"]
        except TunerError as error:
            unwell = str(error)
        troubles += [f"its canary fails: {unwell}"] if unwell else []
        return orders.WorkerReport(info, versions, tuple(troubles))

    def time(self, order: orders.SentinelOrder) -> list[list[Sentinel]]:
        """Times sentinels, a list for each pass.

        Raises:
            TunerError: The device cannot be used.
        """
        with self._at_work(_Task(order.limit_s)):
            with _own_files():
                problems = order.resolve(self.device.target, self._catalogues)
            return [one.over(self.device, self._code, problems) for one in order.passes]

    def work(self, order: orders.Order) -> orders.WorkAnswer:
        """Does a piece of work; a study or device that fails is an answer.

        Raises:
            TunerError: The device is held by another process, or the database cannot be opened.
        """
        trouble = ""
        with self._at_work(_Task(self._stall_s, order)):
            self._open(order.database)
            assert self._store is not None
            self._store.claim = order.claim
            try:
                done = self.stage.run(self._work_of(order))
            except Interrupted as error:
                done = replace(self.stage.done, lost=str(error), cut=True)
                self.stage.close()
            except TunerError as error:
                done, trouble = replace(self.stage.done, lost=str(error)), str(error)
                self.stage.close()
        return orders.WorkAnswer(order.claim, done, trouble)

    def stop(self, why: str) -> None:
        """Ends the present work in an orderly way."""
        if self._task is not None and not self._stopping:
            self._stopping, self._stopped_s = why, time.monotonic()

    @contextlib.contextmanager
    def _at_work(self, task: _Task) -> Iterator[None]:
        """Holds the device from the first task on."""
        with self._busy:
            self._stopping, self._task = "", task
            task.progressed_s = time.monotonic()
            try:
                if self._lock is None:
                    lock = contextlib.ExitStack()
                    lock.enter_context(device_lock(self.device.info, "worker", self.lock_wait_s))
                    self._lock = lock
                yield
            finally:
                self._task, self._idle_since_s = None, time.monotonic()

    def _open(self, database: orders.Database) -> None:
        """Opens a database, unless it is open.

        Raises:
            InputError: The worker's own URL leads to another database than the coordinator's.
            StoreTrouble: It cannot be used.
        """
        if database == self._database:
            return
        self._close()
        url = self._url or database.url
        self._store = patiently(lambda: PatientStore.open(url), waiting=self._waits)
        self._store.waiting = self._waits  # type: ignore[method-assign]
        if self._store.identity != database.identity:
            raise InputError(
                "a worker writes into the coordinator's database, and its own --db is another; give both "
                "the same"
            )
        self._database = database
        self.stage = self.stage_of(self._store)

    def stage_of(self, store: Store) -> Stage:
        """What runs the work."""
        return Stage(store, (self.device,), lambda item: contextlib.nullcontext(self._report))

    def _work_of(self, order: orders.Order) -> Assignment:
        """The work by this machine's own files.

        Raises:
            EnvironmentTrouble: Something is not here, or is another than the coordinator's.
        """
        with _own_files():
            item = order.item.resolve(self._catalogues)
            kernels = kernels_of(item, self.device.target)
        study = study_of(item, self.device.info, kernels)
        if study != order.study:
            self._catalogues.clear()
            raise EnvironmentTrouble(
                f"a worker's kernels are the coordinator's: there the study is {order.study!r}, here "
                f"{study!r}; use the same files"
            )
        return replace(order.work, item=item, kernels=kernels)

    def _close(self) -> None:
        """Ends the study and the connection; what was measured is stored."""
        if self.stage is not None:
            self.stage.close()
        if self._store is not None:
            self._store.close()
        self.stage = self._store = self._database = None

    def _report(self, progress: Progress) -> None:
        """Takes how far the study is. Seconds that grow while nothing is done do not count."""
        done_s = sum(progress.spent_s.get(stage, 0.0) for stage in WORKED)
        reached = {"trials": progress.trials, "done_s": round(done_s, 2), "best_s": progress.best_s}
        self.tell(stage=progress.stage, **reached)

    def _waits(self) -> None:
        """The database is away: the study goes on, or waits, and does not hang."""
        self.tell(stage="waiting for the database", at_s=time.monotonic())

    def tell(self, **progress: Any) -> None:
        """Notes progress, and tells the coordinator of it now and then.

        Raises:
            Interrupted: The work is to end.
        """
        task, now_s = self._task, time.monotonic()
        if task is None:
            return
        if self._stopping and not task.interrupted:
            task.interrupted = True
            raise Interrupted(self._stopping)
        if progress != task.progress:
            task.progress, task.progressed_s = progress, now_s
        if now_s - self._sent_s > TELL_EVERY_S:
            self._sent_s = now_s
            self._send(**progress)

    def _send(self, **progress: Any) -> None:
        if self._task is not None and self._task.order is not None:
            order = self._task.order
            self._worker.log_event(PROGRESS, {"claim": order.claim, "night": order.night, **progress})

    def _end(self, why: str) -> None:
        self._ending = self._ending or why
        self.stop(why)

    async def _watch(self) -> None:
        """Ends work that hangs or that nobody waits for, and the worker when its time is up."""
        while not await self._is_over():
            await asyncio.sleep(LOOK_S)
        # In a task of its own: closing the worker removes this plugin.
        self._closing = asyncio.ensure_future(self._worker.close(reason=self._ending, timeout=5))

    async def _is_over(self) -> bool:
        now_s, task = time.monotonic(), self._task
        if time.time() > self._ends_at:
            self._end(LIFETIME_OVER)
        if task is not None:
            # Dask does not end a task that runs.
            if any(state.state == "cancelled" for state in self._worker.state.tasks.values()):
                self.stop("its coordinator has gone")
            if self._stopping and now_s - self._stopped_s > STOP_WITHIN_S:
                await self._die(
                    f"{self._stopping}, and its study process took longer than {STOP_WITHIN_S:g} s to end"
                )
            if task.stalled:
                await self._die(task.stalled)
            return False
        idle_s = now_s - self._idle_since_s
        if idle_s > self._idle_exit_s:
            self._end(WAS_IDLE)
        if idle_s > IDLE_S and self.stage is not None and self._busy.acquire(blocking=False):
            try:
                self.stage.close()
            finally:
                self._busy.release()
        return bool(self._ending) and idle_s > KEEP_ANSWER_S

    async def _die(self, why: str) -> None:
        """Ends this process at once, with what hangs in it; Dask's nanny starts another unless it is to end."""
        self._send(lost=why, cut=bool(self._stopping))
        await asyncio.sleep(LOOK_S)
        if self._ending:
            async with self._worker.rpc(self._worker.nanny) as nanny:
                await nanny.close_gracefully(reason=self._ending)
        os.kill(os.getpid(), signal.SIGKILL)

    async def teardown(self, worker: Any) -> None:
        """Ends the study, whose trials are stored; Dask closes the worker."""
        self.stop("its worker ends")
        until_s = time.monotonic() + STOP_WITHIN_S
        while self._task is not None and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S)
        self._close()
        if self._lock is not None:
            self._lock.close()


def perform(what: str, message: Any) -> Any:
    """What Dask calls on a worker: a method of its device, by name and with plain data.

    Args:
        what: ``greet``, ``time`` or ``work``.
        message: Its argument.

    Raises:
        EnvironmentTrouble: The process is no worker of ours.
    """
    device = get_worker().plugins.get(DevicePlugin.name)
    if device is None:
        raise EnvironmentTrouble("a worker is started by `tuner worker`, this one was not; start it so")
    return getattr(device, what)(message)


async def stop(why: str, dask_worker: Any) -> None:
    """Ends the present work of a worker; called beside the task, on the worker's event loop.

    It is a coroutine, so that Dask need not wait for it: a worker that is frozen would never answer.
    """
    device = dask_worker.plugins.get(DevicePlugin.name)
    if device is not None:
        device.stop(why)
