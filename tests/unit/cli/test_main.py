"""The command line: what it prints where, and what it refuses."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from fixtures.commands import Told, assert_refused, device, told
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, stored, write_device

import tuner
from tuner.cli import inspect
from tuner.cli.main import commands
from tuner.declare import catalogue
from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock

__all__ = ["device", "told"]


def test_tune_and_best_agree(told: Told, device: str, here: Path) -> None:
    arguments = (str(TOY), "--set", "n=1_000", "--device", device, "--json")
    code, out, err = told("tune", *arguments, "--sampler", "random", "--trials", "100")
    assert code == 0
    assert err.count("\n") >= 3
    tuned = json.loads(out.splitlines()[-1])
    code, out, err = told("best", *arguments)
    assert (code, err) == (0, "")
    best = json.loads(out)
    assert tuned.pop("dropped") == {}
    assert best == tuned
    assert (best["config"], best["trials"]["total"]) == (BEST, LEGAL)
    assert best["time_s"] == pytest.approx(BEST_S, rel=0.01)
    assert best["speedup"] == pytest.approx(2.0, rel=0.01)
    named = told("best", str(TOY), "1000", "--device", "fake board", "--json")
    assert json.loads(named[1]) == best
    assert len(stored(here)) == LEGAL


def test_a_busy_machine_and_a_provisional_champion_are_told(told: Told, here: Path) -> None:
    busy = {"others_processes": 1}
    device = write_device(here / "busy.json", baseline_s=BEST_S, noise=0.5, machine=busy)
    code, out, err = told("tune", str(TOY), "9", "--trials", "2", "--device", device)
    assert code == 0
    assert "the machine is busy, times may be wrong: 1 other process on the GPU" in err
    assert err.count("the machine is busy") == 1
    for shown in (out, told("best", str(TOY), "9", "--device", device)[1]):
        assert re.search(r"provisional .*its times have a noise of \d+%, more than 10%", shown)
        assert "was busy: 1 other process on the GPU" in shown
    answer = json.loads(told("best", str(TOY), "9", "--device", device, "--json")[1])
    assert answer["provisional"] is True
    assert answer["busy"] == ["1 other process on the GPU"]


def test_doctor_names_users(told: Told, here: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"name": "Busy board", "uuid": "FAKE-2"}
    busy = find(write_device(here / "busy.json", info=others, machine={"others_processes": 2}))
    monkeypatch.setattr(inspect, "gpus", lambda: [busy])
    monkeypatch.setattr(inspect, "find", lambda spec: find(device))
    with device_lock(find(device).info, "tune something"):
        checks = {each["what"]: each for each in json.loads(told("doctor", "--json")[1])}
    load = checks[f"{busy.spec} load"]
    assert (load["state"], load["said"]) == ("note", "2 other processes on the GPU")
    assert f"process {os.getpid()} of user " in checks[f"{device} load"]["said"]


def test_people_get_tables(told: Told, device: str, here: Path) -> None:
    failing = write_device(here / "some.json", rules=[{"where": {"BLOCK": 64}, "fault": "wrong_result"}])
    arguments = ("tune", str(TOY), "9", "--quiet", "--sampler", "random", "--trials", "100", "--device")
    code, out, err = told(*arguments, device)
    assert (code, err.count("\n")) == (0, 1)
    assert "Champion of toy 9 float32 plain" in out
    assert "space covered; 0:0" in err
    code, out, _ = told("best", str(TOY), "9", "--device", device)
    assert code == 0
    assert "BLOCK=256 ITEMS=4 ORDER=striped" in out
    # About a millisecond, with noise on either side of where the unit changes.
    assert re.search(r"CuPy, \S+ [mu]s: faster: [12]\.\d+ x \(", out)
    assert "WRONG_RESULT" in told(*arguments, failing, "--db", "sqlite:///other.db")[1]


def test_devices_and_kernels_are_listed(told: Told) -> None:
    assert json.loads(told("devices", "--json")[1])[-1]["kind"] == "cpu"
    assert told("devices")[0] == 0
    listed = json.loads(told("kernels", "--json")[1])
    assert [each["name"] for each in listed] == [kernel.name for kernel in catalogue.builtin().kernels]
    assert list(listed[0]) == ["operation", "target", "name", "idea", "parameters", "constraints"]
    assert "register_tiled" in told("kernels", "gemm")[1]


def test_help_names_every_command(told: Told) -> None:
    assert told("--version") == (0, f"tuner, version {tuner.__version__}\n", "")
    code, out, _ = told("--help")
    assert code == 0
    for name, command in commands().items():
        assert name in out
        assert command.help in " ".join(out.split())
        assert told(name, "--help")[0] == 0


def test_a_package_that_is_missing_is_a_sentence(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(at: str) -> None:
        raise ModuleNotFoundError("No module named 'distributed.core'", name="distributed.core")

    monkeypatch.setattr(sys.modules["tuner.cli.main"], "load", absent)
    message = "this needs the package distributed.core, which is not installed; `scripts/tuner` of the checkout"
    assert_refused(told("devices"), 3, message)


# --- what is refused ----------------------------------------


BAD = {
    "zero": (["gemm", "0", "1", "1"], "a dim is a whole number of 1 or more, got m=0"),
    "negative": (["gemm", "-5", "1", "1"], "a dim is a whole number of 1 or more, got -5"),
    "word": (["gemm", "1", "1", "big"], "a dim is a whole number of 1 or more, got k='big'"),
    "regime": (["gemm", "1", "1", "1", "--regime", "warm"], "'warm' is not one of 'cold', 'hot'"),
    "set": ([str(TOY), "--set", "n"], "--set takes NAME=VALUE, got 'n'; give e.g. --set n=1000"),
    "twice": (["gemm", "6", "6", "6", "--set", "m=5"], "a dim has one size, got 6 and 5 for m"),
}


@pytest.mark.parametrize("command", ["tune", "best"])
@pytest.mark.parametrize("case", BAD)
def test_bad_problems_are_refused_by_whatever_is_asked(told: Told, command: str, case: str) -> None:
    arguments, message = BAD[case]
    assert_refused(told(command, *arguments), 2, message)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("options", "code", "message"), [
    (["--device", "fake:gone.json"], 3, "cannot read 'gone.json'"),
    (["--device", "cpu", "--regime", "hot-graph"], 2, "a CPU is timed cold or hot, got regime 'hot-graph'"),
    (["--device", "cpu", "--seconds", "0"], 2, "--seconds is a number above 0, got 0"),
    (["--device", "cpu", "--trials", "0"], 2, "--trials is 1 or more, got 0"),
    (["--device", "cpu", "--db", "sqlite:////nowhere/my.db"], 3, "cannot be opened"),
])  # fmt: skip
def test_bad_options_are_refused(told: Told, options: list[str], code: int, message: str) -> None:
    assert_refused(told("tune", "gemm", "8", "8", "8", *options), code, message)


def test_a_problem_that_does_not_fit_is_refused_and_nothing_is_stored(told: Told, device: str) -> None:
    problem = (str(TOY), "2000000000", "--device", device)
    assert_refused(
        told("tune", *problem), 2, "must fit into free memory (16 GiB on Fake board)", "smaller dims"
    )
    assert json.loads(told("best", *problem, "--json")[1])["match"] == "default"


def test_an_operation_without_a_kernel_for_the_device_says_which_it_has(told: Told, here: Path) -> None:
    text = TOY.read_text()
    only = text[: text.index('    Kernel(\n        operation="toy", name="chunks"')] + ")\n"
    (here / "toy.py").write_text(only)
    answer = told("tune", "toy.py", "--set", "n=5", "--device", "cpu")
    assert_refused(answer, 2, "toy has no kernel for cpu; it has some for cuda")


@pytest.mark.parametrize(("old", "new", "code", "message"), [
    ('Path("toy.cu")', 'Path("gone.cu")', 2, "source of kernel 'blocks' cannot be read"),
    ('xp.square(arrays["x"].astype(xp.float64)) + 1', "{}", 2, "of operation 'toy' gives each output"),
    ("c.BLOCK * c.ITEMS <= 8192", "c.BLOK <= 8192", 2, "a constraint must work on arrays as on scalars"),
    ("Launch(grid", "Lunch(grid", 1, "invalid: cannot be rendered: NameError: name 'Lunch' is not defined"),
])  # fmt: skip
def test_a_files_mistake_is_told_where(
    told: Told, here: Path, device: str, old: str, new: str, code: int, message: str
) -> None:
    text = TOY.read_text()
    assert old in text
    (here / "toy.py").write_text(text.replace(old, new))
    (here / "toy.cu").write_text(TOY.with_suffix(".cu").read_text())
    (here / "toy.numba.py").write_text(TOY.with_suffix(".numba.py").read_text())
    answer = told("tune", "toy.py", "--set", "n=500", "--device", device, "--trials", "2")
    assert_refused(answer, code, message)


def test_what_is_not_tuned_is_answered_from_what_is_near(told: Told, here: Path, device: str) -> None:
    def matched(*arguments: str) -> str:
        code, out, err = told("best", str(TOY), *arguments, "--json")
        assert (code, err) == (0, "")
        return str(json.loads(out)["match"])

    assert matched("5", "--device", device) == "default"
    assert matched("5", "--device", device, "--db", "sqlite:///x.db") == "default"
    assert not (here / "x.db").exists()
    told("tune", str(TOY), "5", "--device", device, "--trials", "1", "--quiet")
    assert matched("6", "--device", device) == "predicted"
    other = write_device(here / "other.json", info={"name": "Other board", "uuid": "OTHER-1"})
    assert matched("5", "--device", other) == "similar-device"
    assert matched("5", "--device", device, "--regime", "hot") == "exact"  # of another regime, and told so
    assert_refused(told("best", str(TOY), "5", "--device", "Fake bored"), 2, "did you mean Fake board")
    assert "no survey was made" in told("best", str(TOY), "6", "--device", device)[1]
    refused = told("export", str(TOY), "6", "--device", device, "-o", "out")
    assert_refused(refused, 1, "toy 6 float32 plain on Fake board (cold) is not tuned", "tuner tune")


def test_an_unknown_command_or_operation_is_told(told: Told) -> None:
    assert_refused(told("tone"), 2, "No such command 'tone'")
    assert_refused(told("kernels", "gem"), 2, "unknown operation 'gem'; did you mean")


@pytest.mark.parametrize("group", ["records", "champions"])
def test_a_group_without_a_command_shows_its_help(group: str, told: Told) -> None:
    code, out, err = told(group)
    assert (code, out) == (2, "")
    assert err.startswith(f"Usage: tuner {group} ")
