"""Names of devices, and which devices are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import kind_of
from tuner.errors import NothingFound, UnknownName

#: Words of a device's name that do not tell one model from another: makers, forms and memories of boards.
_NOT_THE_MODEL = re.compile(
    r"\([^)]*\)|\bmig\b.*|\b(nvidia|amd|intel|cpu|processor|laptop|gpu|sxm\d*|nvl|pcie|hbm\d*e?|\d+gb)\b|@.*"
)


def known_device(name: str, known: Sequence[DeviceInfo]) -> DeviceInfo:
    """The device of a name, whatever its case, or of a uuid, or whose name has all words of the one given.

    Args:
        name: e.g. ``NVIDIA H200``, ``h200``, ``AVX-512``.
        known: The devices that there are records of; of several descriptions of one the last counts.

    Raises:
        NothingFound: None is known.
        UnknownName: No device, or devices of several names, are called that.
    """
    if not known:
        raise NothingFound(f"nothing is tuned yet, so nothing is known of {name!r}; run `tuner tune` first")
    if not name:
        raise UnknownName("device", name, [device.name for device in known])
    folded = name.casefold()
    called = {x.name: x for x in known if folded in (x.name.casefold(), x.uuid.casefold())}
    for found in (called, {x.name: x for x in known if _words(folded) <= _words(x.name.casefold())}):
        if len(found) == 1:
            return next(iter(found.values()))
    raise UnknownName("device", name, [device.name for device in known])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[\w.+-]+", name)) or {name}


def model(device: DeviceInfo) -> str:
    """What is sold under one name, whatever board, memory or part of it: ``h200``, ``xeon platinum 8480+``."""
    text = re.sub(r"\((r|tm|c)\)", "", device.name.casefold())
    return " ".join(_NOT_THE_MODEL.sub(" ", text).split())


def alike(device: DeviceInfo, others: Iterable[DeviceInfo]) -> tuple[str, list[DeviceInfo]]:
    """The devices most like one, and in what.

    Args:
        device: The one.
        others: Others, of any kind.

    Returns:
        What they share, for people, and the devices: those of the same model; without one, those of the same
        architecture and, for CPUs, vectors as wide. Both empty where there is none.
    """
    kin = [
        each
        for each in others
        if each.kind == device.kind
        and each.name != device.name
        and (not kind_of(each.kind).is_host or each.vector_bytes == device.vector_bytes)
    ]
    same_model = [each for each in kin if model(each) and model(each) == model(device)]
    if same_model:
        return f"of the same model ({model(device).upper()})", same_model
    likeness, shared = kind_of(device.kind).likeness(device)
    return likeness, [each for each in kin if shared and kind_of(each.kind).likeness(each)[1] == shared]
