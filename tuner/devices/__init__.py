"""Devices that measure kernels: CUDA GPUs, the CPU, and a fake one for tests.

`protocol` says what a device does, `detect` finds devices without loading a GPU library, and
`open_device` makes one; only worker processes call it.
"""

from __future__ import annotations

from tuner.devices.protocol import Device


def open_device(spec: str) -> Device:
    """Opens a device in this process.

    Args:
        spec: ``cuda`` (the first GPU this process sees), ``cpu``, or ``fake:FILE.json``.

    Raises:
        DeviceTrouble: It cannot be opened.
    """
    kind, _, rest = spec.partition(":")
    if kind == "cuda":
        from tuner.devices.cuda import CudaDevice

        return CudaDevice()
    if kind == "fake":
        from tuner.devices.fake import FakeDevice

        return FakeDevice.from_file(rest)
    from tuner.devices.cpu import CpuDevice

    return CpuDevice()
