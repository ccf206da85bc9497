"""Studies on a real GPU: a short one that works, and one in which every config but one goes wrong."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import TOY, database

from tuner.cli.main import run
from tuner.declare import catalogue
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.cuda.nvrtc import NvrtcCompiler
from tuner.devices.detect import find
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, Role
from tuner.store import Store
from tuner.study.requests import StudyRequest
from tuner.study.study import run_study
from tuner.workers import compile_pool, device_worker
from tuner.workers.bench import CompiledConfig
from tuner.workers.device_worker import DeviceWorker

FAULTY = TOY.with_name("faulty.py")
#: Config -> how it ends on any GPU, and what its reason says. Garbage in every tenth run may miss those
#: that are compared, until the finals.
ENDS = {
    "none": ("MEASURED", ""),
    "illegal": ("LAUNCH_FAILED", "illegal"),
    "misaligned": ("LAUNCH_FAILED", "misaligned"),
    "trap": ("LAUNCH_FAILED", "rror"),
    "assert": ("LAUNCH_FAILED", "device-side assert"),
    "heap": ("LAUNCH_FAILED", "illegal"),
    "workspace": ("LAUNCH_FAILED", "cannot be loaded: out of memory"),
    "stack": ("LAUNCH_FAILED", "cannot be"),
    "endless": ("TIMED_OUT", "in time"),
    "wrong": ("WRONG_RESULT", "times what rounding explains"),
    "unwritten": ("WRONG_RESULT", "left elements unwritten"),
    "below": ("WRONG_RESULT", "wrote outside of y"),
    "above": ("WRONG_RESULT", "wrote outside of y"),
    "input": ("WRONG_RESULT", "wrote into the input x"),
    "remembers": ("WRONG_RESULT", "in a timed run: returned a stale result"),
    "returns": ("WRONG_RESULT", "in a timed run: "),
    "fmax": ("WRONG_RESULT", "in a timed run: "),
    "is_there": ("WRONG_RESULT", "in a timed run: "),
    "beyond": ("WRONG_RESULT", "wrote outside of y"),
    "zeroes": ("WRONG_RESULT", "wrote into the input x"),
    "tenth": ("MEASURED or PRUNED or WRONG_RESULT", ""),
    "shared": ("LAUNCH_FAILED", "cannot be"),
    "threads": ("LAUNCH_FAILED", "cannot be"),
    "syntax": ("COMPILE_FAILED", "error"),
    "explode": ("COMPILE_FAILED", "out of memory"),
}


def test_every_real_fault_is_one_outcome_and_the_right_config_is_crowned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(device_worker, "LIMIT_FLOOR_S", 30.0)
    monkeypatch.setattr(device_worker, "LIMIT_FACTOR", 1.0)
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", 512 << 20)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty").problem({"n": 100_000})
    asked = StudyRequest(
        problem, declared.of("faulty"), (find("cuda:0"),), seconds=None, seed=1, sampler="random"
    )
    with Store.open(database(tmp_path)) as store:
        result = run_study(asked, store)
        trials = store.records(problem=ProblemKey("faulty", (("n", 100_000),), "float32", ""), role=Role.TRIAL)
    assert dict(result.champion.record.config) == {"FAULT": "none"}
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found) == len(ENDS)
    for fault, (outcome, reason) in ENDS.items():
        with subtests.test(fault):
            measurement = found[fault]
            is_known = measurement.outcome.value in outcome.split(" or ")
            assert (is_known, reason in measurement.reason) == (True, True), measurement.reason


def test_the_worker_is_replaced_after_each_error_and_the_next_config_is_measured() -> None:
    declared = catalogue.from_file(FAULTY)
    problem, kernel = declared.operation("faulty").problem({"n": 100_000}), declared.of("faulty")[0]
    worker = DeviceWorker(find("cuda:0"))
    try:
        worker.open()
        worker.prepare({**problem.to_json(), "origin": str(FAULTY)}, "cold")
        for number, fault in enumerate(("assert", "illegal", "heap", "workspace", "stack"), start=1):
            assert _measured(worker, kernel, problem, fault).outcome is Outcome.LAUNCH_FAILED
            assert worker.restarts == number
            assert _measured(worker, kernel, problem, "none").outcome is Outcome.MEASURED
            assert worker.restarts == number
    finally:
        worker.close()


def _measured(worker: DeviceWorker, kernel: Kernel, problem: Problem, fault: str) -> Measurement:
    rendered = render(kernel, problem, Config({"FAULT": fault}))
    binary = NvrtcCompiler().compile(rendered, worker.info.architecture, problem)
    worker.begin(CompiledConfig(rendered, binary.code, binary.report), None)
    while not worker.arrived():
        time.sleep(0.01)
    return worker.finish()


def test_each_finalist_and_no_library_has_an_occupancy(here: Path) -> None:
    arguments = ["gemm", "512", "384", "640", "--device", "cuda:0", "--trials", "12", "--quiet"]
    assert run(["tune", *arguments]) == 0
    with Store.open(f"sqlite:///{here}/studies.db", read_only=True) as store:
        # What was stopped by the compiler's report never ran.
        records = [each for each in store.records() if each.measurement.samples_s]
    for record in records:
        known = record.measurement.circumstances.get("occupancy")
        assert (known is None) == (record.role is Role.BASELINE)
        assert known is None or 0 < known <= 1
    # A final tells the same of a config as its trial did.
    told = {
        role: {
            (each.kernel, str(each.config)): each.measurement.circumstances["occupancy"]
            for each in records
            if each.role is role
        }
        for role in (Role.TRIAL, Role.FINAL)
    }
    assert told[Role.FINAL]
    assert told[Role.FINAL].items() <= told[Role.TRIAL].items()


@pytest.mark.parametrize("regime", ["cold", "hot-graph"])
def test_gemm_is_tuned_and_looked_up(here: Path, capsys: pytest.CaptureFixture[str], regime: str) -> None:
    arguments = ["gemm", "512", "384", "640", "--device", "cuda:0", "--regime", regime, "--json"]
    assert run(["tune", *arguments, "--trials", "12", "--quiet"]) == 0
    tuned: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run(["best", *arguments]) == 0
    assert isinstance(tuned.pop("dropped"), dict)
    assert json.loads(capsys.readouterr().out) == tuned
    assert tuned["device"]["kind"] == "cuda"
    assert tuned["regime"] == regime
    assert tuned["baseline"]["name"] == "cuBLAS"
    assert tuned["baseline"]["version"]
    assert 0 < tuned["trials"]["total"] <= 12
    assert tuned["trials"]["failed"] == 0
    assert 0 < tuned["time_s"] < 0.1
    assert 0 < tuned["error"]["rms_rel"] < 1e-5
    assert tuned["speedup"] > 0.05


def test_a_users_kernel_is_tuned_on_the_gpu(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cuda:0", "--trials", "20", "--quiet", "--json"]
    arguments = ["tune", str(TOY), "--set", "n=1000000", *options]
    assert run(arguments) == 0
    tuned = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tuned["kernel"] == "blocks"
    assert tuned["trials"]["failed"] == 0
    # The same study again has nothing left to measure.
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trials"] == tuned["trials"]


def test_a_problem_larger_than_the_gpu_is_bad_input(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "gemm", "1000000", "1000000", "1", "--device", "cuda:0", "--quiet"]) == 2
    assert "must fit into free memory" in capsys.readouterr().err
