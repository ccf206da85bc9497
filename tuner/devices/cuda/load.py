"""The load on GPUs during a measurement: the processes that compute there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psutil

from tuner.devices.cuda.kind import nvml
from tuner.devices.machine_load import NAMED, user_of
from tuner.devices.protocol import DetectedDevice, Load, LoadWatch
from tuner.results.measurement import BUSY_GPU, OTHERS_GPU, OTHERS_PROCESSES

#: NVML's utilization covers up to the last second: a process that has just ended is gone from it after this
#: long.
UTILIZATION_S = 1.1


@dataclass(frozen=True)
class GpuReading:
    """The processes on a GPU at one point in time.

    Attributes:
        processes: Process id -> program and user of those that compute there; empty text for ids of another
            namespace.
        utilization: Share of time in which the GPU was busy; None if unknown.
    """

    processes: Mapping[int, str] = field(default_factory=dict)
    utilization: float | None = None


class GpuWatch(LoadWatch):
    """Watches GPUs of this machine."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        """Takes the first readings, before this process uses the GPUs."""
        self._uuids = [device.info.uuid for device in devices]
        self._before = self._readings()
        if any((reading.utilization or 0.0) >= BUSY_GPU for reading in self._before):
            # This load may come from the previous study.
            time.sleep(UTILIZATION_S)
            self._before = self._readings()

    def _readings(self) -> list[GpuReading]:
        return [read_gpu(uuid) for uuid in self._uuids]

    def restart(self) -> None:
        """Forgets utilization, which this process may cause from now on."""
        self._before = [replace(reading, utilization=None) for reading in self._before]

    def load(self) -> Load:
        """Returns the load of the worst."""
        own = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
        loads = [
            gpu_load(before, after, own) for before, after in zip(self._before, self._readings(), strict=True)
        ]
        return max(loads, key=lambda load: sorted(load.circumstances.values()))


def gpu_load(before: GpuReading, after: GpuReading, own_pids: Iterable[int]) -> Load:
    """Computes a GPU's load.

    Args:
        before: A reading before this process, or a descendant, used the GPU; its utilization is that of others.
        after: A reading from now.
        own_pids: This process and its descendants.
    """
    own = set(own_pids)
    others = {pid: name for pid, name in after.processes.items() if pid not in own}
    if len(others) == len(after.processes):
        # In a container NVML reports the host's process ids: those that appeared since the first reading may be
        # ours.
        others = {pid: name for pid, name in others.items() if name or pid in before.processes}
    readings = {OTHERS_PROCESSES: float(len(others))}
    if before.utilization is not None:
        readings[OTHERS_GPU] = before.utilization
    names = [name or f"process {pid} of another namespace" for pid, name in others.items()]
    return Load(readings, tuple(names[:NAMED]))


def read_gpu(uuid: str) -> GpuReading:
    """Takes a reading of a GPU or MIG instance; empty if NVML does not respond."""
    try:
        library = nvml()
        handle = library.nvmlDeviceGetHandleByUUID(uuid)
        pids = [process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(handle)]
    except Exception:
        return GpuReading()
    utilization = None
    with contextlib.suppress(library.NVMLError):  # a MIG instance reports none
        utilization = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return GpuReading({pid: _named(pid) for pid in pids}, utilization)


def _named(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} ({pid}){user_of(pid)}"
    except psutil.Error:
        return ""
