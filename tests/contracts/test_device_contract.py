"""The devices that every machine has keep the contract of devices."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contracts.device_suite import DeviceContract
from fixtures.fake_device import BOARD

from tuner.correctness import Workload
from tuner.devices import open_device
from tuner.devices.cpu import CpuDevice
from tuner.devices.fake import FakeCompiler, FakeDevice
from tuner.devices.numba_source import NumbaCompiler
from tuner.devices.protocol import REGIMES, Compiler, Device
from tuner.errors import DeviceTrouble
from tuner.kernel import Rendered


class TestFakeDevice(DeviceContract):
    regimes = REGIMES
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setup_class(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        rules = [{"where": {"BROKEN": "1"}, "fault": "launch_failed"}]
        data = {"info": BOARD, "rules": rules, "landscape_seed": 1, "baseline_s": 1e-3}
        Path(cls.folder.name, "device.json").write_text(json.dumps(data))

    @classmethod
    def teardown_class(cls) -> None:
        cls.folder.cleanup()

    @classmethod
    def open(cls) -> Device:
        return FakeDevice.from_file(f"{cls.folder.name}/device.json")

    @classmethod
    def compiler(cls) -> Compiler:
        return FakeCompiler(f"{cls.folder.name}/device.json")

    @classmethod
    def failing(cls, rendered: Rendered) -> Rendered:
        return replace(rendered, text=f"#define BROKEN 1\n{rendered.text}")

    def bare_library(self, device: Device, workload: Workload) -> Any:
        return FakeDevice({"info": BOARD}).library(workload)


class TestCpuDevice(DeviceContract):
    @classmethod
    def open(cls) -> Device:
        return CpuDevice()

    @classmethod
    def compiler(cls) -> Compiler:
        return NumbaCompiler()

    @classmethod
    def failing(cls, rendered: Rendered) -> Rendered:
        # Only with more numbers than the compiler's trial has.
        trap = "\ndef toy(x, y, n):\n    if n > 1000:\n        raise ValueError('too many')\n"
        return replace(rendered, text=rendered.text + trap)

    def test_graphs_are_for_gpus(self, device: Device) -> None:
        with pytest.raises(DeviceTrouble, match="a CPU is timed cold or hot"):
            device.samples_s(lambda: None, 1, "hot-graph")

    def test_it_names_the_blas_that_it_compares_with(self, device: Device) -> None:
        assert device.versions["library"].startswith("NumPy ")
        assert int(device.versions["blas_threads"]) >= 1


def test_cuda_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tuner.devices.cuda", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(
        DeviceTrouble, match=r"needs CuPy, which cannot be imported .* the extra cuda13 or cuda12"
    ):
        open_device("cuda")


def test_a_spec_names_a_device(tmp_path: Any) -> None:
    path = tmp_path / "device.json"
    path.write_text('{"info": {"name": "Fake", "kind": "cuda"}}')
    assert open_device(f"fake:{path}").info.name == "Fake"
    assert open_device("cpu").info.kind == "cpu"
