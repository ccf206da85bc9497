"""Opens the device or compiler that a spec names. Each loads its libraries when it is opened."""

from __future__ import annotations

from tuner.devices.protocol import Compiler, Device
from tuner.errors import DeviceTrouble


def open_device(spec: str) -> Device:
    """Opens a device in this process.

    Args:
        spec: ``cuda`` (the first GPU visible to this process), ``cpu``, or ``fake:FILE.json``.

    Raises:
        DeviceTrouble: It cannot be opened.
    """
    kind, _, rest = spec.partition(":")
    if kind == "cuda":
        try:
            from tuner.devices.cuda.device import CudaDevice
        except ImportError as error:
            raise DeviceTrouble(
                f"a CUDA device needs CuPy, which cannot be imported ({error}); install the extra cuda13 or "
                "cuda12, for your driver's CUDA version, or use --device cpu"
            ) from error
        return CudaDevice()
    if kind == "fake":
        from tuner.devices.fake import FakeDevice

        return FakeDevice.from_file(rest)
    from tuner.devices.cpu.device import CpuDevice

    return CpuDevice()


def compiler_for(spec: str) -> Compiler:
    """Returns the compiler for a device spec: ``cuda``, ``cpu`` or ``fake:FILE``."""
    kind, _, rest = spec.partition(":")
    if kind == "cuda":
        from tuner.devices.cuda.nvrtc import NvrtcCompiler

        return NvrtcCompiler()
    if kind == "fake":
        from tuner.devices.fake import FakeCompiler

        return FakeCompiler(rest)
    from tuner.devices.cpu.numba import NumbaCompiler

    return NumbaCompiler()
