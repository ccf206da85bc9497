"""The process of `tuner worker`: one of Dask's nannies for each device, until it is idle or its time is up."""

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Nanny

from tuner.devices.detect import DetectedDevice, kind_of
from tuner.devices.settings import cache_root
from tuner.errors import EnvironmentTrouble
from tuner.fleet.device_plugin import LIFETIME_OVER, STALL_S, TOLD_TO_END, WAS_IDLE, DevicePlugin

#: Seconds that a worker may take to end with its slice, and to find the scheduler at the start.
END_WITHIN_S, SCHEDULER_WITHIN_S = 20.0, 60.0
#: Seconds between two attempts to find a scheduler that went away.
RETRY_S = 2.0
#: A share of the cores is so many at the least: a study, its device's process, and two compilers.
LEAST_CORES = 4


@dataclass(frozen=True)
class WorkerOptions:
    """How the workers of a machine work.

    Attributes:
        scheduler: Address of the scheduler, ``tcp://host:8786``.
        folder: For their own files and caches; by default in the user's cache folder.
        name: Their name; by default that of the machine, and the device.
        url: How this machine reaches the database; empty to take the coordinator's word.
        idle_exit_s: A worker ends after so many seconds without work.
        lifetime_s: They end after so many seconds.
        stall_s: Seconds without progress after which a search has stalled.
        security: Dask's settings for TLS; None without it.
        interface: Network interface; empty for the default one.
        plugin: What has the device.
    """

    scheduler: str = ""
    folder: Path | None = None
    name: str = ""
    url: str = ""
    idle_exit_s: float = math.inf
    lifetime_s: float = math.inf
    stall_s: float = STALL_S
    security: Any = None
    interface: str = ""
    plugin: type[DevicePlugin] = DevicePlugin


class DeviceNanny(Nanny):
    """Dask's nanny, which knows why its worker ended.

    Attributes:
        reason: Why the worker has ended by itself; empty if it has not.
    """

    reason = ""

    def close_gracefully(self, reason: str = "") -> None:
        """See `distributed.Nanny`."""
        self.reason = reason
        super().close_gracefully(reason=reason)


def nanny_options(devices: Sequence[DetectedDevice], options: WorkerOptions) -> list[dict[str, Any]]:
    """Returns the arguments of a nanny for each device, but for the scheduler's address."""
    cores = shares(sorted(os.sched_getaffinity(0)), len(devices))
    if any(kind_of(device.target).is_host for device in devices):
        cores = [None] * len(devices)
    return [_nanny(device, share, options, len(devices)) for device, share in zip(devices, cores, strict=True)]


def _nanny(
    device: DetectedDevice, cores: set[int] | None, options: WorkerOptions, count: int
) -> dict[str, Any]:
    name = f"{options.name}-{device.spec}" if count > 1 else options.name
    if not options.name:
        name = f"{socket.gethostname()}-{_plain(Path(device.spec).name)}-{os.getpid()}"
    info = device.info
    folder = (options.folder or cache_root() / "workers").absolute() / _plain(info.uuid or info.name)
    folder.mkdir(parents=True, exist_ok=True)
    ends_at = time.time() + options.lifetime_s
    plugin = options.plugin(device.spec, options.url, options.stall_s, options.idle_exit_s, ends_at, cores)
    # Compilers of several workers do not wait for each other's files. A study's processes hold the memory,
    # and limit it themselves: Dask need not.
    return {
        "nthreads": 1, "name": name, "resources": {f"board:{info.uuid or info.name}": 1}, "plugins": (plugin,),
        "local_directory": str(folder / "dask"), "memory_limit": 0, "death_timeout": SCHEDULER_WITHIN_S,
        "silence_logs": logging.CRITICAL, "security": options.security, "dashboard_address": "127.0.0.1:0",
        "interface": options.interface or None, "env": {"TUNER_CACHE": str(folder / "cache")},
    }  # fmt: skip


def serve(devices: Sequence[DetectedDevice], options: WorkerOptions) -> None:
    """Serves devices until their time is up, they are idle for long, or SIGTERM comes.

    If the scheduler goes away, they wait for its return as long as they may be idle.

    Raises:
        EnvironmentTrouble: There is no scheduler at the address.
    """
    asyncio.run(_serve_all(devices, options))


async def _serve_all(devices: Sequence[DetectedDevice], options: WorkerOptions) -> None:
    told_to_end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_end.set)
    made = nanny_options(devices, options)
    await asyncio.gather(*(_serve(options, arguments, told_to_end) for arguments in made))


async def _serve(options: WorkerOptions, arguments: dict[str, Any], told_to_end: asyncio.Event) -> None:
    """Keeps a nanny, and starts another when its scheduler returns."""
    nanny: Any = None
    away_since_s, end_s = math.inf, time.monotonic() + options.lifetime_s
    while not told_to_end.is_set():
        try:
            nanny = await DeviceNanny(options.scheduler, **arguments)
        except (OSError, TimeoutError, RuntimeError) as error:
            if nanny is None:
                raise EnvironmentTrouble(
                    f"a worker needs a scheduler, none answers at {options.scheduler} ({error}); start one "
                    f"with `dask scheduler`, or check address, port and certificates"
                ) from error
            if time.monotonic() > min(end_s, away_since_s + options.idle_exit_s):
                return
            await _any_of(told_to_end.wait(), timeout_s=RETRY_S)
            continue
        await _any_of(nanny.finished(), told_to_end.wait())
        if told_to_end.is_set():
            await _end(nanny)
        if nanny.reason in (TOLD_TO_END, LIFETIME_OVER, WAS_IDLE):
            return
        away_since_s = time.monotonic()


async def _any_of(*ends: Any, timeout_s: float | None = None) -> None:
    tasks = [asyncio.ensure_future(end) for end in ends]
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _end(nanny: Any) -> None:
    """Has the worker end its slice, whose answer the coordinator still gets."""
    if nanny.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(nanny.pid, signal.SIGTERM)
        await _any_of(nanny.finished(), timeout_s=END_WITHIN_S)
    await nanny.close()


def shares(cores: Sequence[int], count: int) -> list[set[int] | None]:
    """Divides cores into equal runs of neighbours, which have caches and memory in common.

    Args:
        cores: Numbers of the cores.
        count: Number of shares.

    Returns:
        The shares; all cores for each if there are too few to divide.
    """
    ordered = sorted(cores)
    size = len(ordered) // max(count, 1)
    if count < 2 or size < LEAST_CORES:
        return [set(ordered)] * count
    return [set(ordered[number * size : (number + 1) * size]) for number in range(count)]


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in text)
