"""Devices found without loading a GPU library, on machines with and without GPUs; their kinds and languages."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.declare.language import languages
from tuner.devices import detect, machine_load
from tuner.devices.cpu.kind import with_best_blas
from tuner.devices.detect import DetectedDevice, find, is_spec, kind_of, kinds, language_of
from tuner.devices.machine_load import CpuReading, GpuReading, MachineWatch, cpu_load, gpu_load, memory_bytes
from tuner.devices.protocol import REGIMES
from tuner.errors import DeclarationError, DeviceTrouble, InputError
from tuner.results import measurement
from tuner.results.measurement import OTHERS_CORES, OTHERS_PROCESSES, STEAL, TAKEN, complaints
from tuner.workers.process import MEMORY_VARIABLE, Worker

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
    with pytest.raises(DeviceTrouble, match=r"cuda:7 needs an NVIDIA GPU .* found none; use --device cpu"):
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


@pytest.mark.parametrize("spec", ["gpu", "cuda:-1", "cuda:0,1", "tpu"])
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


def test_a_language_without_a_folder_is_refused_and_specs_are_known() -> None:
    with pytest.raises(DeclarationError, match=r"a target is one of cpu, cublaslt, cuda, .*got 'hip'"):
        language_of("hip")
    assert (is_spec(""), is_spec("cpu"), is_spec("cuda:1"), is_spec("NVIDIA H200")) == (True, True, True, False)


# --- who else uses a device ----------------------------------------


OWN = 100


def test_what_others_take_of_the_cores_is_all_but_what_this_study_takes() -> None:
    # A second later: this study took 0.9 s of a core, another process 1 s.
    load = cpu_load(CpuReading(0, 2, 10, 5), CpuReading(1, 2, 11.9, 5.9))
    assert load == {OTHERS_CORES: pytest.approx(1.0), STEAL: 0.0, TAKEN: pytest.approx(0.5)}
    assert complaints(load, cores=2) == ("other processes use 1 of 2 cores",)


@pytest.mark.parametrize(
    ("name", "text"),
    [("cpu.stat", "usage_usec 5\nthrottled_usec 1500000\n"), ("cpu/cpu.stat", "throttled_time 1500000000\n")],
)
def test_steal_quota_and_heat_are_found(cgroups: Path, name: str, text: str) -> None:
    (cgroups / name).write_text(text)
    for core, count in ((0, 2), (1, 1)):
        folder = cgroups / f"cpu{core}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    held = {"quota_s": machine_load.quota_s(), "heat_events": machine_load.heat_events()}
    before, after = CpuReading(0, 2, 0, 0), CpuReading(10, 2, 0, 0, steal_s=2.0, **held)
    load = cpu_load(before, after)
    assert load == {OTHERS_CORES: 0, STEAL: 0.1, TAKEN: 0.1, measurement.QUOTA: 0.15, measurement.HEAT: 3}
    assert complaints(load, 2) == (
        "the hypervisor gives 10% of the cores' time to others",
        "a CPU quota holds this process back 15% of the time", "cores are throttled for heat",
    )  # fmt: skip
    assert cpu_load(after, after) == {}


def test_this_machine_is_read() -> None:
    now = CpuReading.now()
    assert now.cores == len(os.sched_getaffinity(0))
    assert now.own_s > 0
    watch = MachineWatch([find("cpu")])
    assert sum(number * number for number in range(300_000)) > 0
    assert watch.load()[OTHERS_CORES] >= 0


def test_another_process_on_a_gpu_is_found() -> None:
    load = gpu_load(GpuReading(frozenset({7}), 0.93), GpuReading(frozenset({7, 101}), 1.0), [OWN, 101])
    assert load == {OTHERS_PROCESSES: 1, measurement.OTHERS_GPU: 0.93}
    assert complaints(load) == ("1 other process on the GPU", "the GPU is 93% busy without this study")


@pytest.mark.parametrize(("before", "after", "others"), [((), (4712,), 0), ((4711,), (4711, 4712), 1)])
def test_own_workers_are_no_others(before: tuple[int, ...], after: tuple[int, ...], others: int) -> None:
    # NVML tells the pids of the host, of which this process knows none.
    readings = GpuReading(frozenset(before), 0.0), GpuReading(frozenset(after), 1.0)
    assert gpu_load(*readings, [OWN], known=lambda pid: False)[OTHERS_PROCESSES] == others


def test_a_gpu_that_was_busy_with_the_study_before_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [GpuReading(utilization=0.9), GpuReading(utilization=0.0)]
    readings += [GpuReading(frozenset({os.getpid()}), 1.0), GpuReading(frozenset({os.getppid()}))]
    monkeypatch.setattr(GpuReading, "now", lambda uuid: readings.pop(0))
    monkeypatch.setattr(machine_load, "UTILIZATION_S", 0.0)
    watch = MachineWatch([DetectedDevice("cuda:0", DeviceInfo("GPU", "cuda", uuid="GPU-1"))])
    assert watch.complaints() == ()
    watch.restart()
    # From here on the GPU's own utilization is this study's.
    assert watch.load() == {OTHERS_PROCESSES: 1}


# --- Files of Linux -------------------------------------------------------------------------------------------


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine_load, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine_load, "CORES", tmp_path)
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "used"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
)
def test_a_container_has_what_its_group_leaves(cgroups: Path, limit: str, used: str) -> None:
    total = psutil.virtual_memory().total
    assert 0 < memory_bytes()[1] <= memory_bytes()[0] == total
    (cgroups / limit).write_text("1000000\n")
    (cgroups / used).write_text("400000\n")
    assert memory_bytes() == (1_000_000, 600_000)
    (cgroups / used).write_text("1200000\n")
    assert memory_bytes() == (1_000_000, 0)
    (cgroups / limit).write_text("max\n")
    assert memory_bytes()[0] == total


def test_a_worker_takes_its_share_of_memory_at_the_most() -> None:
    share = 1 << 30
    with contextlib.closing(Worker("compile", "cpu", {MEMORY_VARIABLE: str(share)})) as worker:
        worker.ask({"do": "hello"})
        process = psutil.Process(worker.pid)
        assert abs(process.rlimit(psutil.RLIMIT_DATA)[0] - process.memory_info().data - share) < 64 << 20


def package(folder: Path, name: str, microjoules: int) -> Path:
    (folder / name).mkdir()
    (folder / name / "max_energy_range_uj").write_text("1000000000\n")
    counter = folder / name / "energy_uj"
    counter.write_text(f"{microjoules}\n")
    return counter


def test_counters_of_packages_are_summed_and_may_wrap_around(tmp_path: Path) -> None:
    first, second = package(tmp_path, "intel-rapl:0", 5_000_000), package(tmp_path, "intel-rapl:1", 999_000_000)
    package(tmp_path, "intel-rapl:0:0", 1)  # a part of the first package
    counters = machine_load.EnergyCounters(tmp_path)
    assert counters.trouble == ""
    before = counters.read_j()
    first.write_text("7500000\n")
    second.write_text("2000000\n")
    assert counters.between_j(before, counters.read_j()) == pytest.approx(2.5 + 3.0)


def test_counters_that_are_missing_are_said(tmp_path: Path) -> None:
    assert "no energy counters of this CPU" in machine_load.EnergyCounters(tmp_path).trouble
    package(tmp_path, "intel-rapl:0", 1).write_text("")
    assert "chmod a+r" in machine_load.EnergyCounters(tmp_path).trouble
