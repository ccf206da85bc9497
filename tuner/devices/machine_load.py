"""The load that others cause on devices during a measurement.

It is kept in the circumstances of records; `tuner.results.measurement` judges it.
"""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from tuner.devices.detect import kind_of
from tuner.devices.protocol import DetectedDevice, Load
from tuner.results.measurement import SLOWED, complaints

#: Largest number of processes named, busiest first.
NAMED = 3


def described(load: Load, cores: int = 0) -> tuple[str, ...]:
    """Returns the complaints about a load, with the processes behind it."""
    troubles = complaints(load.circumstances, cores)
    return (*troubles, f"busiest: {', '.join(load.who)}") if troubles and load.who else troubles


def slowed(device: DetectedDevice) -> tuple[str, ...]:
    """Returns why a device runs below its clocks now, by what it says itself."""
    reasons = kind_of(device.spec).throttle_reasons(device)
    return tuple(dict.fromkeys(why for bit, why in SLOWED.items() if reasons & bit))


def user_of(pid: int) -> str:
    """Names the user of a process: `` of anna``; empty if that is unknown."""
    try:
        return f" of {psutil.Process(pid).username()}"
    except (psutil.Error, KeyError):
        return ""


class MachineWatch:
    """Watches the load that others cause on the devices of a study."""

    def __init__(self, devices: Sequence[DetectedDevice]) -> None:
        """Takes the first readings, before this process uses the devices.

        Args:
            devices: The devices, of one kind.
        """
        self._cores = devices[0].info.cores if kind_of(devices[0].target).is_host else 0
        watch = kind_of(devices[0].spec).watch(devices)
        self.restart, self.load = watch.restart, watch.load

    def complaints(self) -> tuple[str, ...]:
        """Describes what is wrong with the machine; empty if it is quiet."""
        return described(self.load(), self._cores)
