"""Studies on a real GPU: a short one that works, and one in which every config but one goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import TOY, database

from tuner import catalogue, execution
from tuner.cli.main import run
from tuner.devices.detect import find
from tuner.progress import Request
from tuner.record import ProblemKey, Role
from tuner.store import Store
from tuner.study import Study

FAULTY = TOY.with_name("faulty.py")
#: Config -> how it ends on any GPU, and what its reason says.
ENDS = {
    "none": ("MEASURED", ""),
    "illegal": ("LAUNCH_FAILED", "illegal"),
    "misaligned": ("LAUNCH_FAILED", "misaligned"),
    "trap": ("LAUNCH_FAILED", "rror"),
    "endless": ("TIMED_OUT", "did not answer in time"),
    "wrong": ("WRONG_RESULT", "times what rounding explains"),
    "unwritten": ("WRONG_RESULT", "left elements unwritten"),
    "below": ("WRONG_RESULT", "wrote outside of y"),
    "above": ("WRONG_RESULT", "wrote outside of y"),
    "shared": ("LAUNCH_FAILED", "cannot be"),
    "threads": ("LAUNCH_FAILED", "cannot be"),
    "syntax": ("COMPILE_FAILED", "error"),
}


def test_every_real_fault_is_one_outcome_and_the_right_config_is_crowned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(execution, "LIMIT_FLOOR_S", 15.0)
    monkeypatch.setattr(execution, "LIMIT_FACTOR", 1.0)
    declared = catalogue.from_file(FAULTY)
    problem = declared.operation("faulty").problem({"n": 100_000})
    asked = Request(problem, declared.of("faulty"), (find("cuda:0"),), seconds=None, seed=1, sampler="random")
    with Store.open(database(tmp_path)) as store:
        result = Study(asked, store).run()
        trials = store.records(problem=ProblemKey("faulty", (("n", 100_000),), "float32", ""), role=Role.TRIAL)
    assert result.champion is not None
    assert dict(result.champion.record.config) == {"FAULT": "none"}
    found = {record.config["FAULT"]: record.measurement for record in trials}
    assert len(trials) == len(found) == len(ENDS)
    for fault, (outcome, reason) in ENDS.items():
        with subtests.test(fault):
            assert (found[fault].outcome.value, reason in found[fault].reason) == (outcome, True), found[
                fault
            ].reason


@pytest.mark.parametrize("regime", ["cold", "hot-graph"])
def test_gemm_is_tuned_and_looked_up(here: Path, capsys: pytest.CaptureFixture[str], regime: str) -> None:
    arguments = ["gemm", "512", "384", "640", "--device", "cuda:0", "--regime", regime, "--json"]
    assert run(["tune", *arguments, "--trials", "12", "--quiet"]) == 0
    tuned: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run(["best", *arguments]) == 0
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
    arguments = [
        "tune",
        str(TOY),
        "--set",
        "n=1000000",
        "--device",
        "cuda:0",
        "--trials",
        "20",
        "--quiet",
        "--json",
    ]
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
