"""Finds kinds of devices, languages of kernels, and the devices of this machine.

Nothing here loads a library of a device or makes a context on it.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from tuner.devices.protocol import DetectedDevice, DeviceKind, language_of, not_a_spec
from tuner.errors import DeviceTrouble

#: What comes from elsewhere, and is had here.
__all__ = ["DetectedDevice", "language_of"]


@cache
def kinds() -> Mapping[str, DeviceKind]:
    """Name -> kind, of all folders that have one; the host's last, because others go before it."""
    roots = import_module("tuner.devices").__path__
    folders = sorted(path.parent.name for root in roots for path in Path(root).glob("*/kind.py"))
    kinds = [import_module(f"tuner.devices.{folder}.kind").KIND for folder in folders]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.is_host)}


def kind_of(spec: str) -> DeviceKind:
    """The kind that a spec begins with: ``cuda``, ``cuda:1``, ``cpu``.

    Raises:
        InputError: There is none.
    """
    kind = kinds().get(spec.partition(":")[0])
    if kind is None:
        raise not_a_spec(spec)
    return kind


@cache
def is_spec(text: str) -> bool:
    """True if a text names a device of this machine, or asks for the usual one; False for a device's title."""
    return not text or text.partition(":")[0] in kinds()


def is_on_host(text: str) -> bool:
    """True if a spec names this machine's processor; False for a GPU, and for a device's title."""
    kind = kinds().get(text.partition(":")[0])
    return kind is not None and kind.is_host


def gpus() -> list[DetectedDevice]:
    """Returns the devices of this machine beside its own processor, in the order of their numbers."""
    return [device for kind in kinds().values() if not kind.is_host for device in kind.detect()]


def own_devices() -> tuple[DetectedDevice, ...]:
    """The devices of this machine: its GPUs, then its CPU."""
    return tuple(device for kind in kinds().values() for device in kind.detect())


def find(spec: str = "") -> DetectedDevice:
    """Returns the device that a spec names.

    Args:
        spec: ``cpu``, ``cuda`` (the first), ``cuda:1``; empty for the first GPU, or the CPU
            if there is none.

    Raises:
        InputError: Not a spec.
        DeviceTrouble: No such device here.
    """
    if not spec:
        return own_devices()[0]
    return kind_of(spec).find(spec)


def find_all(spec: str = "") -> tuple[DetectedDevice, ...]:
    """Returns the devices that share a study: all of a kind if a spec has no number, else the one it names.

    Raises:
        InputError: Not a spec.
        DeviceTrouble: No such device here, or GPUs of several models.
    """
    devices = find_each(spec) if spec else (find(),)
    names = sorted({device.info.name for device in devices})
    if len(names) > 1:
        raise DeviceTrouble(
            f"GPUs that share a study are of one kind, found {', '.join(names)}; choose one: --device cuda:N"
        )
    return devices


def find_each(spec: str = "") -> tuple[DetectedDevice, ...]:
    """Returns all devices of a kind if a spec has no number; every GPU, or else the CPU, if it is empty.

    Raises:
        InputError: Not a spec.
        DeviceTrouble: No such device here.
    """
    first = find(spec)
    return tuple(kind_of(first.spec).detect()) if spec in ("", first.target) else (first,)
