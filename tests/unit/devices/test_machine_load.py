"""What others do on the devices, by sampled numbers; and that the numbers are there on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.fake_device import BOARD
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.hardware import DeviceInfo
from tuner.devices.cpu import load as cpu_load_of
from tuner.devices.cpu.load import CpuProcess, CpuReading, cpu_load, read_cpu
from tuner.devices.cuda import load as gpu_load_of
from tuner.devices.cuda.load import GpuReading, gpu_load
from tuner.devices.detect import DetectedDevice, find
from tuner.devices.machine_load import MachineWatch, described
from tuner.devices.protocol import Load
from tuner.results.measurement import (
    HEAT,
    OTHERS_CORES,
    OTHERS_GPU,
    OTHERS_PROCESSES,
    QUOTA,
    STEAL,
    TAKEN,
    complaints,
)

OWN = 100


def reading(at_s: float, busy_s: float, *processes: CpuProcess, **more: Any) -> CpuReading:
    return CpuReading(at_s, 2, busy_s, more.pop("steal_s", 0.0), processes=processes, **more)


def process(pid: int, parent: int, cpu_s: float, name: str = "python") -> CpuProcess:
    return CpuProcess(pid, parent, name, cpu_s)


def test_another_process_on_a_core_is_found_and_named() -> None:
    before = reading(0, 10, process(OWN, 1, 3), process(101, OWN, 2), process(7, 1, 50, "render"))
    # A second later: this study took 0.9 s of a core, a child of its worker among that; the other one 0.98 s.
    after = reading(
        1,
        11.9,
        process(OWN, 1, 3.2),
        process(101, OWN, 2.5),
        process(102, 101, 0.2),
        process(7, 1, 50.98, "render"),
    )
    load = cpu_load(before, after, OWN, lambda pid: " of anna")
    assert load.seen == {OTHERS_CORES: pytest.approx(1.0), STEAL: 0.0, TAKEN: pytest.approx(0.5)}
    assert load.who == ("render (7) of anna, 0.98 cores",)
    assert described(load, cores=2) == (
        "other processes use 1 of 2 cores", "busiest: render (7) of anna, 0.98 cores",
    )  # fmt: skip


def test_a_worker_that_ended_is_still_this_studys() -> None:
    before = reading(0, 0, process(OWN, 1, 1.0), process(101, OWN, 5.0))
    after = reading(2, 3, process(OWN, 1, 9.0))  # its parent's seconds hold those of children that ended
    assert cpu_load(before, after, OWN).seen[OTHERS_CORES] == 0
    assert complaints(cpu_load(before, after, OWN).seen, 2) == ()


def test_steal_quota_and_heat_are_found() -> None:
    before = reading(0, 0)
    after = reading(10, 0, steal_s=2.0, quota_s=1.5, heat_events=3)
    seen = cpu_load(before, after, OWN).seen
    assert seen == {OTHERS_CORES: 0, STEAL: 0.1, TAKEN: 0.1, QUOTA: 0.15, HEAT: 3}
    assert complaints(seen, 2) == (
        "the hypervisor gives 10% of the cores' time to others",
        "a CPU quota holds this process back 15% of the time", "cores are throttled for heat",
    )  # fmt: skip
    assert cpu_load(after, after, OWN) == Load()


@given(st.floats(0.01, 1e4), st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 512))
def test_whatever_is_read_the_load_is_a_number_of_cores(
    wall_s: float, start_s: float, busy_s: float, own_s: float, cores: int
) -> None:
    before = CpuReading(0.0, cores, start_s, 0.0, processes=(process(OWN, 1, 0.0),))
    after = CpuReading(wall_s, cores, start_s + busy_s, 0.0, processes=(process(OWN, 1, own_s),))
    load = cpu_load(before, after, OWN)
    assert load.seen[OTHERS_CORES] >= 0
    # An own share that is as large as all that was used leaves nothing for others.
    assert own_s < busy_s or load.seen[OTHERS_CORES] <= 1e-3
    assert all(isinstance(each, float) for each in load.seen.values())


@pytest.mark.parametrize(("cores", "others", "busy"), [(2, 0.2, 0), (2, 0.3, 1), (128, 1.0, 0), (128, 1.5, 1)])
def test_the_services_of_a_large_machine_are_no_load(cores: int, others: float, busy: int) -> None:
    assert len(complaints({OTHERS_CORES: others}, cores)) == busy


def test_another_process_on_a_gpu_is_found() -> None:
    before = GpuReading({7: "train.py (7) of anna"}, 0.93)
    load = gpu_load(before, GpuReading({7: "train.py (7) of anna", 101: "python (101)"}, 1.0), [OWN, 101])
    assert load.seen == {OTHERS_PROCESSES: 1, OTHERS_GPU: 0.93}
    assert described(load) == (
        "1 other process on the GPU", "the GPU is 93% busy without this study", "busiest: train.py (7) of anna",
    )  # fmt: skip


def test_in_a_container_this_studys_own_workers_are_no_others() -> None:
    # NVML tells the pids of the host, of which this process knows none.
    before = GpuReading({4711: ""}, 0.0)
    assert gpu_load(GpuReading({}, 0.0), GpuReading({4712: ""}, 1.0), [OWN]).seen[OTHERS_PROCESSES] == 0
    both = gpu_load(before, GpuReading({4711: "", 4712: ""}, 1.0), [OWN])
    assert both.seen[OTHERS_PROCESSES] == 1
    assert both.who == ("process 4711 of another namespace",)


def test_throttled_clocks_are_told_and_the_power_limit_of_normal_work_is_not() -> None:
    assert complaints({"throttle_reasons": 0x04}) == ()
    assert complaints({"throttle_reasons": 0x04 | 0x20 | 0x40}) == ("clocks are throttled: heat",)
    assert complaints({"throttle_reasons": 0x88}) == ("clocks are throttled: hardware slowdown, power brake",)


def test_this_machine_is_read() -> None:
    read = read_cpu()
    assert read.cores == len(os.sched_getaffinity(0))
    own = {each.pid: each for each in read.processes}[os.getpid()]
    assert own.cpu_s > 0
    watch = MachineWatch([find("cpu")])
    total = sum(number * number for number in range(300_000))
    assert total > 0
    assert watch.load().seen[OTHERS_CORES] >= 0


def test_files_of_the_kernel_are_read(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("usage_usec 5\nthrottled_usec 2500000\n")
    old.write_text("nr_periods 3\nthrottled_time 1500000000\n")
    assert cpu_load_of._quota_s([tmp_path / "none", new]) == 2.5
    assert cpu_load_of._quota_s([old]) == 1.5
    assert cpu_load_of._quota_s([tmp_path / "none"]) == 0
    for core, count in ((0, 2), (1, 3)):
        folder = tmp_path / f"cpu{core}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    assert cpu_load_of._heat_events(tmp_path) == 5


def test_a_gpu_that_was_busy_with_the_study_before_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        GpuReading({}, 0.9),
        GpuReading({}, 0.0),
        GpuReading({OWN: "python"}, 1.0),
        GpuReading({7: "x"}),
    ]
    monkeypatch.setattr(gpu_load_of, "read_gpu", lambda uuid: readings.pop(0))
    monkeypatch.setattr(gpu_load_of, "UTILIZATION_S", 0.0)
    monkeypatch.setattr(gpu_load_of.os, "getpid", lambda: OWN)
    monkeypatch.setattr(gpu_load_of.psutil, "Process", lambda: SimpleNamespace(children=lambda recursive: []))
    watch = MachineWatch([DetectedDevice("cuda:0", DeviceInfo("GPU", "cuda", uuid="GPU-1"))])
    assert watch.told() == ()
    watch.restart()
    # From here on the GPU's own utilization is this study's.
    assert watch.load().seen == {OTHERS_PROCESSES: 1}


def test_what_a_fake_device_sees_stands_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "fake.json"
    path.write_text(json.dumps({"info": BOARD, "machine": {OTHERS_PROCESSES: 2}}))
    assert MachineWatch([find(f"fake:{path}")]).told() == ("2 other processes on the GPU",)
