"""CPUs as a kind of device: this machine's own, as the operating system describes it."""

import hashlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from tuner.declare.hardware import DeviceInfo
from tuner.devices.protocol import DetectedDevice, Device, DeviceKind, LoadWatch, SurveyDefaults, not_a_spec
from tuner.extras import load

CPU_FOLDER = Path("/sys/devices/system/cpu")
#: Flag of the operating system -> title and bytes of the vectors, the widest first.
VECTORS = {"avx512f": ("AVX-512", 64), "avx2": ("AVX2", 32), "asimd": ("NEON", 16)}


class CpuKind(DeviceKind):
    """The cores of this machine that this process may use."""

    name = first = "cpu"
    is_host = True
    regimes = ("cold", "hot")
    #: Results for CPUs are of data in caches. No config is timed before all that were taken up are compiled.
    survey = SurveyDefaults("hot", ahead=8, least=4, turn_s=1.5, most_bytes=2e8, most_flops=8e9)
    driver_counts = False  # an operating system does not change its kernels
    guessed_rates = (1e11, 2e10)
    copied_bytes_per_s, copy_s = 2e9, 2e-6
    states_s = 4.0
    #: Eight operations on vectors of 64 bytes, and two such stores: twice what Zen 5 does (AMD's Software
    #: Optimization Guide for family 1Ah: two FMAs and two additions, one store of 64 bytes).
    fastest_hz, most_per_cycle = 6.5e9, (512.0, 128.0)

    def detect(self) -> list[DetectedDevice]:
        """Always one."""
        return [DetectedDevice("cpu", cpu_info())]

    def find(self, spec: str) -> DetectedDevice:
        """The one."""
        if spec != "cpu":
            raise not_a_spec(spec)
        return self.detect()[0]

    def open(self, spec: str) -> Device:
        """Loads NumPy and Numba."""
        return cast(Device, load("tuner.devices.cpu.device:CpuDevice")())

    def watch(self, devices: Sequence[DetectedDevice]) -> LoadWatch:
        """Watches other processes, stolen time and throttled clocks."""
        return cast(LoadWatch, load("tuner.devices.machine_load:CpuWatch")())

    def lock_names(self, info: DeviceInfo) -> list[str]:
        """One for each last-level cache: behind different ones, processes may time side by side."""
        return [f"cpu{first}" for first in cache_groups(os.sched_getaffinity(0))]

    def power_trouble(self) -> str:
        """Why the energy counters cannot be read."""
        return str(load("tuner.devices.machine_load:EnergyCounters")().trouble)

    def likeness(self, info: DeviceInfo) -> tuple[str, str]:
        """Vectors of the same width."""
        return f"a CPU with vectors of {info.vector_bytes} bytes, too", str(info.vector_bytes)


KIND = CpuKind()


def cpu_flags() -> set[str]:
    """Returns the flags of this machine's CPU, from the operating system."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def cpu_info() -> DeviceInfo:
    """Describes the part of this machine's CPU that this process may use."""
    text = _read("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", text)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    flags, cores = cpu_flags(), len(os.sched_getaffinity(0))
    vectors, vector_bytes = next((known for flag, known in VECTORS.items() if flag in flags), ("", 16))
    parts = [f"{cores} core{'s' if cores > 1 else ''}", *filter(None, [vectors])]
    full = f"{name} ({', '.join(parts)})"
    identity = hashlib.sha256("\0".join([full, platform.node(), *sorted(flags)]).encode()).hexdigest()
    return DeviceInfo(
        full, "cpu", uuid=f"CPU-{identity[:16]}", architecture=platform.machine(),
        driver=f"{platform.system()} {platform.release()}",
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), cores=cores,
        vector_bytes=vector_bytes, l1_bytes=_cache_bytes(1) or 32 << 10,
        l2_bytes=_cache_bytes(3) or _cache_bytes(2) or 32 << 20,
    )  # fmt: skip


def with_best_blas(cpu: DetectedDevice, core_type: str) -> DetectedDevice | None:
    """Returns the same CPU with OpenBLAS set to use the widest vectors.

    OpenBLAS mistakes some newer CPUs for older ones, and NumPy then runs at half speed.

    Args:
        cpu: A CPU.
        core_type: Core type that OpenBLAS chose by itself.

    Returns:
        None if that is already the best, or if the device is not an x86 CPU.
    """
    best = {64: "SkylakeX", 32: "Haswell"}.get(cpu.info.vector_bytes, "")
    wide = ("SkylakeX", "Cooperlake", "Sapphirerapids")
    if cpu.spec != "cpu" or not core_type or not best or core_type == best or core_type in wide:
        return None
    return replace(cpu, environment=(*cpu.environment, ("OPENBLAS_CORETYPE", best)))


def cache_groups(cores: set[int], folder: Path = CPU_FOLDER) -> list[int]:
    """Returns the first core of each group that shares a last-level cache, for the groups of these cores.

    Core 0 stands for cores whose caches the operating system does not report.

    Args:
        cores: Cores by number.
        folder: Folder in which the operating system describes them.
    """
    return sorted({_first_sharer(folder / f"cpu{core}" / "cache") for core in cores})


def _first_sharer(caches: Path) -> int:
    try:
        last = max(caches.glob("index*"), key=lambda cache: int((cache / "level").read_text()))
        return int(re.split(r"[-,]", (last / "shared_cpu_list").read_text().strip())[0])
    except (OSError, ValueError):
        return 0


def _cache_bytes(level: int) -> int:
    """Returns the bytes of the first core's data or unified cache at a level."""
    for folder in sorted((CPU_FOLDER / "cpu0" / "cache").glob("index*")):
        kind, number, size = (_read(folder / name).strip() for name in ("type", "level", "size"))
        if number == str(level) and kind in ("Data", "Unified"):
            scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
            return int(size.rstrip("KM") or 0) * scale
    return 0


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
