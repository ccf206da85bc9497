"""Whether a worker's device is fit to measure: its canary, its clocks, and who else uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.devices.machine_load import MachineWatch, described, slowed
from tuner.errors import TunerError
from tuner.results.doubts import OTHERS_PROCESSES
from tuner.workers.process import Worker, WorkerFailed, answered


@dataclass(frozen=True)
class Condition:
    """A device and its state.

    Attributes:
        info: The device as the process knows it that opened it.
        versions: Versions of compiler, driver and libraries.
        complaints: What is wrong; empty if it is fit.
    """

    info: DeviceInfo
    versions: Mapping[str, str]
    complaints: tuple[str, ...] = ()


def complaints(found: DetectedDevice) -> Condition:
    """Opens a device, computes something small on it, and looks at its clocks and at who else uses it.

    A CPU that others use is no reason: a night on this machine warns of that, too, and its champions are
    provisional.
    """
    watch = MachineWatch((found,))
    load = watch.load()
    seen: list[str] = []
    if found.target == "cuda" and load.seen.get(OTHERS_PROCESSES):
        seen += described(load)
    seen += [f"its clocks are lowered: {reason}" for reason in slowed(found)]
    info, versions, unwell = _opened(found)
    return Condition(info, versions, tuple(seen + ([f"its canary fails: {unwell}"] if unwell else [])))


def _opened(found: DetectedDevice) -> tuple[DeviceInfo, Mapping[str, str], str]:
    """The device, its versions, and why its canary fails; empty if it does not."""
    worker = Worker("device", found.opening, dict(found.environment))
    try:
        hello = answered(worker.ask({"do": "hello"}))
        unwell = str(answered(worker.ask({"do": "canary"}))["unwell"])
        return DeviceInfo.from_json(hello["info"]), hello["versions"], unwell
    except (WorkerFailed, TunerError) as error:
        return found.info, {}, str(error)
    finally:
        worker.close()
