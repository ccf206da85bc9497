"""Devices that measure kernels: CUDA GPUs, the CPU, and a fake one for tests.

`protocol` says what a device does, `detect` finds devices without loading a GPU library, and
`open_device` makes one; only worker processes call it.
"""

from __future__ import annotations

from tuner.devices.protocol import Device
from tuner.errors import DeviceTrouble


def open_device(spec: str) -> Device:
    """Opens a device in this process.

    Args:
        spec: ``cuda`` (the first GPU this process sees), ``cpu``, or ``fake:FILE.json``.

    Raises:
        DeviceTrouble: It cannot be opened.
    """
    kind, _, rest = spec.partition(":")
    if kind == "cuda":
        try:
            from tuner.devices.cuda import CudaDevice
        except ImportError as error:
            raise DeviceTrouble(
                f"a CUDA device needs CuPy, which cannot be imported ({error}); install the extra cuda13 or "
                "cuda12, for your driver's CUDA version, or use --device cpu"
            ) from error
        return CudaDevice()
    if kind == "fake":
        from tuner.devices.fake import FakeDevice

        return FakeDevice.from_file(rest)
    from tuner.devices.cpu import CpuDevice

    return CpuDevice()
