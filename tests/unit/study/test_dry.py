"""``--dry-run``: what would be done, without a device and without a trace."""

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import LEGAL, TOY, rule, study, write_device

from tuner.cli.main import run


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
