"""Places that cannot be written, and input that cannot be meant: one clear message, never a traceback."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.commands import Told, caller
from fixtures.fake_device import BEST_S, TOY, copy_toy, stored, write_device
from fixtures.records import champion, record, square

from tuner.declare import folders
from tuner.declare.catalogue import from_file
from tuner.declare.kernel import Rendered
from tuner.devices import detect, settings
from tuner.devices.cpu import numba
from tuner.errors import EnvironmentTrouble
from tuner.results.record import Role
from tuner.store import Store, published
from tuner.study import loop

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command in an empty folder with a device: exit code, stdout, stderr."""
    write_device(here / "device.json", baseline_s=2 * BEST_S)
    return caller(capsys)


def full(*_: Any, **__: Any) -> Any:
    raise FULL


# ---- the folder of the caches


def no_folder(here: Path, patch: pytest.MonkeyPatch) -> None:
    (here / "file").write_text("")
    patch.setenv("TUNER_CACHE", str(here / "file" / "cache"))


def full_disk(here: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settings, "tempfile", SimpleNamespace(TemporaryFile=full))


@pytest.mark.parametrize("trouble", [no_folder, full_disk])
def test_a_cache_that_cannot_be_written_is_told_before_any_work(
    told: Told, here: Path, monkeypatch: pytest.MonkeyPatch, trouble: Callable[..., None]
) -> None:
    trouble(here, monkeypatch)
    code, out, err = told("tune", str(TOY), "--set", "n=100", "--device", "fake:device.json", "--trials", "2")
    assert (code, out) == (3, "")
    assert "compiled kernels are kept in" in err
    assert "TUNER_CACHE to a folder that can be" in err
    assert not stored(here, n=100)


def test_doctor_tells_it_and_read_only_disks(told: Told, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_folder(here, monkeypatch)
    disk = os.statvfs(here)
    read_only = os.statvfs_result((*disk[:8], disk.f_flag | os.ST_RDONLY, disk.f_namemax))
    monkeypatch.setattr(os, "statvfs", lambda folder: read_only)
    monkeypatch.setattr("tuner.cli.inspect.find", lambda spec: detect.find("fake:device.json"))
    code, out, _ = told("doctor", "--json")
    assert code == 3
    found = {each["what"]: each for each in json.loads(out)}
    assert found["cache"]["state"] == "bad"
    assert "which cannot be written (Not a directory)" in found["cache"]["said"]
    assert found["database"]["state"] == "note"
    assert "its file system is read-only, so that nothing can be stored" in found["database"]["said"]


SOURCE = "from numba import njit\n\n@njit(cache=True)\ndef toy(x, y, n):\n    y[0] = x[0]\n"


@pytest.mark.parametrize(
    "writer", ["tuner.devices.cpu.numba.write_whole", "numba.core.caching.IndexDataCacheFile.save"]
)
def test_a_full_cache_is_no_kernels_fault(writer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As COMPILE_FAILED the config would never be tried again."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    monkeypatch.setattr(writer, full)
    problem = from_file(TOY).operation("toy").problem({"n": 8})
    with pytest.raises(EnvironmentTrouble, match="free some room there, or set TUNER_CACHE"):
        numba.ready(Rendered(SOURCE, "toy", "cpu"), problem)


# ---- outputs


@pytest.fixture
def filled(here: Path) -> str:
    """A database with a champion."""
    with Store.open("sqlite:///studies.db") as store:
        of = record(square(64), role=Role.FINAL, config={"BM": 64})
        store.crown(champion(of, baseline=record(square(64), 2e-3, kernel="cuBLAS", role=Role.BASELINE)))
    return "sqlite:///studies.db"


@pytest.mark.parametrize("command", [
    ["records", "export"],
    ["distil", "gemm", "--device", "NVIDIA H200", "--no-measure", "-o"],
    ["lookup-quality", "gemm", "--device", "NVIDIA H200", "-o"],
    ["records", "publish", "-o"],
])  # fmt: skip
def test_an_output_that_is_not_written_is_told(told: Told, here: Path, filled: str, command: list[str]) -> None:
    (here / "folder").mkdir()
    (here / "file").write_text("precious")
    takes_folder = command[:2] == ["records", "publish"]
    for place in ("file/below", "file" if takes_folder else "folder"):
        code, out, err = told(*command, place)
        assert (code, out) == (2, ""), err
        assert "that can be written, got" in err
    assert (here / "file").read_text() == "precious"
    assert not list((here / "folder").iterdir())


def test_installed_packages_are_not_published_into(
    told: Told, here: Path, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = here / "site-packages" / "tuner"
    (installed / "configs" / "tuned").mkdir(parents=True)
    monkeypatch.setattr(folders, "_PACKAGE", installed)
    assert published.tuned_folder() == installed / "configs" / "tuned"
    code, out, err = told("records", "publish")
    assert (code, out) == (2, "")
    assert "name one with -o DIR" in err
    assert not list((installed / "configs" / "tuned").iterdir())


def test_any_file_that_the_system_refuses_is_told(told: Told) -> None:
    code, _, err = told("records", "export", "a" * 300)
    assert code == 3
    assert "File name too long; check the path" in err


# ---- what cannot be meant


def test_a_run_without_trials_tells_its_time(told: Told, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "GRACE_S", 0.0)
    write_device(here / "device.json", baseline_s=2 * BEST_S)
    code, out, err = told(
        "tune", str(TOY), "--set", "n=100", "--device", "fake:device.json", "--seconds", "0.01"
    )
    assert (code, out) == (1, "")
    assert "was finished (time is up): " in err
    assert "Give it more seconds" in err


def test_a_function_of_another_name_is_told_once_and_before_the_first_trial(told: Told, here: Path) -> None:
    copy_toy(here)
    (here / "toy.cu").write_text((here / "toy.cu").read_text().replace("toy(", "toi("))
    code, out, err = told(
        "tune", "./toy.py", "--set", "n=100", "--device", "fake:device.json", "--trials", "20"
    )
    assert (code, out) == (2, "")
    assert err.count("needs a function 'toy'") == 1
    assert "toy.cu has none; rename it, or declare entry=" in err
    assert not (here / "studies.db").exists()
