"""Kernels and devices as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.devices.detect import DetectedDevice, find, gpus


def kernels_json(catalogue: Catalogue, operation: str = "", target: str = "") -> list[dict[str, Any]]:
    """The kernels of an operation, or all.

    Raises:
        UnknownName: There is no such operation.
    """
    found = catalogue.of(operation, target) if operation else catalogue.kernels
    return [kernel_json(each) for each in found if target in ("", each.target)]


def kernel_json(kernel: Kernel) -> dict[str, Any]:
    """A kernel with its parameters and constraints."""
    return {
        "operation": kernel.operation, "target": kernel.target, "name": kernel.name,
        "idea": kernel.idea,
        "parameters": {each.name: list(each.values) for each in kernel.parameters},
        "constraints": [each.sentence for each in kernel.constraints],
    }  # fmt: skip


def operations_json(catalogue: Catalogue) -> list[dict[str, Any]]:
    """The operations: dims, dtypes, layouts."""
    return [
        {
            "name": each.name, "dims": list(each.dims), "dtypes": list(each.dtypes),
            "layouts": list(each.layouts),
        }
        for each in catalogue.operations.values()
    ]  # fmt: skip


def own_devices() -> tuple[DetectedDevice, ...]:
    """The devices of this machine: its GPUs, then its CPU."""
    return (*gpus(), find("cpu"))


def devices_json(found: Iterable[DetectedDevice]) -> list[dict[str, Any]]:
    """Devices, each with the spec by which commands name it."""
    return [{"spec": each.spec, **each.info.to_json()} for each in found]
