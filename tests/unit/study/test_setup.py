"""What a study needs before its first trial, and what it tries first."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.fake_device import BEST, BEST_S, BOARD, LEGAL, TOY, copy_toy, rule, study, write_device
from fixtures.own_workers import own_workers

from tuner.cli.main import run
from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation, Problem
from tuner.devices.detect import kind_of
from tuner.errors import DeclarationError, NothingFound
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store
from tuner.study import progress as module
from tuner.study.progress import Progress, ProgressView
from tuner.study.session import check_fits
from tuner.study.starting import NEIGHBOURS, declared_starts, near_champions
from tuner.workers.device_worker import DeviceWorker

CATALOGUE = from_file(TOY)
TOYS = CATALOGUE.operation("toy")
BLOCKS, _ = CATALOGUE.of("toy")
DEVICE = DeviceInfo.from_json(BOARD)
KEY = ProblemKey.of(TOYS.problem({"n": 1000}))


def toy(n: int = 1000, operation: Operation = TOYS) -> Problem:
    return operation.problem({"n": n})


def test_seconds_bound_the_opening_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_toy(tmp_path)
    slow = 'object.__setattr__(OPERATION, "reference", lambda *_: __import__("time").sleep(600))'
    (tmp_path / "toy.py").write_text(f"{TOY.read_text()}{slow}\n")
    monkeypatch.setattr("tuner.study.study.LEAST_OPENING_S", 0.1)
    with pytest.raises(NothingFound, match=r"these take more than the .* s .*; give it more seconds"):
        study(tmp_path, write_device(tmp_path / "device.json"), file=tmp_path / "toy.py", seconds=1.0)


def test_on_a_host_nothing_compiles_or_starts_while_the_library_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline, seen = DeviceWorker.baseline, list[set[str]]()

    def timed(worker: DeviceWorker, *how: Any) -> Measurement | None:
        compilers = [psutil.Process(pid) for pid, role in own_workers().items() if role == "compile"]
        until_s = time.monotonic() + 30.0
        while (states := {one.status() for one in compilers}) != {"stopped"} and time.monotonic() < until_s:
            time.sleep(0.01)
        seen.append(states)
        return baseline(worker, *how)

    monkeypatch.setattr(DeviceWorker, "baseline", timed)
    monkeypatch.setattr(type(kind_of("cuda")), "is_host", True)
    assert study(tmp_path, write_device(tmp_path / "device.json", baseline_s=BEST_S), trials=1).champion
    assert seen == [{"stopped"}]


# --- what a study tries first


def record(n: int = 1000, config: dict[str, Any] | None = None, **more: Any) -> Record:
    given = {
        "device": DEVICE, "regime": "cold", "role": Role.FINAL, "kernel": "blocks", "config": config or BEST,
        "source_hash": BLOCKS.source_hash, "measurement": Measurement(Outcome.MEASURED, samples_s=(1e-3,)),
        "work": {"flops": 1.0, "bytes": 1.0}, "versions": {"compiler": "fake 1", "driver": "1.0"},
    } | more  # fmt: skip
    return Record(replace(KEY, shape=(("n", n),)), **given)


def test_a_study_starts_from_champions_of_the_nearest_problems_and_defaults(store: Store) -> None:
    near = {"BLOCK": 64, "ITEMS": 1, "ORDER": "blocked"}
    for n in (10, 900, 1200, 5000, 100_000, 10**6, 10**7):
        config = near if n == 900 else BEST | {"ITEMS": 2}
        store.crown(Champion(record(n, config), None, 0.0, "first", {}))
    store.crown(Champion(record(1000, kernel="gone"), None, 0.0, "first", {}))
    starts = [*near_champions(store, [BLOCKS], KEY, DEVICE), *declared_starts([BLOCKS])]
    assert starts[0] == ("blocks", near)
    assert starts[NEIGHBOURS:] == [("blocks", each) for each in BLOCKS.first_configs()]
    assert {kernel for kernel, _ in starts} == {"blocks"}


@pytest.mark.parametrize("what", ["tensors", "terms"])
def test_a_declaration_that_fails_is_told(what: str) -> None:
    failing: dict[str, Any] = {what: lambda problem: {}["nothing"]}
    with pytest.raises(DeclarationError, match=r"operation 'toy' must hold .* fail with KeyError: 'nothing'"):
        check_fits(toy(operation=replace(TOYS, **failing)), 1 << 60, DEVICE)


# --- Progress of a study, in a line: what is done, and what is left

PROBLEM = from_file(TOY).operation("toy").problem({"n": 1000})


def test_a_notebook_redraws_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr(module, "notebook_line", lambda: lines.append)
    now = Progress(
        "searching", trials=10, outcomes={"MEASURED": 8, "TIMED_OUT": 2}, best_s=1e-3, best="blocks X=1"
    )
    now.baseline_s = 2e-3
    with ProgressView(PROBLEM, False) as view:
        view(now)
        view(Progress("finals"))
    assert lines[0].startswith("searching | 10 trials | best ")
    assert lines[0].endswith(" | 200.0% of the library | blocks X=1 | 2 timed out")
    assert lines[1].startswith("finals: the best are checked once more")


def test_elsewhere_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(PROBLEM, False, 20) as view:
        view(Progress("searching", trials=3, left_s=30.0, elapsed_s=10.0))
    assert capsys.readouterr().err == "searching | 3 of 20 trials | 0:30 left\n"
    with ProgressView(PROBLEM, True, 20) as view:
        view(Progress("searching", trials=3))
    assert capsys.readouterr().err == ""


# --- what would be done ----------------------------------------


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in an empty folder, and returns its JSON."""

    def called(*arguments: str) -> Any:
        assert run([*arguments, "--dry-run", "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return called


def test_a_study_tells_its_spaces_and_what_is_done(told: Any, here: Path) -> None:
    device = write_device(here / "device.json")
    before = sorted(here.iterdir())
    found = told("tune", str(TOY), "1000", "--device", device, "--seconds", "30")
    (space,) = found["spaces"]
    assert (space["kernel"], space["combinations"], space["legal"], space["tried"]) == ("blocks", 60, LEGAL, 0)
    assert space["rejected"] == [{"rule": "a block takes 8192 numbers at the most", "combinations": 2}]
    assert (found["seconds"], found["champion"], found["device"]) == (30, None, "Fake board")
    assert sorted(here.iterdir()) == before
    elsewhere = told("tune", "gemm", "64", "64", "64", "--device", "NVIDIA H200", "--kernel", "tiled")
    assert (elsewhere["device"], elsewhere["spaces"][0]["legal"] > 0) == ("NVIDIA H200", True)
    study(here, device, trials=10)
    found = told("tune", str(TOY), "1000", "--device", device)
    assert found["spaces"][0]["tried"] == 10
    assert found["champion"]["kernel"] == "blocks"


PLAN = """
[defaults]
seconds = 20
[[problems]]
file = "{file}"
shapes = [[1000], [2000]]
[[surveys]]
operation = "transpose"
seconds = 60
"""


def test_a_night_tells_its_problems_and_its_time(told: Any, here: Path) -> None:
    device = write_device(here / "device.json")
    (here / "plan.toml").write_text(PLAN.format(file=TOY))
    study(here, device, trials=10)
    found = told("nightly", "plan.toml", "--device", device)
    assert [(each["problem"], each["state"]) for each in found["problems"]] == [
        ("toy 1000 float32 plain", "done before"), ("toy 2000 float32 plain", "to tune"),
    ]  # fmt: skip
    assert (found["asked_s"], found["given_s"]) == (80, None)
    assert found["counts"] == {"done before": 1, "to tune": 1}
    again = told("nightly", "plan.toml", "--device", device, "--again")
    assert again["counts"] == {"to tune": 2}


def test_a_survey_tells_its_configs(told: Any, here: Path) -> None:
    found = told("survey", "transpose", "--device", "cpu", "--seconds", "50", "--configs", "16")
    assert found["configs"] == 16
    assert (found["own_problems"], found["drawn"], found["timings_before"]) == (0, True, 0)
    assert list(here.iterdir()) == []


# --- Events of a run: lines of JSON in a file, lines for people

TUNE = ("tune", str(TOY), "9", "--trials", "30", "--seed", "1", "--sampler", "random", "--device")


def test_a_log_has_a_line_for_what_happened(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = write_device(here / "device.json", rules=[rule({"BLOCK": 64}, fault="wrong_result")])
    assert run([*TUNE, device, "--log", "logs/run.jsonl", "-v", "-q"]) == 0
    events = [json.loads(line) for line in (here / "logs" / "run.jsonl").read_text().splitlines()]
    names = [each["event"] for each in events]
    assert (names[0], names[-1]) == ("begin", "end")
    stages = [each["stage"] for each in events if each["event"] == "stage"]
    assert stages == ["opening", "searching", "finals", "done"]
    best = [each["time_s"] for each in events if each["event"] == "best"]
    assert best == sorted(best, reverse=True)
    (failed,) = [each for each in events if each["event"] == "outcome"]
    assert failed["outcome"] == "WRONG_RESULT"
    assert events[-1]["champion"]["kernel"] == "blocks"
    assert all(each["time"].endswith("+00:00") for each in events)
    err = capsys.readouterr().err
    assert "best: time_s=" in err
    assert "outcome: outcome=WRONG_RESULT" in err
    assert "searching | " not in err


def test_a_run_that_fails_says_so_and_is_appended(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = write_device(here / "device.json", free_bytes=10)
    for _ in range(2):
        assert run([*TUNE, device, "--log", "run.jsonl", "--quiet"]) == 2
    events = [json.loads(line) for line in (here / "run.jsonl").read_text().splitlines()]
    assert [each["event"] for each in events].count("begin") == 2
    assert (events[-1]["event"], events[-1]["kind"]) == ("error", "InputError")
    assert run([*TUNE, device, "--log", "run.jsonl/none"]) == 2
    assert "--log takes a file that can be written, got run.jsonl/none" in capsys.readouterr().err
