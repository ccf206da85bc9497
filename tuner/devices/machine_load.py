"""The load that others cause on devices during a measurement; the memory and energy that are left or used.

Records keep it in their circumstances; `tuner.results.measurement` judges it. Readings of a CPU are running
totals, and its load is the difference of two, so that nothing runs beside a measurement.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tuner.devices.cuda.kind import nvml
from tuner.devices.detect import kind_of
from tuner.devices.protocol import DetectedDevice, LoadWatch
from tuner.results import measurement

#: NVML's utilization covers up to the last second: a process that has just ended is gone from it after this
#: long.
UTILIZATION_S = 1.1
CORES, CGROUPS = Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup")
#: Files of a control group, in versions 2 and 1 (Linux, "Control Group v2"): what tells how long its quota held
#: it back, with the unit in seconds; the limit of its memory, and its use.
_QUOTAS = (("cpu.stat", "throttled_usec", 1e-6), ("cpu/cpu.stat", "throttled_time", 1e-9))
_MEMORY = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
#: RAPL's energy counters, as Linux shows them (kernel documentation, "Power Capping Framework"): running totals
#: in microjoules, one folder for each package, each with its own range for wrap-around.
COUNTERS = Path("/sys/class/powercap")


class MachineWatch:
    """Watches the load that others cause on the devices of a study."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        """Takes the first readings, before this process uses the devices.

        Args:
            devices: The devices, of one kind.
        """
        self._cores = devices[0].info.cores if kind_of(devices[0].target).is_host else 0
        watch = kind_of(devices[0].spec).watch(devices)
        self.restart, self.load = watch.restart, watch.load

    def complaints(self) -> tuple[str, ...]:
        """Describes what is wrong with the machine; empty if it is quiet."""
        return measurement.complaints(self.load(), self._cores)


def slowed(device: DetectedDevice) -> tuple[str, ...]:
    """Returns why a device runs below its clocks now, by what it says itself."""
    reasons = kind_of(device.spec).throttle_reasons(device)
    return tuple(dict.fromkeys(why for bit, why in measurement.SLOWED.items() if reasons & bit))


def own_processes() -> list[psutil.Process]:
    """This process and all that it started."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


# --- A CPU: other processes, stolen time, throttled clocks ----------------------------------------------------


@dataclass(frozen=True)
class CpuReading:
    """Totals for the cores that this process may use, at one point in time.

    Attributes:
        at_s: Time of the reading, by the monotonic clock.
        cores: Number of cores.
        busy_s: Core seconds spent on any process.
        own_s: Core seconds of this process and all that it started.
        steal_s: Core seconds that the hypervisor gave to others.
        quota_s: Seconds in which a control group's quota throttled this process.
        heat_events: Number of times that cores were throttled for heat.
    """

    at_s: float
    cores: int
    busy_s: float
    own_s: float
    steal_s: float = 0.0
    quota_s: float = 0.0
    heat_events: int = 0

    @classmethod
    def now(cls) -> CpuReading:
        """Takes a reading of this machine."""
        allowed, own_s = os.sched_getaffinity(0), 0.0
        times = [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in allowed]
        # Linux includes guest time in user time, so `guest` is not added.
        busy_s = sum(core.user + core.nice + core.system + core.irq + core.softirq for core in times)
        for process in own_processes():
            with contextlib.suppress(psutil.Error):
                own_s += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
        steal_s = sum(core.steal for core in times)
        return cls(time.monotonic(), len(allowed), busy_s, own_s, steal_s, quota_s(), heat_events())


class CpuWatch(LoadWatch):
    """Watches the cores that this process may use."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Takes a new first reading."""
        self._before = CpuReading.now()

    def load(self) -> Mapping[str, float]:
        """Returns the load since the first reading."""
        return cpu_load(self._before, CpuReading.now())


def cpu_load(before: CpuReading, after: CpuReading) -> dict[str, float]:
    """Computes a CPU's load between two readings; this process and its descendants do not count."""
    wall_s = after.at_s - before.at_s
    if wall_s <= 0:
        return {}
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    others = max(others_s, 0.0) / wall_s
    steal = (after.steal_s - before.steal_s) / wall_s / after.cores
    quota, heat = (after.quota_s - before.quota_s) / wall_s, after.heat_events - before.heat_events
    more = {measurement.QUOTA: round(quota, 4), measurement.HEAT: float(heat)}
    return {
        measurement.OTHERS_CORES: round(others, 3), measurement.STEAL: round(steal, 4),
        measurement.TAKEN: round(others / after.cores + steal, 4),
    } | {name: value for name, value in more.items() if value > 0}  # fmt: skip


def quota_s() -> float:
    """Seconds in which the control group's quota held this process back."""
    for name, key, unit_s in _QUOTAS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            values = dict(line.split() for line in (CGROUPS / name).read_text().splitlines())
            return int(values[key]) * unit_s
    return 0.0


def heat_events() -> int:
    """How often any core was throttled for heat; 0 if the kernel does not count."""
    total = 0
    for file in CORES.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            total += int(file.read_text())
    return total


def memory_bytes() -> tuple[int, int]:
    """Total memory in bytes, and what is available without swapping; a container may get only part of both."""
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    for names in _MEMORY:
        with contextlib.suppress(OSError, ValueError):  # "max" says that there is no limit
            limit, used = (int((CGROUPS / name).read_text()) for name in names)
            total, free = min(total, limit), min(free, max(limit - used, 0))
    return total, free


class EnergyCounters:
    """The packages' energy counters of this machine.

    Attributes:
        trouble: Reason why they cannot be read; empty if they can.
    """

    def __init__(self, folder: Path = COUNTERS) -> None:
        """Looks for the counters in a folder."""
        # A package is "intel-rapl:0" (AMD's too), a part of it "intel-rapl:0:1".
        files = sorted(folder.glob("intel-rapl:[0-9]*/energy_uj"))
        self._files = [file for file in files if file.parent.name.count(":") == 1]
        self.trouble = "" if self._files else f"Linux shows no energy counters of this CPU in {folder}"
        try:
            self.read_j()
        except (OSError, ValueError) as error:
            self.trouble = f"this CPU's energy counters are for root alone, `chmod a+r` opens them ({error})"

    def read_j(self) -> list[float]:
        """Reads the joules of each package.

        Raises:
            OSError: A counter cannot be read.
        """
        return [int(file.read_text()) * 1e-6 for file in self._files]

    def between_j(self, before: list[float], after: list[float]) -> float:
        """Returns the joules of all packages between two readings; a counter may have wrapped around once."""
        wrapped = [file for file, first, last in zip(self._files, before, after, strict=True) if last < first]
        ranges_j = [int((file.parent / "max_energy_range_uj").read_text()) * 1e-6 for file in wrapped]
        return sum(after) - sum(before) + sum(ranges_j)


# --- GPUs: the processes that compute there -------------------------------------------------------------------


@dataclass(frozen=True)
class GpuReading:
    """A GPU at one point in time.

    Attributes:
        pids: Processes that compute there.
        utilization: Share of time in which the GPU was busy; None if unknown.
    """

    pids: frozenset[int] = frozenset()
    utilization: float | None = None

    @classmethod
    def now(cls, uuid: str) -> GpuReading:
        """Takes a reading of a GPU or MIG instance; empty if NVML does not respond."""
        try:
            library = nvml()
            handle = library.nvmlDeviceGetHandleByUUID(uuid)
            pids = frozenset(process.pid for process in library.nvmlDeviceGetComputeRunningProcesses(handle))
        except Exception:
            return cls()
        with contextlib.suppress(library.NVMLError):  # a MIG instance reports none
            return cls(pids, library.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        return cls(pids)


class GpuWatch(LoadWatch):
    """Watches GPUs of this machine."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        """Takes the first readings, before this process uses the GPUs."""
        self._uuids = [device.info.uuid for device in devices]
        self._before = [GpuReading.now(uuid) for uuid in self._uuids]
        if any((reading.utilization or 0.0) >= measurement.BUSY_GPU for reading in self._before):
            # This load may come from the previous study.
            time.sleep(UTILIZATION_S)
            self._before = [GpuReading.now(uuid) for uuid in self._uuids]

    def restart(self) -> None:
        """Forgets utilization, which this process may cause from now on."""
        self._before = [replace(reading, utilization=None) for reading in self._before]

    def load(self) -> Mapping[str, float]:
        """Returns the load of the worst."""
        own = {process.pid for process in own_processes()}
        readings = zip(self._uuids, self._before, strict=True)
        loads = [gpu_load(before, GpuReading.now(uuid), own) for uuid, before in readings]
        return max(loads, key=lambda load: sorted(load.values()))


def gpu_load(
    before: GpuReading, after: GpuReading, own: Collection[int],
    known: Callable[[int], bool] = psutil.pid_exists,
) -> dict[str, float]:  # fmt: skip
    """Computes a GPU's load.

    Args:
        before: A reading before this process, or a descendant, used the GPU; its utilization is that of others.
        after: A reading from now.
        own: This process and its descendants.
        known: Whether a process is one of this namespace.
    """
    others = after.pids.difference(own)
    if others == after.pids:
        # In a container NVML reports the host's process ids: those that appeared since the first reading may be
        # ours.
        others = frozenset(pid for pid in others if pid in before.pids or known(pid))
    load = {measurement.OTHERS_PROCESSES: float(len(others))}
    return load if before.utilization is None else load | {measurement.OTHERS_GPU: before.utilization}
