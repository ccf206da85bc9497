"""The devices that every machine has keep the contract of devices."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.device_suite import DeviceContract
from fixtures.fake_device import BOARD, TOY
from tuner.devices.fake.device import FakeCompiler, FakeDevice

from tuner.declare import catalogue
from tuner.declare.kernel import Rendered
from tuner.declare.problem import Baseline
from tuner.devices.cpu import device as cpu
from tuner.devices.cpu.device import CpuDevice, blas_versions
from tuner.devices.cpu.numba import NumbaCompiler
from tuner.devices.detect import kind_of
from tuner.devices.protocol import REGIMES, Compiler, Device
from tuner.errors import DeviceTrouble
from tuner.results.measurement import Outcome
from tuner.workers.bench import Bench, CompiledConfig
from tuner.workers.workload import Workload


class TestFakeDevice(DeviceContract):
    regimes = REGIMES
    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setup_class(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        faults = ("launch_failed", "writes_input", "stale")
        rules = [{"where": {"FAULT": fault}, "fault": fault, "latency_s": 1e-3} for fault in faults]
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
        return cls.cheating(rendered, "launch_failed")

    @classmethod
    def cheating(cls, rendered: Rendered, how: str) -> Rendered:
        return replace(rendered, text=f"#define FAULT {how}\n{rendered.text}")


class TestCpuDevice(DeviceContract):
    counts = (1, 15)  # it has no queue, and flushes its caches before each

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

    @classmethod
    def cheating(cls, rendered: Rendered, how: str) -> Rendered:
        rest = {
            "writes_input": "    honest(x, y, n)\n    x[n // 2] = 0\n",
            "stale": "    honest(x, y, n)\n    y[:] = SEEN.setdefault(n, y.copy())\n",
        }
        added = f"\nSEEN = {{}}\nhonest = toy\ndef toy(x, y, n):\n{rest[how]}"
        return replace(rendered, text=rendered.text + added)

    def test_spoilt_references_blame_none(self, device: Device, rendered: Rendered, workload: Workload) -> None:
        binary = self.compiled(device, rendered, workload)
        compiled_config = CompiledConfig(rendered, binary.code, binary.report)
        bench = Bench(device, workload, "hot")
        assert bench.measure(compiled_config, None).outcome is Outcome.MEASURED
        workload.first.references["y"][3] += 1
        found = bench.measure(compiled_config, None)
        assert (found.outcome, found.reason[:34]) == (Outcome.CRASHED, "the reference data was overwritten")
        assert bench.unwell

    def test_graphs_are_for_gpus(self, device: Device) -> None:
        with pytest.raises(DeviceTrouble, match="a CPU is timed cold or hot"):
            device.samples_s(lambda: None, 1, "hot-graph")

    def test_the_library_uses_as_many_threads_as_it_is_told(self, device: Device) -> None:
        seen: list[int] = []
        call = lambda xp, problem, arrays: seen.append(int(blas_versions()["blas_threads"]))
        assert device.versions["library"].startswith("NumPy ")
        default = int(device.versions["blas_threads"])
        workload = self.with_library(device, Baseline("NumPy", call))
        for asked, threads in ((0, default), (1, 1), (default + 1, default + 1), (0, default)):
            run = device.library(workload, asked)
            run()
            device.samples_s(run, 2, "hot")
            assert seen == [threads] * 3
            assert device.circumstances(run)["threads"] == threads
            seen.clear()
        assert int(blas_versions()["blas_threads"]) == default

    def test_a_library_without_blas_has_one_thread_and_cannot_be_told(self, device: Device) -> None:
        workload = self.with_library(device, Baseline("NumPy", lambda xp, p, arrays: None, blas=False))
        assert device.circumstances(device.library(workload))["threads"] == 1
        assert device.library(workload, 2) is None

    def with_library(self, device: Device, library: Baseline) -> Workload:
        operation = replace(catalogue.from_file(TOY).operation("toy"), baselines={"cpu": library})
        return Workload(device, operation.problem({"n": 10}), 1)

    def test_what_is_timed_waits_for_threads(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str] = []
        monkeypatch.setattr(cpu, "wait_until_quiet", lambda: told.append("waits"))
        kernel, library = lambda: told.append("kernel"), lambda: told.append("library")
        for run in (kernel, kernel, library, kernel):
            device.samples_s(run, 1, "hot")
        assert told == ["waits", "kernel", "kernel", "waits", "library", "waits", "kernel"]


def test_cuda_without_cupy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tuner.devices.cuda.device", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(
        DeviceTrouble, match=r"needs CuPy, which cannot be imported .* the extra cuda13 or cuda12"
    ):
        kind_of("cuda").open("cuda")
