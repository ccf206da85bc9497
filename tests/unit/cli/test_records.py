"""``tuner records``: what each command answers, and what bad input is told."""

import functools
import io
import json
import re
import sys
from pathlib import Path

import pytest
from fixtures.commands import Told, caller
from fixtures.fake_device import TOY
from fixtures.records import CPU, champion, record, square

from tuner.cli.main import run
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.store import Store

URL = "sqlite:///studies.db"


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs `tuner records` in an empty folder: exit code, stdout, stderr."""
    return functools.partial(caller(capsys), "records")


@pytest.fixture
def stored(here: Path) -> Path:
    """A database with three records, of which one failed, and a champion."""
    with Store.open(URL) as store:
        store.add(record(square(64), device=CPU, measurement=Measurement(Outcome.TIMED_OUT, "too long")))
        final = record(square(64), role=Role.FINAL)
        store.crown(
            champion(final, baseline=record(square(64), role=Role.BASELINE, kernel="cuBLAS", config={}))
        )
    return here / "studies.db"


def test_records_go_from_one_database_to_another(told: Told, stored: Path, here: Path) -> None:
    code, out, err = told("export", "night.jsonl.zst")
    assert (code, out) == (0, "")
    assert "3 records and 1 champions written to night.jsonl.zst" in err
    code, out, _ = told("import", "night.jsonl.zst", "night.jsonl.zst", "--db", "sqlite:///other.db")
    assert code == 0
    assert out.splitlines() == [
        "night.jsonl.zst: 3 records and 1 champions are new, 0 were known",
        "night.jsonl.zst: 0 records and 0 champions are new, 4 were known",
    ]
    code, out, _ = told("import", "night.jsonl.zst", "--json")
    assert json.loads(out) == {
        "file": "night.jsonl.zst", "records": 0, "champions": 0, "known": 4, "broken": [], "broken_lines": 0,
        "retractions": 0, "surveys": 0, "timings": 0,
    }  # fmt: skip


@pytest.mark.parametrize("source", ["studies.db", URL])
def test_another_database_is_imported_as_it_is(told: Told, stored: Path, source: str) -> None:
    code, out, _ = told("import", source, "--db", "sqlite:///other.db")
    assert (code, out) == (0, f"{source}: 3 records and 1 champions are new, 0 were known\n")
    assert told("export", "a.jsonl", "--quiet")[0] == 0
    assert told("export", "b.jsonl", "--db", "sqlite:///other.db")[0] == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()


def test_records_go_through_pipes(told: Told, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = told("export", "-", "--device", CPU.name, "--quiet")
    assert code == 0
    assert len(out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    code, out, err = told("import", "-", "--db", "sqlite:///other.db")
    assert (code, out, err) == (0, "-: 1 records and 0 champions are new, 0 were known\n", "")


def test_a_broken_file_is_told_by_line(told: Told, stored: Path, here: Path) -> None:
    told("export", "a.jsonl")
    text = Path("a.jsonl").read_text().splitlines()
    Path("a.jsonl").write_text("\n".join([*text[:2], "nonsense", *text[2:]]))
    code, out, err = told("import", "a.jsonl", "--db", "sqlite:///other.db")
    assert (code, out) == (2, "")
    assert "line 3 of a.jsonl is not: it is not JSON" in err
    code, out, err = told("import", "a.jsonl", "--skip-broken", "--db", "sqlite:///other.db")
    assert (code, out) == (0, "a.jsonl: 3 records and 1 champions are new, 0 were known\n")
    assert err.startswith("tuner: a.jsonl, line 3: it is not JSON")
    Path("a.jsonl").write_text("nonsense\n" * 30)
    assert "a.jsonl: 30 broken lines in all" in told("import", "a.jsonl", "--skip-broken")[2]


def test_a_kernel_tuner_cache_is_imported_for_a_users_kernel(told: Told, here: Path) -> None:
    cache = {
        "device_name": "NVIDIA A100", "kernel_name": "scale", "problem_size": 1000,
        "tune_params_keys": ["BLOCK", "ITEMS", "ORDER"], "tune_params": {},
        "cache": {"a": {"BLOCK": 64, "ITEMS": 2, "ORDER": "striped", "time": 0.5, "times": [0.4, 0.5, 0.6]}},
    }  # fmt: skip
    Path("cache.json").write_text(json.dumps(cache))
    code, out, _ = told(
        "import", "cache.json", "--kernel-file", str(TOY), "--set", "n=1000", "--regime", "cold"
    )
    assert (code, out) == (0, "cache.json: 1 records and 0 champions are new, 0 were known\n")
    with Store.open(URL, read_only=True) as store:
        (found,) = store.records()
    assert (found.problem.operation, found.problem.dims, found.origin) == ("toy", {"n": 1000}, str(TOY))
    assert found.work["flops"] > 0
    assert run(["best", str(TOY), "1000", "--device", "NVIDIA A100", "--json"]) == 0
    code, out, _ = told("import", "cache.json", "--device", "another board")
    assert (code, out) == (0, "cache.json: 1 records and 0 champions are new, 0 were known\n")


def test_champions_are_published(told: Told, stored: Path) -> None:
    code, out, err = told("publish", "-o", "tuned")
    assert (code, out, err) == (0, "tuned/nvidia-h200/gemm.json\n", "")
    assert json.loads(Path("tuned/nvidia-h200/gemm.json").read_text())["operation"] == "gemm"
    code, _, err = told("publish", "-o", "tuned", "--operation", "gemv")
    assert code == 1
    assert "no champion of a built-in kernel in sqlite:///studies.db fits" in err


def test_a_damaged_database_is_rescued(told: Told, stored: Path) -> None:
    assert json.loads(told("check", "--json")[1])["sound"] is True
    code, out, err = told("check")
    assert (code, err) == (0, "")
    assert re.search(r"records\W+3\b", out)
    data = bytearray(stored.read_bytes())
    del data[len(data) // 2 :]
    stored.write_bytes(data)
    code, out, err = told("check")
    assert code == 3
    assert "NO" in out
    assert "run `tuner records check --rescue NEW.db` to save what is readable" in err
    code, _, err = told("check", "--rescue", "new.db")
    assert code == 3
    assert "rescued into new.db: 0 from the tables, 4 more from the second copy" in err
    assert told("check", "--db", "sqlite:///new.db")[0] == 0
    assert told("check", "--rescue", "new.db")[0] == 2


def test_records_are_listed_and_shown(told: Told, stored: Path) -> None:
    listed = json.loads(told("list", "--limit", "2", "--json")[1])
    assert len(listed) == 2
    code, out, _ = told("list", "--operation", "gemm", "--shape", "64x64x64", "--regime", "cold")
    assert (code, "TIMED_OUT" in out) == (0, True)
    assert json.loads(told("show", listed[0]["id"], "--json")[1]) == listed[0]
    code, out, _ = told("show", listed[0]["id"])
    assert (code, "NVIDIA H200" in out, "sm_count" in out) == (0, True, True)
    assert told("show", "00000000-0000-4000-8000-000000000000")[0] == 1
    assert "a record is named by its id, a UUID such as" in told("show", "x")[2]
    assert "a shape is whole numbers such as 1024,1024,512, got 'wide'" in told("list", "--shape", "wide")[2]


def test_what_there_is_is_counted(told: Told, stored: Path) -> None:
    tallies = {each["device"]: each for each in json.loads(told("stats", "--json")[1])}
    assert tallies[CPU.name]["failed"] == 1
    assert tallies["NVIDIA H200"]["champions"] == 1
    assert "NVIDIA H200" in told("stats")[1]


@pytest.mark.parametrize("command", [["export", "-"], ["list"], ["stats"], ["publish"], ["check"]])
def test_no_database(told: Told, command: list[str]) -> None:
    code, out, err = told(*command)
    assert (code, out) == (1, "")
    assert "there is no database at studies.db" in err
    assert list(Path().iterdir()) == []


def test_an_export_names_its_file_as_other_commands_do(told: Told, stored: Path, here: Path) -> None:
    assert told("export", "-o", "all.jsonl", "--quiet") == (0, "", "")
    assert told("export", "--quiet")[1] == (here / "all.jsonl").read_text()
    assert (
        "exported to one file, got all.jsonl and -o other.jsonl"
        in told("export", "all.jsonl", "-o", "other.jsonl")[2]
    )
