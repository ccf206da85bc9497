"""Real faults of CPU kernels, in real worker processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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


def test_each_real_fault_is_one_outcome_and_the_sound_config_is_crowned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_worker, "LIMIT_FLOOR_S", 5.0)
    monkeypatch.setattr(device_worker, "LIMIT_FACTOR", 1.0)
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", SCANT_BYTES)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty_cpu").problem({"n": 100_000})
    scant = replace(find("cpu"), environment=((MEMORY_VARIABLE, str(SCANT_BYTES)),))
    request = StudyRequest(
        problem, declared.of("faulty_cpu"), (scant,), seconds=None, seed=1, sampler="random", finals_s=0.5
    )
    with Store.open(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        result = run_study(request, store)
        trials = [record for record in store.records() if record.role is Role.TRIAL]
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found)
    for fault, (outcome, reason) in ENDS.items():
        assert (found[fault].outcome.value, reason in found[fault].reason) == (outcome, True), found[fault]
    assert result.champion is not None
    assert dict(result.champion.record.config) == {"FAULT": "none"}
