"""What a process of its own is given, and what comes back; CuPy itself needs no GPU to be imported."""

import os
from pathlib import Path

import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.devices.cuda import process as gpu_process
from tuner.devices.cuda.process import gpu_of, held_gpu, on_gpu
from tuner.devices.detect import DetectedDevice
from tuner.devices.device_lock import device_holder


def told(number: int, module: object) -> tuple[int, str, str, int]:
    name = str(getattr(module, "__name__", ""))
    return number + 1, name, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid()


def test_the_function_runs_elsewhere_with_cupy_and_sees_one_gpu() -> None:
    pytest.importorskip("cupy")
    number, name, seen, process = on_gpu({"CUDA_VISIBLE_DEVICES": "GPU-3"}, told, 4)
    assert (number, name, seen) == (5, "cupy", "GPU-3")
    assert process != os.getpid()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "GPU-3"


def test_only_a_gpu_is_one_that_such_a_process_sees() -> None:
    gpu = DeviceInfo(name="NVIDIA H200", kind="cuda", uuid="GPU-3")
    environment = (("CUDA_VISIBLE_DEVICES", "GPU-3"),)
    assert gpu_of(DetectedDevice("cuda:1", gpu, environment)) == {"CUDA_VISIBLE_DEVICES": "GPU-3"}
    assert gpu_of(DetectedDevice("fake:board.toml", gpu, environment)) is None
    assert gpu_of(DetectedDevice("cpu", DeviceInfo(name="EPYC", kind="cpu", cores=2))) is None


def test_a_gpu_is_held_for_as_long_as_it_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNER_LOCKS", str(tmp_path))
    gpu = DetectedDevice("cuda:0", DeviceInfo(name="NVIDIA H200", kind="cuda", uuid="GPU-3"))
    monkeypatch.setattr(gpu_process, "find", lambda words: gpu)
    with held_gpu("cuda:0", "model fit gemm") as environment:
        assert environment == {}
        assert "model fit gemm" in device_holder(gpu.info)
    assert device_holder(gpu.info) == ""
    for words in ("", "cpu", "NVIDIA H200"):
        with held_gpu(words, "model fit gemm") as environment:
            assert environment is None
