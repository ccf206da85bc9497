"""What others do on the devices; memory and energy of a CPU. By numbers of other machines and of this one."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest

from tuner.declare.hardware import DeviceInfo
from tuner.devices import machine_load
from tuner.devices.detect import DetectedDevice, find
from tuner.devices.machine_load import CpuReading, GpuReading, MachineWatch, cpu_load, gpu_load, memory_bytes
from tuner.results import measurement
from tuner.results.measurement import OTHERS_CORES, OTHERS_PROCESSES, STEAL, TAKEN, complaints
from tuner.workers.process import MEMORY_VARIABLE, Worker

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
