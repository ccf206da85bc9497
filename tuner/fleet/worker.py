"""The process of `tuner worker`: a Dask worker for each device, until it is idle or its time is up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.devices.settings import cache_root
from tuner.errors import EnvironmentTrouble
from tuner.fleet import node
from tuner.fleet.clusters import Certificates, share_cores
from tuner.fleet.keeper import Keeper, Place

#: Seconds between two looks at idleness and lifetime, and that a slice may take to end before the worker does.
LOOK_S, END_WITHIN_S = 0.5, 20.0
#: Seconds to wait for the scheduler at the start.
SCHEDULER_WITHIN_S = 60.0
#: Seconds between two attempts to find a scheduler that went away, and between restarts of a worker that died.
RETRY_S = 2.0
#: A worker that dies so often within its first minute is not started again.
MOST_DEATHS, SOON_S = 3, 60.0


@dataclass(frozen=True)
class Options:
    """How a worker works.

    Attributes:
        scheduler: Address of the scheduler, ``tcp://host:8786``.
        folder: For its own files and caches; by default in the user's cache folder.
        name: Its name; by default that of the machine, and the device.
        url: How this machine reaches the database; empty to take the coordinator's word.
        idle_exit_s: It ends after so many seconds without work; None to stay.
        lifetime_s: It ends after so many seconds; None to stay.
        stall_s: Seconds without progress after which a search has stalled.
        certificates: For TLS.
        interface: Network interface; empty for the default one.
        command: Starts a study process.
    """

    scheduler: str
    folder: Path | None = None
    name: str = ""
    url: str = ""
    idle_exit_s: float | None = None
    lifetime_s: float | None = None
    stall_s: float = Place.stall_s
    certificates: Certificates = field(default_factory=Certificates)
    interface: str = ""
    command: Sequence[str] = Place.command


def resources(info: DeviceInfo) -> dict[str, float]:
    """What a device is called as a resource of Dask; one piece of work takes all of it."""
    return {f"device:{info.name}": 1, f"board:{info.uuid or info.name}": 1, "memory_bytes": info.memory_bytes}


def serve(found: DetectedDevice, options: Options) -> None:
    """Serves one device until its time is up, it is idle for long, or SIGTERM comes.

    If the scheduler goes away, it waits for its return as long as it may be idle.

    Raises:
        EnvironmentTrouble: There is no scheduler at the address.
    """
    name = options.name or f"{socket.gethostname()}-{_plain(Path(found.spec).name)}-{os.getpid()}"
    folder = (options.folder or cache_root() / "workers") / _plain(found.info.uuid or found.info.name)
    folder.mkdir(parents=True, exist_ok=True)
    # Compilers of several workers do not wait for each other's files.
    os.environ["TUNER_CACHE"] = str(folder / "cache")
    place = Place(found.spec, folder, options.url, options.stall_s, options.command)
    node.KEEPER = keeper = Keeper(place)
    try:
        asyncio.run(_Served(keeper, found.info, name, folder, options).run())
    finally:
        keeper.close()


class _Served:
    """One device's Dask worker, started again when its scheduler returns."""

    def __init__(
        self, keeper: Keeper, info: DeviceInfo, name: str, folder: Path, options: Options
    ) -> None:  # fmt: skip
        self._keeper, self._info, self._name, self._folder = keeper, info, name, folder
        self._options = options
        self._begun_s = time.monotonic()
        self._ending = ""

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end, "its worker was told to end")
        first = True
        while not self._ending:
            try:
                worker = await self._connected()
            except (OSError, TimeoutError) as error:
                if first:
                    raise EnvironmentTrouble(
                        f"a worker needs a scheduler, none answers at {self._options.scheduler} ({error}); "
                        f"start one with `dask scheduler`, or check address, port and certificates"
                    ) from error
                await self._pause()
                continue
            first = False
            await self._until_end(worker)

    def _end(self, why: str) -> None:
        self._ending = self._ending or why

    async def _connected(self) -> Any:
        from tuner.fleet.clusters import quiet

        quiet()
        from distributed import Worker

        # Its study process holds the memory, and limits it itself: Dask need not.
        worker = Worker(
            self._options.scheduler, nthreads=1, name=self._name, resources=resources(self._info),
            local_directory=str(self._folder / "dask"), memory_limit=0, death_timeout=SCHEDULER_WITHIN_S,
            security=self._options.certificates.security("worker"), dashboard_address="127.0.0.1:0",
            interface=self._options.interface or None,
        )  # fmt: skip
        return await worker

    async def _until_end(self, worker: Any) -> None:
        """Returns when the scheduler is gone; closes the worker when its own time is up."""
        finished = asyncio.ensure_future(worker.finished())
        while not finished.done():
            await asyncio.wait([finished], timeout=LOOK_S)
            self._look()
            if any(task.state == "cancelled" for task in worker.state.tasks.values()):
                # Dask does not end a task that runs.
                self._keeper.stop("its coordinator has gone")
            if self._ending:
                await self._stopped()
                await worker.close(timeout=5)
                return
        self._keeper.stop("its scheduler is gone")

    def _look(self) -> None:
        options, now_s = self._options, time.monotonic()
        if options.lifetime_s is not None and now_s - self._begun_s > options.lifetime_s:
            self._end("its lifetime is over")
        idle_since_s = self._keeper.idle_since_s
        idle = idle_since_s is not None and options.idle_exit_s is not None
        if idle and now_s - (idle_since_s or 0.0) > (options.idle_exit_s or 0.0):
            self._end("it was idle")

    async def _stopped(self) -> None:
        """Ends a slice, whose answer the coordinator still gets."""
        if not self._keeper.stop(self._ending):
            return
        until_s = time.monotonic() + END_WITHIN_S
        while self._keeper.idle_since_s is None and time.monotonic() < until_s:
            await asyncio.sleep(LOOK_S / 5)
        await asyncio.sleep(2 * LOOK_S)

    async def _pause(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._look()


def serve_each(found: Sequence[DetectedDevice], arguments: Callable[[DetectedDevice], list[str]]) -> int:
    """Runs a worker process for each device, and starts one again that dies.

    Args:
        found: The devices.
        arguments: Arguments of ``tuner`` that serve one device.

    Returns:
        The largest exit code.
    """
    wards = [_Ward([sys.executable, "-m", "tuner", *arguments(each)]) for each in found]
    share_cores(found, [each.pid for each in wards])
    ended: list[int] = []
    signal.signal(signal.SIGTERM, _raise)
    try:
        while len(ended) < len(wards):
            before = [each.pid for each in wards]
            ended = [code for ward in wards if (code := ward.ended()) is not None]
            if before != [each.pid for each in wards]:  # one that died was started again
                share_cores(found, [each.pid for each in wards])
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        for ward in wards:
            ward.stop()
        return 130
    return max(ended)


def _raise(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Ward:
    """A worker process that is started again if a signal ends it."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._deaths = 0
        self._start()

    def _start(self) -> None:
        self._begun_s = time.monotonic()
        self._process = subprocess.Popen(self._arguments, start_new_session=True)

    @property
    def pid(self) -> int:
        """Of its present process."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit code once it has ended by itself; None while it runs."""
        code = self._process.poll()
        if code is None or code >= 0:
            return code
        self._deaths = self._deaths + 1 if time.monotonic() - self._begun_s < SOON_S else 1
        if self._deaths >= MOST_DEATHS:
            return 3
        self._start()
        return None

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(END_WITHIN_S + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _plain(text: str) -> str:
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in text)
