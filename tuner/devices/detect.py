"""Finds devices and their names without loading a GPU array library or making a CUDA context.

NVML lists the GPUs, which ``CUDA_VISIBLE_DEVICES`` filters and orders; the operating system describes the CPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.declare.hardware import DeviceInfo
from tuner.devices.cpu import features as cpu_features
from tuner.errors import DeviceTrouble, InputError


@dataclass(frozen=True)
class DetectedDevice:
    """A device that can be opened.

    Attributes:
        spec: ``cpu``, ``cuda:0``, ``fake:FILE``.
        info: Identity. Only the process that opens a GPU knows its limits.
        environment: Environment variables that make this device the only one that a worker process sees.
    """

    spec: str
    info: DeviceInfo
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def target(self) -> str:
        """Target of the kernels that run on it."""
        return self.info.kind

    @property
    def opening(self) -> str:
        """The spec for `tuner.devices.opening.open_device` inside the worker."""
        return self.spec if self.spec.startswith("fake:") else self.info.kind

    def to_json(self) -> dict[str, Any]:
        """The device with the spec by which commands name it."""
        return {"spec": self.spec, **self.info.to_json()}


def cpu_flags() -> set[str]:
    """Returns the flags of this machine's CPU, from the operating system."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return set(found[1].split()) if found else set()


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
    features = cpu_features.used(flags)
    cores = len(os.sched_getaffinity(0))
    parts = [f"{cores} core{'s' if cores > 1 else ''}", *filter(None, [features.told])]
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
        vector_bytes=features.vector_bytes,
    )


def _cpu() -> DetectedDevice:
    return DetectedDevice("cpu", cpu_info(), cpu_features.used(cpu_flags()).environment)


def with_best_blas(found: DetectedDevice, core_type: str) -> DetectedDevice | None:
    """Returns the same CPU with OpenBLAS set to use the widest vectors.

    OpenBLAS mistakes some newer CPUs for older ones, and NumPy then runs at half speed.

    Args:
        found: A CPU.
        core_type: Core type that OpenBLAS chose by itself.

    Returns:
        None if that is already the best, or if the device is not an x86 CPU.
    """
    best = {64: "SkylakeX", 32: "Haswell"}.get(found.info.vector_bytes, "")
    wide = ("SkylakeX", "Cooperlake", "Sapphirerapids")
    if found.spec != "cpu" or not core_type or not best or core_type == best or core_type in wide:
        return None
    return replace(found, environment=(*found.environment, ("OPENBLAS_CORETYPE", best)))


def gpus() -> list[DetectedDevice]:
    """Returns the GPUs that this process may use, in CUDA's order (bus order)."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    boards = [(pynvml.nvmlDeviceGetUUID(handle), _units(pynvml, handle)) for handle in handles]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    infos = [info for _, units in boards for info in units] if visible is None else _visible(boards, visible)
    return [
        DetectedDevice(
            f"cuda:{index}", info, (("CUDA_VISIBLE_DEVICES", info.uuid), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
        )
        for index, info in enumerate(infos)
    ]


def find(spec: str = "") -> DetectedDevice:
    """Returns the device that a spec names.

    Args:
        spec: ``cpu``, ``cuda`` (the first), ``cuda:1``, ``fake:FILE.json``; empty for the first GPU, or the CPU
            if there is none.

    Raises:
        InputError: Not a spec.
        DeviceTrouble: No such device here.
    """
    if spec == "cpu":
        return _cpu()
    if spec.startswith("fake:"):
        from tuner.devices.fake import read_info

        return DetectedDevice(spec, read_info(spec.partition(":")[2]))
    found = gpus()
    if not spec:
        return found[0] if found else _cpu()
    match = re.fullmatch(r"cuda(?::(\d+))?", spec)
    if match is None:
        raise InputError(f"a device is cpu, cuda or cuda:N, got {spec!r}; `tuner devices` lists those found")
    index = int(match[1] or 0)
    if not found:
        raise DeviceTrouble(
            f"device {spec} needs an NVIDIA GPU and its driver, found none; use --device cpu, or see "
            "`tuner doctor`"
        )
    if index >= len(found):
        names = ", ".join(f"{each.spec} ({each.info.name})" for each in found)
        raise DeviceTrouble(f"no device {spec}; found {names}; choose one of them")
    return found[index]


def find_all(spec: str = "") -> tuple[DetectedDevice, ...]:
    """Returns the devices that share a study: every GPU for ``cuda``, else the device that a spec names.

    Raises:
        InputError: Not a spec.
        DeviceTrouble: No such device here, or GPUs of several kinds.
    """
    first = find(spec)
    if spec != "cuda":
        return (first,)
    found = gpus()
    names = sorted({each.info.name for each in found})
    if len(names) > 1:
        raise DeviceTrouble(
            f"GPUs that share a study are of one kind, found {', '.join(names)}; choose one: --device cuda:N"
        )
    return tuple(found)


def _gpu_info(nvml: Any, handle: Any) -> DeviceInfo:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    version = nvml.nvmlSystemGetCudaDriverVersion()
    return DeviceInfo(
        name=nvml.nvmlDeviceGetName(handle),
        kind="cuda",
        uuid=nvml.nvmlDeviceGetUUID(handle),
        architecture=f"sm_{major}{minor}",
        driver=nvml.nvmlSystemGetDriverVersion(),
        runtime=f"CUDA {version // 1000}.{version % 1000 // 10}",
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=major * 10 + minor,
    )


def _units(nvml: Any, handle: Any) -> list[DeviceInfo]:
    """Returns the board itself, or its MIG instances if it is split."""
    try:
        split = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if split else 0
    except nvml.NVMLError:
        count = 0
    instances = []
    for index in range(count):
        with contextlib.suppress(nvml.NVMLError):
            instances.append(_gpu_info(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return instances or [_gpu_info(nvml, handle)]


def _visible(boards: list[tuple[str, list[DeviceInfo]]], visible: str) -> list[DeviceInfo]:
    """Returns the devices that ``CUDA_VISIBLE_DEVICES`` leaves.

    CUDA accepts indices of boards, and (prefixes of) UUIDs of boards and MIG instances. For a split board it
    uses the first instance. It ignores everything from the first unknown entry on.
    """
    chosen: list[DeviceInfo] = []
    for entry in (part.strip() for part in visible.split(",")):
        found = [
            info
            for number, (uuid, units) in enumerate(boards)
            for position, info in enumerate(units)
            if (
                position == 0
                and (entry == str(number) or (entry.startswith("GPU-") and uuid.startswith(entry)))
            )
            or (entry.startswith("MIG-") and info.uuid.startswith(entry))
        ]
        if not found:
            break
        chosen.append(found[0])
    return chosen


def own_devices() -> tuple[DetectedDevice, ...]:
    """The devices of this machine: its GPUs, then its CPU."""
    return (*gpus(), find("cpu"))


def _cache_bytes(level: int) -> int:
    """Returns the bytes of the first core's data or unified cache at a level."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = _read(folder / "type").strip()
        if _read(folder / "level").strip() == str(level) and kind in ("Data", "Unified"):
            size = _read(folder / "size").strip()
            scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
            return int(size.rstrip("KM") or 0) * scale
    return 0


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
