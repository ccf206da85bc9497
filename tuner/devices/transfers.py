"""Times the steps around a kernel if data lies in host memory: allocation, copies to the device and back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from tuner.devices.protocol import Arrays, Device

#: Number of samples of each step; the median counts.
REPEATS = 5


def transfers_s(device: Device, arrays: Arrays) -> dict[str, float]:
    """Returns the seconds, by the host's clock, of the steps around the kernel.

    Args:
        device: The device.
        arrays: The problem's arrays.

    Returns:
        ``allocate`` (and free) all arrays, copy the inputs ``to_device`` and the outputs ``to_host``, from
        and to ordinary (pageable) memory. Empty for a CPU, which needs none of this.
    """
    if device.info.kind != "cuda" or device.xp.__name__ != "cupy":
        return {}
    import numpy

    runtime = device.xp.cuda.runtime
    tensors = arrays.problem.tensors
    host = {each.name: numpy.ones(each.shape, each.dtype) for each in tensors}
    sizes = [each.bytes for each in tensors]

    def allocate() -> None:
        for address in [runtime.malloc(size) for size in sizes]:
            runtime.free(address)

    found = {"allocate": _median_s(device, allocate)}
    addresses = [runtime.malloc(size) for size in sizes]

    def copies(outputs: bool, kind: int) -> Callable[[], None]:
        pairs: list[tuple[Any, Any, int]] = [
            (address, host[each.name].ctypes.data, each.bytes)
            for each, address in zip(tensors, addresses, strict=True)
            if each.output == outputs
        ]

        def copy() -> None:
            for there, here, size in pairs:
                runtime.memcpy(*((here, there) if outputs else (there, here)), size, kind)

        return copy

    try:
        found["to_device"] = _median_s(device, copies(False, runtime.memcpyHostToDevice))
        found["to_host"] = _median_s(device, copies(True, runtime.memcpyDeviceToHost))
    finally:
        for address in addresses:
            runtime.free(address)
    return found


def _median_s(device: Device, action: Callable[[], None]) -> float:
    samples = []
    for _ in range(REPEATS + 1):
        device.synchronize()
        start = time.perf_counter()
        action()
        device.synchronize()
        samples.append(time.perf_counter() - start)
    # The first run touches pages and does one-time work.
    return statistics.median(samples[1:])
