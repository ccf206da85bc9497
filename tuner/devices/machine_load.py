"""The load on a machine during a measurement: other processes, stolen time, throttled clocks.

Readings are running totals, and the load is the difference of two readings, so nothing runs beside a
measurement. Only `read_cpu` and `read_gpu` call psutil and NVML; `cpu_load` and `gpu_load` are numbers in,
numbers out. The load is kept in the circumstances of records; `tuner.results.doubts` judges it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tuner.devices.detect import DetectedDevice
from tuner.results.doubts import (
    BUSY_GPU,
    HEAT,
    OTHERS_CORES,
    OTHERS_GPU,
    OTHERS_PROCESSES,
    QUOTA,
    SLOWED,
    STEAL,
    TAKEN,
    complaints,
)

#: Largest number of processes named, busiest first; and the smallest share of a core that counts.
NAMED, NAMED_FROM = 3, 0.05
#: NVML's utilization covers up to the last second: a process that has just ended is gone from it after this
#: long.
UTILIZATION_S = 1.1
_QUOTAS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))
_CORES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Process:
    """A process at one point in time.

    Attributes:
        pid: Process id.
        parent: Process id of its parent.
        name: Name of its program.
        cpu_s: CPU seconds so far, including those of its ended children.
    """

    pid: int
    parent: int
    name: str
    cpu_s: float


@dataclass(frozen=True)
class CpuReading:
    """Totals for the cores that this process may use, at one point in time.

    Attributes:
        at_s: Time of the reading, by the monotonic clock.
        cores: Number of cores.
        busy_s: Core seconds spent on any process.
        steal_s: Core seconds that the hypervisor gave to others.
        quota_s: Seconds in which a control group's quota throttled this process.
        heat_events: Number of times that cores were throttled for heat.
        processes: All visible processes.
    """

    at_s: float = 0.0
    cores: int = 0
    busy_s: float = 0.0
    steal_s: float = 0.0
    quota_s: float = 0.0
    heat_events: int = 0
    processes: tuple[Process, ...] = ()


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


@dataclass(frozen=True)
class Load:
    """The load caused by others.

    Attributes:
        seen: The load as circumstances.
        who: The busiest processes, in words.
    """

    seen: Mapping[str, float] = field(default_factory=dict)
    who: tuple[str, ...] = ()


def cpu_load(
    before: CpuReading, after: CpuReading, own_pid: int, user_of: Callable[[int], str] = lambda pid: ""
) -> Load:
    """Computes a CPU's load between two readings.

    Args:
        before: The first reading.
        after: The second reading.
        own_pid: Id of the process whose load does not count, nor that of its descendants.
        user_of: Process id -> its user in words; called for the busiest processes only.
    """
    wall_s = after.at_s - before.at_s
    if wall_s <= 0:
        return Load()
    own_s = _cpu_s(after.processes, own_pid) - _cpu_s(before.processes, own_pid)
    others = max(after.busy_s - before.busy_s - own_s, 0.0) / wall_s
    cores = max(after.cores, 1)
    steal = (after.steal_s - before.steal_s) / wall_s / cores
    seen = {
        OTHERS_CORES: round(others, 3), STEAL: round(steal, 4), TAKEN: round(others / cores + steal, 4)
    }  # fmt: skip
    quota, heat = (after.quota_s - before.quota_s) / wall_s, after.heat_events - before.heat_events
    more = {QUOTA: round(quota, 4), HEAT: float(heat)}
    busiest = tuple(
        f"{each.name} ({each.pid}){user_of(each.pid)}, {share:.2g} cores"
        for share, each in _busiest(before, after, own_pid)
    )
    return Load(seen | {name: value for name, value in more.items() if value > 0}, busiest)


def gpu_load(before: GpuReading, after: GpuReading, own_pids: Iterable[int]) -> Load:
    """Computes a GPU's load.

    Args:
        before: A reading before this process, or a descendant, used the GPU; its utilization is that of others.
        after: A reading from now.
        own_pids: This process and its descendants.
    """
    own = set(own_pids)
    others = {pid: told for pid, told in after.processes.items() if pid not in own}
    if len(others) == len(after.processes):
        # In a container NVML reports the host's process ids: those that appeared since the first reading may be
        # ours.
        others = {pid: told for pid, told in others.items() if told or pid in before.processes}
    seen = {OTHERS_PROCESSES: float(len(others))}
    if before.utilization is not None:
        seen[OTHERS_GPU] = before.utilization
    return Load(
        seen, tuple(told or f"process {pid} of another namespace" for pid, told in others.items())[:NAMED]
    )


def described(load: Load, cores: int = 0) -> tuple[str, ...]:
    """Returns the complaints about a load, with the processes behind it."""
    found = complaints(load.seen, cores)
    return (*found, f"busiest: {', '.join(load.who)}") if found and load.who else found


def _family(processes: Sequence[Process], pid: int) -> set[int]:
    """Returns a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for each in processes:
        children.setdefault(each.parent, []).append(each.pid)
    family, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, []) if child not in family]
        family.update(new)
    return family


def _cpu_s(processes: Sequence[Process], pid: int) -> float:
    family = _family(processes, pid)
    return sum(each.cpu_s for each in processes if each.pid in family)


def _busiest(before: CpuReading, after: CpuReading, own_pid: int) -> list[tuple[float, Process]]:
    """Returns the other processes that used the most CPU, with the cores that they used."""
    own = _family(after.processes, own_pid)
    known = {each.pid: each.cpu_s for each in before.processes}
    wall_s = after.at_s - before.at_s
    shares = [
        ((each.cpu_s - known.get(each.pid, 0.0)) / wall_s, each)
        for each in after.processes
        if each.pid not in own
    ]
    ranked = sorted(shares, key=lambda each: -each[0])[:NAMED]
    return [(share, each) for share, each in ranked if share > NAMED_FROM]


def read_cpu() -> CpuReading:
    """Takes a reading of this machine."""
    mine = os.sched_getaffinity(0)
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if core in mine]
    # Linux includes guest time in user time, so `guest` is not added.
    busy = sum(each.user + each.nice + each.system + each.irq + each.softirq for each in times)
    steal = sum(each.steal for each in times)
    return CpuReading(
        time.monotonic(), len(mine), busy, steal, _quota_s(_QUOTAS), _heat_events(_CORES), tuple(_processes())
    )


def _processes() -> list[Process]:
    found = []
    for each in psutil.process_iter(["pid", "ppid", "name", "cpu_times"]):
        told: dict[str, Any] = each.info
        if told["cpu_times"] is not None:
            cpu_s = sum(told["cpu_times"][:4])  # user, system, and both of children that have ended
            found.append(Process(told["pid"], told["ppid"] or 0, told["name"] or "?", cpu_s))
    return found


def _quota_s(files: Sequence[Path]) -> float:
    """Seconds throttled by the control group's quota (Linux, "Control Group v2", "cpu.stat")."""
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            told = dict(line.split() for line in file.read_text().splitlines())
            if "throttled_usec" in told:
                return int(told["throttled_usec"]) * 1e-6
            if "throttled_time" in told:
                return int(told["throttled_time"]) * 1e-9
    return 0.0


def _heat_events(folder: Path) -> int:
    """Returns how often any core was throttled for heat; 0 if the kernel does not count."""
    total = 0
    for file in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            total += int(file.read_text())
    return total


def read_gpu(uuid: str) -> GpuReading:
    """Takes a reading of a GPU or MIG instance; empty if NVML does not respond."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pids = [each.pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except Exception:
        return GpuReading()
    utilization = None
    with contextlib.suppress(pynvml.NVMLError):  # a MIG instance reports none
        utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return GpuReading({pid: _named(pid) for pid in pids}, utilization)


def slowed(found: DetectedDevice) -> tuple[str, ...]:
    """Returns why a GPU runs below its clocks now, by what it says itself; a fake one's file may say it."""
    if found.spec.startswith("fake:"):
        told = json.loads(Path(found.spec.partition(":")[2]).read_text()).get("machine", {})
        reasons = int(told.get("throttle_reasons", 0))
    else:
        reasons = _throttle_reasons(found.info.uuid) if found.target == "cuda" else 0
    return tuple(dict.fromkeys(why for bit, why in SLOWED.items() if reasons & bit))


def _throttle_reasons(uuid: str) -> int:
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except Exception:  # no driver, or a MIG instance, which reports none
        return 0


def _named(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} ({pid}){_user_of(pid)}"
    except psutil.Error:
        return ""


def _user_of(pid: int) -> str:
    try:
        return f" of {psutil.Process(pid).username()}"
    except (psutil.Error, KeyError):
        return ""


class MachineWatch:
    """Watches the load that others cause on the devices of a study.

    For a fake device, the file's ``machine`` gives the readings.
    """

    def __init__(self, found: Sequence[DetectedDevice]) -> None:
        """Takes the first readings, before this process uses the devices.

        Args:
            found: The devices, of one kind.
        """
        self._found = found
        self._fake = found[0].spec.startswith("fake:")
        self.cores = found[0].info.cores if found[0].target == "cpu" else 0
        self._cpu = CpuReading()
        self._gpus: list[GpuReading] = []
        if self._fake:
            return
        if self.cores:
            self._cpu = read_cpu()
            return
        self._gpus = self._read_gpus()
        if any((each.utilization or 0.0) >= BUSY_GPU for each in self._gpus):
            # This load may come from the previous study.
            time.sleep(UTILIZATION_S)
            self._gpus = self._read_gpus()

    def _read_gpus(self) -> list[GpuReading]:
        return [read_gpu(each.info.uuid) for each in self._found]

    def restart(self) -> None:
        """Discards earlier readings; from now on this process may use the devices."""
        if self.cores and not self._fake:
            self._cpu = read_cpu()
        self._gpus = [replace(each, utilization=None) for each in self._gpus]

    def load(self) -> Load:
        """Returns the load since the start or the last restart; of several GPUs, that of the worst."""
        if self._fake:
            file = Path(self._found[0].spec.partition(":")[2])
            return Load(json.loads(file.read_text()).get("machine", {}))
        if self.cores:
            return cpu_load(self._cpu, read_cpu(), os.getpid(), _user_of)
        own = [os.getpid(), *(each.pid for each in psutil.Process().children(recursive=True))]
        loads = [
            gpu_load(before, after, own) for before, after in zip(self._gpus, self._read_gpus(), strict=True)
        ]
        return max(loads, key=lambda each: sorted(each.seen.values()))

    def told(self) -> tuple[str, ...]:
        """Describes what is wrong with the machine; empty if it is quiet."""
        return described(self.load(), self.cores)
