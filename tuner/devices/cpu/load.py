"""The load on a CPU during a measurement: other processes, stolen time, throttled clocks; memory and energy.

Readings are running totals, and the load is the difference of two, so that nothing runs beside a measurement.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tuner.devices.machine_load import NAMED, user_of
from tuner.devices.protocol import Load, LoadWatch
from tuner.results.measurement import HEAT, OTHERS_CORES, QUOTA, STEAL, TAKEN

#: The smallest share of a core for which a process is named.
NAMED_FROM = 0.05
CGROUPS = Path("/sys/fs/cgroup")
#: Files of a control group, in versions 2 and 1 (Linux, "Control Group v2"): what tells how long its quota held
#: it back, with the unit in seconds; the limit of its memory, and its use.
_QUOTAS = (("cpu.stat", "throttled_usec", 1e-6), ("cpu/cpu.stat", "throttled_time", 1e-9))
_MEMORY = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
_CORES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class CpuProcess:
    """A process at one point in time.

    Attributes:
        parent: Process id of its parent.
        name: Name of its program.
        cpu_s: CPU seconds so far, including those of its ended children.
    """

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
        processes: Process id -> process, of all that are visible.
    """

    at_s: float = 0.0
    cores: int = 1
    busy_s: float = 0.0
    steal_s: float = 0.0
    quota_s: float = 0.0
    heat_events: int = 0
    processes: Mapping[int, CpuProcess] = field(default_factory=dict)

    @classmethod
    def now(cls) -> CpuReading:
        """Takes a reading of this machine."""
        mine = os.sched_getaffinity(0)
        times = [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in mine]
        # Linux includes guest time in user time, so `guest` is not added.
        busy_s = sum(core.user + core.nice + core.system + core.irq + core.softirq for core in times)
        steal_s = sum(core.steal for core in times)
        processes = {}
        for process in psutil.process_iter(["ppid", "name", "cpu_times"]):
            parent, name, used = (process.info[key] for key in ("ppid", "name", "cpu_times"))
            if used is not None:  # user, system, and both of children that have ended
                processes[process.pid] = CpuProcess(parent or 0, name or "?", sum(used[:4]))
        return cls(time.monotonic(), len(mine), busy_s, steal_s, quota_s(), heat_events(), processes)

    def family(self, pid: int) -> set[int]:
        """A process and all its descendants."""
        family: set[int] = set()
        new = {pid}
        while new:
            family |= new
            children = {pid for pid, process in self.processes.items() if process.parent in new}
            new = children - family
        return family

    def family_s(self, pid: int) -> float:
        """CPU seconds of a process and all its descendants."""
        return sum(self.processes[member].cpu_s for member in self.family(pid) if member in self.processes)


class CpuWatch(LoadWatch):
    """Watches the cores that this process may use."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Takes a new first reading."""
        self._before = CpuReading.now()

    def load(self) -> Load:
        """Returns the load since the first reading."""
        return cpu_load(self._before, CpuReading.now(), os.getpid())


def cpu_load(before: CpuReading, after: CpuReading, own_pid: int) -> Load:
    """Computes a CPU's load between two readings; a process and its descendants do not count."""
    wall_s = after.at_s - before.at_s
    if wall_s <= 0:
        return Load()
    own_s = after.family_s(own_pid) - before.family_s(own_pid)
    others = max(after.busy_s - before.busy_s - own_s, 0.0) / wall_s
    steal = (after.steal_s - before.steal_s) / wall_s / after.cores
    circumstances = {
        OTHERS_CORES: round(others, 3), STEAL: round(steal, 4), TAKEN: round(others / after.cores + steal, 4)
    }  # fmt: skip
    quota, heat = (after.quota_s - before.quota_s) / wall_s, after.heat_events - before.heat_events
    more = {QUOTA: round(quota, 4), HEAT: float(heat)}
    return Load(
        circumstances | {name: value for name, value in more.items() if value > 0},
        tuple(_busiest(before, after, own_pid, wall_s)),
    )


def _busiest(before: CpuReading, after: CpuReading, own_pid: int, wall_s: float) -> list[str]:
    """Names the other processes that used the most CPU, with the cores that they used."""
    shares = []
    for pid in after.processes.keys() - after.family(own_pid):
        earlier_s = before.processes[pid].cpu_s if pid in before.processes else 0.0
        shares.append(((after.processes[pid].cpu_s - earlier_s) / wall_s, pid))
    return [
        f"{after.processes[pid].name} ({pid}){user_of(pid)}, {share:.2g} cores"
        for share, pid in sorted(shares, reverse=True)[:NAMED]
        if share > NAMED_FROM
    ]


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
    for file in _CORES.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            total += int(file.read_text())
    return total


def memory_bytes() -> int:
    """Returns total memory in bytes: the machine's, or the control group's if that is less."""
    return min(int(psutil.virtual_memory().total), *(limit for limit, _ in _memory_limits()))


def free_bytes() -> int:
    """Returns the bytes of memory available without swapping; a container may get only part of the machine."""
    available = int(psutil.virtual_memory().available)
    return min(available, *(max(limit - used, 0) for limit, used in _memory_limits()))


def _memory_limits() -> list[tuple[int, int]]:
    """Returns limit and use of the control group; the limit is infinite if there is none."""
    limits = [(1 << 62, 0)]
    for names in _MEMORY:
        with contextlib.suppress(OSError, ValueError):  # "max" says that there is no limit
            limit, used = (int((CGROUPS / name).read_text()) for name in names)
            limits.append((limit, used))
    return limits


#: RAPL's energy counters, as Linux shows them (kernel documentation, "Power Capping Framework"): running totals
#: in microjoules, one folder for each package, each with its own range for wrap-around.
COUNTERS = Path("/sys/class/powercap")


class EnergyCounters:
    """The packages' energy counters of this machine.

    Attributes:
        trouble: Reason why they cannot be read; empty if they can.
    """

    def __init__(self, folder: Path = COUNTERS) -> None:
        """Looks for the counters.

        Args:
            folder: Folder of the counters.
        """
        # A package is "intel-rapl:0" (AMD's too), a part of it "intel-rapl:0:1".
        self._files = sorted(folder.glob("intel-rapl:[0-9]*/energy_uj"))
        self._files = [file for file in self._files if file.parent.name.count(":") == 1]
        self.trouble = ""
        if not self._files:
            self.trouble = f"Linux shows no energy counters of this CPU (no {folder}/intel-rapl:0)"
            return
        try:
            self.read_j()
        except (OSError, ValueError):
            self.trouble = (
                f"the energy counters of this CPU are for root alone (`chmod a+r {folder}/*/energy_uj` as root "
                "opens them)"
            )

    def read_j(self) -> list[float]:
        """Reads the joules of each package.

        Raises:
            OSError: A counter cannot be read.
        """
        return [int(file.read_text()) * 1e-6 for file in self._files]

    def between_j(self, before: list[float], after: list[float]) -> float:
        """Returns the joules of all packages between two readings; a counter may have wrapped around once."""
        total = 0.0
        for file, first, last in zip(self._files, before, after, strict=True):
            wrapped = last < first
            total += last - first
            if wrapped:
                total += int((file.parent / "max_energy_range_uj").read_text()) * 1e-6
        return total
