"""Events of a run: lines of JSON in a file, lines for people."""

import json
from pathlib import Path

import pytest
from fixtures.fake_device import TOY, rule, write_device

from tuner.cli.main import run

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


def test_a_run_that_ends_in_an_error_says_so_and_is_appended(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = write_device(here / "device.json", free_bytes=10)
    for _ in range(2):
        assert run([*TUNE, device, "--log", "run.jsonl", "--quiet"]) == 2
    events = [json.loads(line) for line in (here / "run.jsonl").read_text().splitlines()]
    assert [each["event"] for each in events].count("begin") == 2
    assert (events[-1]["event"], events[-1]["kind"]) == ("error", "InputError")
    assert run([*TUNE, device, "--log", "run.jsonl/none"]) == 2
    assert "--log takes a file that can be written, got run.jsonl/none" in capsys.readouterr().err
