"""The load on a CPU during a measurement: other processes, stolen time, throttled clocks; and its energy.

Readings are running totals, and the load is the difference of two, so that nothing runs beside a measurement.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tuner.devices.machine_load import NAMED, user_of
from tuner.devices.protocol import Load
from tuner.results.measurement import HEAT, OTHERS_CORES, QUOTA, STEAL, TAKEN

#: The smallest share of a core for which a process is named.
NAMED_FROM = 0.05
_QUOTAS = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))
_CORES = Path("/sys/devices/system/cpu")


class CpuWatch:
    """Watches the cores that this process may use."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Takes a new first reading."""
        self._before = read_cpu()

    def load(self) -> Load:
        """Returns the load since the first reading."""
        return cpu_load(self._before, read_cpu(), os.getpid(), user_of)


@dataclass(frozen=True)
class CpuProcess:
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
    processes: tuple[CpuProcess, ...] = ()


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


def _family(processes: Sequence[CpuProcess], pid: int) -> set[int]:
    """Returns a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for each in processes:
        children.setdefault(each.parent, []).append(each.pid)
    family, new = {pid}, [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, []) if child not in family]
        family.update(new)
    return family


def _cpu_s(processes: Sequence[CpuProcess], pid: int) -> float:
    family = _family(processes, pid)
    return sum(each.cpu_s for each in processes if each.pid in family)


def _busiest(before: CpuReading, after: CpuReading, own_pid: int) -> list[tuple[float, CpuProcess]]:
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


def _processes() -> list[CpuProcess]:
    found = []
    for each in psutil.process_iter(["pid", "ppid", "name", "cpu_times"]):
        told: dict[str, Any] = each.info
        if told["cpu_times"] is not None:
            cpu_s = sum(told["cpu_times"][:4])  # user, system, and both of children that have ended
            found.append(CpuProcess(told["pid"], told["ppid"] or 0, told["name"] or "?", cpu_s))
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
