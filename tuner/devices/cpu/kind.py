"""CPUs as a kind of device: this machine's own, as the operating system describes it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.declare.hardware import DeviceInfo
from tuner.devices.protocol import DetectedDevice, Device, DeviceKind, LoadWatch, SurveyDefaults, not_a_spec
from tuner.errors import DeviceTrouble, InputError
from tuner.extras import load

CPU_FOLDER = Path("/sys/devices/system/cpu")
#: With ``avx2`` a CPU with AVX-512 is measured like CPUs without it: Numba compiles for AVX2, and OpenBLAS and
#: NumPy use nothing wider. Caches, clocks and cores remain those of the machine; the device's name says so.
FEATURES_VARIABLE = "TUNER_CPU_FEATURES"


@dataclass(frozen=True)
class Vectors:
    """The vectors in use.

    Attributes:
        title: Name for people: ``AVX-512``; empty if unknown.
        bytes: Width of the widest register.
        restricted: True if the machine has wider ones.
        architecture: LLVM's name of the CPU to compile for; empty for the machine's own.
        environment: Environment variables that restrict a process to these vectors; set before it loads NumPy.
    """

    title: str
    bytes: int
    restricted: bool = False
    architecture: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The part of a device's name that describes them; empty if unknown."""
        return f"restricted to {self.title}" if self.restricted else self.title


#: Flag of the operating system -> vectors, the widest first.
KNOWN = {"avx512f": Vectors("AVX-512", 64), "avx2": Vectors("AVX2", 32), "asimd": Vectors("NEON", 16)}
#: Allowed restrictions. NumPy's names are those of its dispatch targets (NumPy, "CPU build options").
RESTRICTIONS = {
    "avx2": Vectors(
        "AVX2", 32, True, "haswell",
        (
            ("NUMBA_CPU_NAME", "haswell"), ("NUMBA_CPU_FEATURES", ""), ("OPENBLAS_CORETYPE", "Haswell"),
            ("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR"),
        ),
    )
}  # fmt: skip


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
    #: Eight operations on vectors of 64 bytes, and two such stores: twice what Zen 5 does (AMD's Software
    #: Optimization Guide for family 1Ah: two FMAs and two additions, one store of 64 bytes).
    fastest_hz, most_per_cycle = 6.5e9, (512.0, 128.0)

    def detect(self) -> list[DetectedDevice]:
        """Always one."""
        return [DetectedDevice("cpu", cpu_info(), vectors_in_use(cpu_flags()).environment)]

    def find(self, spec: str) -> DetectedDevice:
        """The one."""
        if spec != "cpu":
            raise not_a_spec(spec)
        return self.detect()[0]

    def open(self, spec: str) -> Device:
        """Loads NumPy and Numba."""
        device: Device = load("tuner.devices.cpu.device:CpuDevice")()
        return device

    def watch(self, devices: Sequence[DetectedDevice]) -> LoadWatch:
        """Watches other processes, stolen time and throttled clocks."""
        watch: LoadWatch = load("tuner.devices.machine_load:CpuWatch")()
        return watch

    def lock_names(self, info: DeviceInfo) -> list[str]:
        """One for each last-level cache: behind different ones, processes may time side by side."""
        return [f"cpu{first}" for first in cache_groups(os.sched_getaffinity(0))]

    def power_trouble(self) -> str:
        """Why the energy counters cannot be read."""
        trouble: str = load("tuner.devices.machine_load:EnergyCounters")().trouble
        return trouble

    def likeness(self, info: DeviceInfo) -> tuple[str, str]:
        """Vectors of the same width."""
        return f"a CPU with vectors of {info.vector_bytes} bytes, too", str(info.vector_bytes)


KIND = CpuKind()


def cpu_flags() -> set[str]:
    """Returns the flags of this machine's CPU, from the operating system."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def vectors_in_use(flags: Collection[str]) -> Vectors:
    """Returns the vectors to use on a CPU: the widest, or narrower ones if the environment requests them.

    Args:
        flags: CPU flags as the operating system lists them.

    Raises:
        InputError: The environment requests unknown vectors.
        DeviceTrouble: It requests vectors that the CPU does not have.
    """
    widest = next((vectors for flag, vectors in KNOWN.items() if flag in flags), Vectors("", 16))
    name = os.environ.get(FEATURES_VARIABLE, "").strip().lower()
    if not name:
        return widest
    if name not in RESTRICTIONS:
        raise InputError(
            f"{FEATURES_VARIABLE} is {' or '.join(RESTRICTIONS)}, got {name!r}; unset it for all there are"
        )
    if name not in flags:
        raise DeviceTrouble(
            f"{FEATURES_VARIABLE}={name} needs a CPU with these vectors, this one has none; unset it"
        )
    return RESTRICTIONS[name] if RESTRICTIONS[name].bytes < widest.bytes else widest


def cpu_info() -> DeviceInfo:
    """Describes the part of this machine's CPU that this process may use.

    Raises:
        InputError: The environment restricts it to unknown vectors.
        DeviceTrouble: The environment restricts it to vectors that it does not have.
    """
    text = _read("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", text)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    flags = cpu_flags()
    vectors = vectors_in_use(flags)
    cores = len(os.sched_getaffinity(0))
    parts = [f"{cores} core{'s' if cores > 1 else ''}", *filter(None, [str(vectors)])]
    full = f"{name} ({', '.join(parts)})"
    identity = hashlib.sha256("\0".join([full, platform.node(), *sorted(flags)]).encode()).hexdigest()
    return DeviceInfo(
        name=full,
        kind="cpu",
        uuid=f"CPU-{identity[:16]}",
        architecture=platform.machine(),
        driver=f"{platform.system()} {platform.release()}",
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        l1_bytes=_cache_bytes(1) or 32 << 10,
        l2_bytes=_cache_bytes(3) or _cache_bytes(2) or 32 << 20,
        cores=cores,
        vector_bytes=vectors.bytes,
    )


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
