"""Studies on this CPU, in real worker processes: real faults, and the library with the best core type."""

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import database, request, stored

from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.results.record import Role
from tuner.store import Store
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study
from tuner.workers import compile_pool, device_worker
from tuner.workers.process import MEMORY_VARIABLE

FAULTY = Path(__file__).parents[2] / "fixtures" / "faulty_cpu.py"
#: What workers may take here: enough for what is sound, and soon used up.
SCANT_BYTES = 256 << 20
ENDS = {
    "none": ("MEASURED", ""),
    "segfault": ("CRASHED", "SIGSEGV"),
    "endless": ("TIMED_OUT", "in time"),
    "hog": ("LAUNCH_FAILED", "out of memory: Unable to allocate 8.00 MiB"),
    "explode": ("COMPILE_FAILED", "out of memory"),
    "wrong": ("WRONG_RESULT", "times what rounding explains"),
}


def test_real_faults_are_outcomes_and_the_sound_config_is_crowned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_worker, "FIRST_LIMIT_FLOOR_S", 6.0)
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", SCANT_BYTES)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty_cpu").problem({"n": 100_000})
    scant = replace(find("cpu"), environment=((MEMORY_VARIABLE, str(SCANT_BYTES)),))
    asked = StudyRequest(
        problem, declared.of("faulty_cpu"), (scant,), "hot", seconds=None, seed=1, sampler="random",
        finals_s=0.5,
    )  # fmt: skip
    with Store.open(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        result = run_study(asked, store)
        trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found)
    for fault, (outcome, reason) in ENDS.items():
        assert (found[fault].outcome.value, reason in found[fault].reason) == (outcome, True), found[fault]
    assert dict(result.champion.record.config) == {"FAULT": "none"}


#: Width of the CPU's vectors -> an older core type, and the one that suits it.
CORE_TYPES = {64: ("Haswell", "SkylakeX"), 32: ("Nehalem", "Haswell")}


def test_a_blas_that_takes_the_cpu_for_an_older_one_is_measured_as_what_it_is_too(tmp_path: Path) -> None:
    cpu = find("cpu")
    if cpu.info.vector_bytes not in CORE_TYPES:
        pytest.skip("OpenBLAS has one core type for this CPU")
    older, best = CORE_TYPES[cpu.info.vector_bytes]
    mistaken = replace(cpu, environment=(("OPENBLAS_CORETYPE", older),))
    asked = request("cpu", found=(mistaken,), regime="hot", trials=1, finals_s=0.1)
    with Store.open(database(tmp_path)) as store:
        result = run_study(asked, store)
    first, own, last = stored(tmp_path, Role.BASELINE)
    # Before the search with either, then with its own choice in the finals.
    assert [each.versions["blas_core_type"] for each in (first, own, last)] == [older, best, older]
    assert result.progress.baseline_s == min(first.measurement.time_s or 9, own.measurement.time_s or 9)
    assert {each.versions["blas_threads"] for each in (first, own, last)} == {
        str(int(each.measurement.circumstances["threads"])) for each in (first, own, last)
    }
    assert result.champion.baseline == last
