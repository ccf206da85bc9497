"""Fake devices as a kind: each stands for the kind of device that its file names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.devices.cuda.kind import CudaKind
from tuner.devices.protocol import Compiler, DetectedDevice, Device, Language, Load, LoadWatch
from tuner.extras import load


class FakeKind(CudaKind):
    """Devices described by files; ``machine`` in a file gives the readings of its load."""

    name, first, times_pass = "fake", "", False

    def detect(self) -> list[DetectedDevice]:
        """None: a fake device is always named."""
        return []

    def find(self, spec: str) -> DetectedDevice:
        """The device of the file."""
        return DetectedDevice(spec, load("tuner.devices.fake.device:read_info")(_file(spec)))

    def open(self, spec: str) -> Device:
        """Reads the file."""
        device: Device = load("tuner.devices.fake.device:FakeDevice").from_file(_file(spec))
        return device

    def compiler(self, language: Language, spec: str) -> Compiler:
        """A fake one, whatever the language."""
        compiler: Compiler = load("tuner.devices.fake.device:FakeCompiler")(_file(spec))
        return compiler

    def watch(self, devices: Sequence[DetectedDevice]) -> LoadWatch:
        """Watches the first device's file."""
        return _FileWatch(devices[0].spec)

    def throttle_reasons(self, device: DetectedDevice) -> int:
        """As the file says."""
        return int(_machine(device.spec).get("throttle_reasons", 0))


class _FileWatch(LoadWatch):
    def __init__(self, spec: str) -> None:
        self._spec = spec

    def load(self) -> Load:
        """As the file says now."""
        return Load(_machine(self._spec))


def _file(spec: str) -> str:
    return spec.partition(":")[2]


def _machine(spec: str) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(Path(_file(spec)).read_text()).get("machine", {})
    return machine


KIND = FakeKind()
