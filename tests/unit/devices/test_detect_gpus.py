"""GPUs as NVML tells them: boards, MIG instances, CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tuner.devices.detect import find, find_all, gpus
from tuner.errors import DeviceTrouble


class FakeNvml(SimpleNamespace):
    """Answers like NVML for boards given as (uuid, [uuids of MIG instances])."""

    class NVMLError(Exception):
        """NVML's own."""

    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, boards: list[tuple[str, list[str]]], names: dict[str, str] | None = None) -> None:
        super().__init__()
        self._boards, self._names = boards, names or {}

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self._boards),
            "nvmlDeviceGetHandleByIndex": lambda index: self._boards[index][0],
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetName": lambda handle: self._names.get(handle, "NVIDIA H200"),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=1 << 37),
            "nvmlDeviceGetMigMode": self._mig_mode,
            "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._instance,
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _mig_mode(self, handle: str) -> list[int]:
        return [int(bool(dict(self._boards)[handle])), 0]

    def _instance(self, handle: str, index: int) -> str:
        instances = dict(self._boards)[handle]
        if index >= len(instances):
            raise self.NVMLError("no such instance")
        return instances[index]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch):  # noqa: ANN201
    """Installs boards; without CUDA_VISIBLE_DEVICES."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(boards: list[tuple[str, list[str]]], names: dict[str, str] | None = None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(boards, names))

    return install


def uuids() -> list[str]:
    """UUIDs of the GPUs found."""
    return [found.info.uuid for found in gpus()]


def test_boards_come_in_nvml_order_and_a_worker_sees_only_its_own(nvml) -> None:  # noqa: ANN001
    nvml([("GPU-a", []), ("GPU-b", [])])
    assert uuids() == ["GPU-a", "GPU-b"]
    assert dict(find("cuda:1").environment)["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert [found.spec for found in find_all("cuda")] == ["cuda:0", "cuda:1"]
    assert [found.spec for found in find_all("")] == ["cuda:0"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", ["GPU-b"]),
        ("1,0", ["GPU-b", "GPU-aa"]),
        ("GPU-b", ["GPU-b"]),
        ("GPU-a,7,GPU-b", ["GPU-aa"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_devices_are_chosen_and_ordered(nvml, monkeypatch, visible: str, expected: list[str]) -> None:  # noqa: ANN001
    nvml([("GPU-aa", []), ("GPU-b", [])])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuids() == expected


def test_a_split_board_gives_its_instances(nvml, monkeypatch) -> None:  # noqa: ANN001
    nvml([("GPU-a", ["MIG-1", "MIG-2"]), ("GPU-b", [])])
    assert uuids() == ["MIG-1", "MIG-2", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert uuids() == ["MIG-2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert uuids() == ["MIG-1"]


def test_gpus_of_two_kinds_do_not_share_a_study(nvml) -> None:  # noqa: ANN001
    nvml([("GPU-a", []), ("GPU-b", [])], {"GPU-b": "NVIDIA A100"})
    with pytest.raises(DeviceTrouble, match="of one kind, found NVIDIA A100, NVIDIA H200"):
        find_all("cuda")


def test_a_gpu_that_is_not_there_is_named_with_those_that_are(nvml) -> None:  # noqa: ANN001
    nvml([("GPU-a", [])])
    with pytest.raises(DeviceTrouble, match=r"no device cuda:3; found cuda:0 \(NVIDIA H200\)"):
        find("cuda:3")
