"""Devices found without loading a GPU library, on machines with and without GPUs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.devices import detect
from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.detect import DetectedDevice
from tuner.errors import DeviceTrouble, InputError


class Nvml:
    """NVML of a machine with some GPUs, of which some may be split into MIG instances."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        """What NVML raises."""

    def __init__(self, *names: str, split: dict[int, int] | None = None) -> None:
        self._names, self._split = names, split or {}

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, int]:  # noqa: N802
        return index, -1

    def nvmlDeviceGetMigMode(self, handle: tuple[int, int]) -> tuple[int, int]:  # noqa: N802
        if not self._split:
            raise self.NVMLError("not supported")
        return int(handle[0] in self._split), 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: tuple[int, int]) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, handle: tuple[int, int], index: int
    ) -> tuple[int, int]:
        if index >= self._split[handle[0]]:
            raise self.NVMLError("not found")
        return handle[0], index

    def nvmlDeviceGetCudaComputeCapability(self, handle: tuple[int, int]) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13010

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65"

    def nvmlDeviceGetName(self, handle: tuple[int, int]) -> str:  # noqa: N802
        name = self._names[handle[0]]
        return name if handle[1] < 0 else f"{name} MIG 1g.18gb"

    def nvmlDeviceGetUUID(self, handle: tuple[int, int]) -> str:  # noqa: N802
        board, instance = handle
        return f"GPU-{str(board) * 3}" if instance < 0 else f"MIG-{board}{instance}"

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[int, int]) -> Any:  # noqa: N802
        return SimpleNamespace(total=(141 if handle[1] < 0 else 18) << 30)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts GPUs into the machine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(*names: str, split: dict[int, int] | None = None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(*names, split=split))

    return put


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_the_cpu_is_known_by_name_cores_and_driver() -> None:
    found = detect.find("cpu")
    assert (found.spec, found.target, found.opening) == ("cpu", "cpu", "cpu")
    info = found.info
    assert info.cores >= 1
    assert f"{info.cores} core" in info.name
    assert info.uuid.startswith("CPU-")
    assert info.driver.startswith("Linux ")
    assert info.memory_bytes > 1 << 20
    assert info.l1_bytes < info.l2_bytes
    assert info == detect.find("cpu").info


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_cpu_is_taken_and_cuda_is_trouble() -> None:
    assert detect.gpus() == []
    assert detect.find().spec == "cpu"
    assert [each.spec for each in detect.find_all()] == ["cpu"]
    for spec in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(
            DeviceTrouble, match=f"device {spec} needs an NVIDIA GPU and its driver, found none"
        ):
            detect.find_all(spec)


def test_a_gpu_is_taken_first(gpus: Any) -> None:
    gpus("NVIDIA H200", "NVIDIA H200")
    found = detect.find()
    assert (found.spec, found.target, found.opening) == ("cuda:0", "cuda", "cuda")
    assert found.info.name == "NVIDIA H200"
    assert (found.info.architecture, found.info.driver, found.info.runtime) == ("sm_90", "580.65", "CUDA 13.1")
    assert detect.find("cuda:1").info.uuid == "GPU-111"
    assert detect.find("cpu").spec == "cpu"


def test_a_worker_sees_its_gpu_and_no_other(gpus: Any) -> None:
    gpus("NVIDIA H200", "NVIDIA H200")
    assert dict(detect.find("cuda:1").environment)["CUDA_VISIBLE_DEVICES"] == "GPU-111"


def test_cuda_means_every_gpu_where_they_are_of_one_kind(gpus: Any) -> None:
    gpus("NVIDIA H200", "NVIDIA H200")
    assert [each.spec for each in detect.find_all("cuda")] == ["cuda:0", "cuda:1"]
    assert [each.spec for each in detect.find_all("cuda:1")] == ["cuda:1"]
    gpus("NVIDIA H200", "NVIDIA L4")
    with pytest.raises(DeviceTrouble, match="are of one kind, found NVIDIA H200, NVIDIA L4; choose one"):
        detect.find_all("cuda")


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["GPU-111"]),
        ("2,0", ["GPU-222", "GPU-000"]),
        ("GPU-1", ["GPU-111"]),
        ("GPU-222,0", ["GPU-222", "GPU-000"]),
        ("0,-1,1", ["GPU-000"]),
        ("0,9,1", ["GPU-000"]),
        ("", []),
        ("-1", []),
        ("nonsense", []),
    ],
)
def test_visible_devices_are_limited_and_ordered_as_cuda_does(
    gpus: Any, monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    gpus("NVIDIA H200", "NVIDIA H200", "NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = detect.gpus()
    assert [each.info.uuid for each in found] == uuids
    assert [each.spec for each in found] == [f"cuda:{number}" for number in range(len(uuids))]


def test_instances_of_a_split_board_are_devices(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus("NVIDIA H200", "NVIDIA H200", split={0: 2})
    assert [each.info.uuid for each in detect.gpus()] == ["MIG-00", "MIG-01", "GPU-111"]
    second = detect.find("cuda:1")
    assert second.info.memory_bytes == 18 << 30
    assert dict(second.environment)["CUDA_VISIBLE_DEVICES"] == "MIG-01"
    for visible, uuids in (("MIG-01", ["MIG-01"]), ("0", ["MIG-00"]), ("GPU-1,MIG-0", ["GPU-111", "MIG-00"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [each.info.uuid for each in detect.gpus()] == uuids


def test_a_gpu_that_is_not_there_is_told_with_those_that_are(gpus: Any) -> None:
    gpus("NVIDIA H200")
    with pytest.raises(DeviceTrouble, match=r"no device cuda:3; found cuda:0 \(NVIDIA H200\)"):
        detect.find("cuda:3")


@pytest.mark.parametrize("spec", ["gpu", "cuda:x", "CPU", "cuda:-1", "cuda:0,1", "H200"])
def test_what_is_no_device_is_bad_input(spec: str) -> None:
    with pytest.raises(InputError, match="a device is cpu, cuda or cuda:N"):
        detect.find(spec)


def test_a_fake_device_takes_the_kind_that_its_file_says(tmp_path: Any) -> None:
    path = tmp_path / "device.json"
    path.write_text('{"info": {"name": "Fake", "kind": "cuda"}}')
    found = detect.find(f"fake:{path}")
    assert found.target == "cuda"
    assert found.opening == found.spec
    with pytest.raises(DeviceTrouble, match="cannot read"):
        detect.find("fake:nowhere.json")


@pytest.mark.parametrize(
    ("vector_bytes", "chosen", "best"),
    [
        (64, "Haswell", "SkylakeX"), (64, "Zen", "SkylakeX"), (32, "Nehalem", "Haswell"),
        (64, "SkylakeX", None), (64, "Sapphirerapids", None), (32, "Haswell", None),
        (16, "Nehalem", None), (64, "", None),
    ],
)  # fmt: skip
def test_the_blas_core_type_that_suits_the_cpu(vector_bytes: int, chosen: str, best: str | None) -> None:
    cpu = DetectedDevice(
        "cpu", DeviceInfo("AMD EPYC", "cpu", vector_bytes=vector_bytes), (("OMP_NUM_THREADS", "4"),)
    )
    told = with_best_blas(cpu, chosen)
    assert (told and dict(told.environment)) == (best and {"OMP_NUM_THREADS": "4", "OPENBLAS_CORETYPE": best})


def test_no_core_type_is_chosen_for_what_is_no_cpu() -> None:
    board = DetectedDevice("cuda:0", DeviceInfo("NVIDIA H200", "cuda", vector_bytes=64))
    assert with_best_blas(board, "Haswell") is None
