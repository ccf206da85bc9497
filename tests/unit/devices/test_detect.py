"""Devices found without loading a GPU library, on machines with and without GPUs; their kinds and languages."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.declare.language import languages
from tuner.devices import detect
from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.detect import DetectedDevice, is_spec, kind_of, kinds, language_of
from tuner.devices.protocol import REGIMES
from tuner.errors import DeclarationError, DeviceTrouble, InputError

#: UUID of a board -> UUIDs of its MIG instances.
Boards = dict[str, list[str]]
TWO: Boards = {"GPU-aa": [], "GPU-b": []}


def nvml_of(boards: Boards, names: dict[str, str]) -> SimpleNamespace:
    """NVML of a machine with these boards; a handle is a UUID."""

    class NVMLError(Exception):
        """NVML's own."""

    def instance(handle: str, index: int) -> str:
        if index >= len(boards[handle]):
            raise NVMLError("no such instance")
        return boards[handle][index]

    def mig_mode(handle: str) -> list[int]:
        if not any(boards.values()):
            raise NVMLError("not supported")
        return [int(bool(boards[handle])), 0]

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(boards),
        nvmlDeviceGetHandleByIndex=lambda index: list(boards)[index],
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetName=lambda handle: names.get(handle, "NVIDIA H200"),
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlSystemGetCudaDriverVersion=lambda: 13010,
        nvmlSystemGetDriverVersion=lambda: "580.65",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=(18 if "MIG" in handle else 141) << 30),
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts GPUs into the machine, which has none before; without CUDA_VISIBLE_DEVICES."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def put(boards: Boards, **names: str) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml_of(boards, names))

    return put


def uuids() -> list[str]:
    return [device.info.uuid for device in detect.gpus()]


def test_the_cpu_is_known_by_name_cores_and_driver() -> None:
    device = detect.find("cpu")
    assert (device.spec, device.target, device.opening) == ("cpu", "cpu", "cpu")
    info = device.info
    assert f"{info.cores} core" in info.name
    assert (info.uuid[:4], info.driver[:6]) == ("CPU-", "Linux ")
    assert info.l1_bytes < info.l2_bytes < info.memory_bytes
    assert info == detect.find("cpu").info


@pytest.mark.usefixtures("gpus")
def test_without_a_gpu_the_cpu_is_taken_and_cuda_is_trouble() -> None:
    assert detect.gpus() == []
    assert {device.spec for device in (detect.find(), *detect.find_all(), *detect.find_each("cpu"))} == {"cpu"}
    with pytest.raises(DeviceTrouble, match="device cuda:7 needs an NVIDIA GPU and its driver, found none"):
        detect.find_all("cuda:7")


def test_a_gpu_is_taken_first_and_its_worker_sees_no_other(gpus: Callable[..., None]) -> None:
    gpus(TWO)
    first, second = detect.find(), detect.find("cuda:1")
    assert (first.spec, first.target, first.opening) == ("cuda:0", "cuda", "cuda")
    assert (first.info.architecture, first.info.driver, first.info.runtime) == ("sm_90", "580.65", "CUDA 13.1")
    assert dict(second.environment)["CUDA_VISIBLE_DEVICES"] == second.info.uuid == "GPU-b"
    assert detect.find("cpu").spec == "cpu"
    with pytest.raises(DeviceTrouble, match=r"no device cuda:3; found cuda:0 \(NVIDIA H200\)"):
        detect.find("cuda:3")


def test_cuda_means_every_gpu_where_they_are_of_one_kind(gpus: Callable[..., None]) -> None:
    gpus(TWO)
    assert [device.spec for device in detect.find_all("cuda")] == ["cuda:0", "cuda:1"]
    assert [device.spec for device in detect.find_all("cuda:1")] == ["cuda:1"]
    assert [device.spec for device in detect.find_all()] == ["cuda:0"]
    gpus(TWO, **{"GPU-b": "NVIDIA L4"})
    with pytest.raises(DeviceTrouble, match="are of one kind, found NVIDIA H200, NVIDIA L4; choose one"):
        detect.find_all("cuda")


@pytest.mark.parametrize(("visible", "chosen"), [
    ("1", ["GPU-b"]), ("1,0", ["GPU-b", "GPU-aa"]), ("GPU-b", ["GPU-b"]), ("GPU-a,7,GPU-b", ["GPU-aa"]),
    ("0,-1,1", ["GPU-aa"]), ("", []), ("-1", []), ("nonsense", []),
])  # fmt: skip
def test_visible_devices_are_limited_and_ordered_as_cuda_does(
    gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch, visible: str, chosen: list[str]
) -> None:
    gpus(TWO)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuids() == chosen
    assert [device.spec for device in detect.gpus()] == [f"cuda:{number}" for number in range(len(chosen))]


def test_instances_of_a_board_are_devices(gpus: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus({"GPU-a": ["MIG-1", "MIG-2"], "GPU-b": []})
    assert uuids() == ["MIG-1", "MIG-2", "GPU-b"]
    second = detect.find("cuda:1")
    assert second.info.memory_bytes == 18 << 30
    assert dict(second.environment)["CUDA_VISIBLE_DEVICES"] == "MIG-2"
    for visible, chosen in (("MIG-2", ["MIG-2"]), ("0", ["MIG-1"]), ("GPU-b,MIG-", ["GPU-b", "MIG-1"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert uuids() == chosen


@pytest.mark.parametrize("spec", ["gpu", "cuda:-1", "cuda:0,1"])
def test_what_is_no_device_is_bad_input(spec: str) -> None:
    with pytest.raises(InputError, match="a device is cpu, cuda or cuda:N"):
        detect.find(spec)


@pytest.mark.parametrize(("vector_bytes", "chosen", "best"), [
    (64, "Haswell", "SkylakeX"),
    (32, "Nehalem", "Haswell"),
    (64, "Sapphirerapids", None),
    (16, "Nehalem", None),
])  # fmt: skip
def test_the_blas_core_type_that_suits_the_cpu(vector_bytes: int, chosen: str, best: str | None) -> None:
    info = DeviceInfo("AMD EPYC", "cpu", vector_bytes=vector_bytes)
    device = with_best_blas(DetectedDevice("cpu", info, (("OMP_NUM_THREADS", "4"),)), chosen)
    assert (device and dict(device.environment)) == (
        best and {"OMP_NUM_THREADS": "4", "OPENBLAS_CORETYPE": best}
    )
    assert with_best_blas(DetectedDevice("cuda:0", info), chosen) is None


@pytest.mark.parametrize("name", kinds())
def test_a_kind_says_all_that_the_protocol_names(name: str) -> None:
    kind = kinds()[name]
    assert kind.name == name
    assert set(kind.regimes) <= set(REGIMES)
    assert kind.survey.regime in kind.regimes
    assert kind.survey.least > 0 < kind.survey.ahead
    assert min(*kind.guessed_rates, kind.copied_bytes_per_s, kind.copy_s) > 0
    assert not kind.first or kind_of(kind.first) is kind


@pytest.mark.parametrize("target", languages())
def test_a_language_says_all_that_the_protocol_names(target: str) -> None:
    language = language_of(target)
    assert (language.target, language.kind in kinds()) == (target, True)
    assert language.array_library
    assert language.suffix.startswith(".")
    assert all(form.format("13.1.2", "13", "1", "2") for _, form in language.compiler_packages)


def test_what_has_no_folder_is_refused() -> None:
    with pytest.raises(InputError, match="a device is cpu, cuda or cuda:N, got 'tpu'"):
        kind_of("tpu")
    with pytest.raises(DeclarationError, match=r"a target is one of cpu, cublaslt, cuda, .*got 'hip'"):
        language_of("hip")
    assert (is_spec(""), is_spec("cpu"), is_spec("cuda:1"), is_spec("NVIDIA H200")) == (True, True, True, False)
