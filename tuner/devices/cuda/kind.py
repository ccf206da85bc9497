"""NVIDIA GPUs as a kind of device: NVML lists them, ``CUDA_VISIBLE_DEVICES`` filters and orders them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, cast

from tuner.declare.hardware import DeviceInfo
from tuner.devices import protocol
from tuner.devices.protocol import DetectedDevice, Device, DeviceKind, LoadWatch, SurveyDefaults, not_a_spec
from tuner.errors import DeviceTrouble
from tuner.extras import load


class CudaKind(DeviceKind):
    """GPUs and MIG instances that CUDA may use."""

    name, first = "cuda", "cuda:0"
    is_host = False
    regimes = protocol.REGIMES
    survey = SurveyDefaults("cold", ahead=48, least=8, turn_s=0.12, most_bytes=4e9, most_flops=1e12)
    driver_counts = True
    guessed_rates = (2e13, 1e12)
    copied_bytes_per_s, copy_s = 1e11, 10e-6
    #: Eight times what Hopper's tensor cores compute (4096 operations on two bytes), for lesser formats and
    #: later boards; four times the 64 bytes that a multiprocessor moves to the L2.
    fastest_hz, most_per_cycle = 3.5e9, (65536.0, 256.0)
    #: Since compute capability 7.5 (CUDA C++ Programming Guide, "Compute Capabilities").
    least_limits = MappingProxyType({
        "warp_size": 32, "max_threads_per_block": 1024, "max_threads_per_sm": 1024,
        "shared_bytes_per_block": 48 << 10, "shared_bytes_per_sm": 64 << 10, "registers_per_block": 64 << 10,
        "registers_per_thread": 255,
    })  # fmt: skip

    def detect(self) -> list[DetectedDevice]:
        """See `visible_gpus`."""
        return visible_gpus()

    def find(self, spec: str) -> DetectedDevice:
        """``cuda`` is the first."""
        match = re.fullmatch(r"cuda(?::(\d+))?", spec)
        if match is None:
            raise not_a_spec(spec)
        gpus, index = self.detect(), int(match[1] or 0)
        if not gpus:
            raise DeviceTrouble(
                f"device {spec} needs an NVIDIA GPU and its driver, found none; use --device cpu, or see "
                "`tuner doctor`"
            )
        if index >= len(gpus):
            names = ", ".join(f"{device.spec} ({device.info.name})" for device in gpus)
            raise DeviceTrouble(f"no device {spec}; found {names}; choose one of them")
        return gpus[index]

    def open(self, spec: str) -> Device:
        """Loads CuPy, and makes a context on the first visible GPU."""
        try:
            return cast(Device, load("tuner.devices.cuda.device:CudaDevice")())
        except ImportError as error:
            raise DeviceTrouble(
                f"a CUDA device needs CuPy, which cannot be imported ({error}); install the extra cuda13 or "
                "cuda12, for your driver's CUDA version, or use --device cpu"
            ) from error

    def describe(self, number: int) -> DeviceInfo:
        """With all limits, from CUDA itself."""
        return cast(DeviceInfo, load("tuner.devices.cuda.calling:device_info")(number))

    def watch(self, devices: Sequence[DetectedDevice]) -> LoadWatch:
        """Watches other processes on the GPUs."""
        return cast(LoadWatch, load("tuner.devices.machine_load:GpuWatch")(devices))

    def throttle_reasons(self, device: DetectedDevice) -> int:
        """By NVML; 0 without a driver, and for a MIG instance."""
        with contextlib.suppress(Exception):
            library = nvml()
            handle = library.nvmlDeviceGetHandleByUUID(device.info.uuid)
            return int(library.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return 0


KIND = CudaKind()


def nvml() -> Any:
    """NVML, ready to be asked; raises one of its errors, or ImportError, where there is no driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def runtime_version(version: int) -> str:
    """CUDA's version in words, of the number by which drivers tell it."""
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def visible_gpus() -> list[DetectedDevice]:
    """Returns the GPUs that this process may use, in CUDA's order (bus order)."""
    try:
        library = nvml()
    except Exception:
        return []
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    boards = [(library.nvmlDeviceGetUUID(handle), _units(library, handle)) for handle in handles]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    infos = [info for _, units in boards for info in units] if visible is None else _visible(boards, visible)
    return [
        DetectedDevice(
            f"cuda:{index}", info, (("CUDA_VISIBLE_DEVICES", info.uuid), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))
        )
        for index, info in enumerate(infos)
    ]


def _gpu_info(library: Any, handle: Any) -> DeviceInfo:
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    return DeviceInfo(
        library.nvmlDeviceGetName(handle), "cuda", library.nvmlDeviceGetUUID(handle),
        architecture=f"sm_{major}{minor}", driver=library.nvmlSystemGetDriverVersion(),
        runtime=runtime_version(library.nvmlSystemGetCudaDriverVersion()),
        memory_bytes=library.nvmlDeviceGetMemoryInfo(handle).total, compute_capability=major * 10 + minor,
    )  # fmt: skip


def _units(library: Any, handle: Any) -> list[DeviceInfo]:
    """Returns the board itself, or its MIG instances if it is split."""
    instances = []
    with contextlib.suppress(library.NVMLError):
        if library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE:
            for index in range(library.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(library.NVMLError):
                    instance = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                    instances.append(_gpu_info(library, instance))
    return instances or [_gpu_info(library, handle)]


def _visible(boards: list[tuple[str, list[DeviceInfo]]], visible: str) -> list[DeviceInfo]:
    """Returns the devices that ``CUDA_VISIBLE_DEVICES`` leaves.

    CUDA accepts indices of boards, and (prefixes of) UUIDs of boards and MIG instances. For a split board it
    uses the first instance. It ignores everything from the first unknown entry on.
    """
    chosen: list[DeviceInfo] = []
    for entry in map(str.strip, visible.split(",")):
        named = [
            info
            for number, (uuid, units) in enumerate(boards)
            for place, info in enumerate(units)
            if (not place and (entry == str(number) or (entry.startswith("GPU-") and uuid.startswith(entry))))
            or (entry.startswith("MIG-") and info.uuid.startswith(entry))
        ]
        if not named:
            break
        chosen.append(named[0])
    return chosen
