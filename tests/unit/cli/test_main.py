"""The command line, called in this process: what is answered."""

import json
import os
import re
import subprocess
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
    code, out, _ = told("--help")
    assert code == 0
    for name, command in commands().items():
        assert name in out
        assert command.help in " ".join(out.split())
        assert told(name, "--help")[0] == 0


def test_python_m_tuner_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tuner, version {tuner.__version__}\n"


def test_a_package_that_is_missing_is_a_sentence(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(at: str) -> None:
        raise ModuleNotFoundError("No module named 'distributed.core'", name="distributed.core")

    monkeypatch.setattr(sys.modules["tuner.cli.main"], "load", absent)
    message = "this needs the package distributed.core, which is not installed; `scripts/tuner` of the checkout"
    assert_refused(told("devices"), 3, message)
