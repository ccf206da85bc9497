"""Two sides are compared problem by problem."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner.cli.main import run
from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError, NothingFound
from tuner.report.comparing import read_side
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import ProblemKey, Record, Role
from tuner.store import Store

OLD, NEW = DeviceInfo("Old board", "cuda", "OLD-1"), DeviceInfo("New board", "cuda", "NEW-1")


def record(n: int, time_s: float, device: DeviceInfo = OLD, role: Role = Role.FINAL, **more: Any) -> Record:
    """A record of the toy with small noise, and nothing of the measurement of a baseline."""
    samples = tuple(time_s * (1 + 0.001 * (at % 3 - 1)) for at in range(30))
    made = Record(
        ProblemKey("toy", (("n", n),), "float32", ""), device, "cold", role, "blocks", {"BLOCK": n}, "abc",
        Measurement(Outcome.MEASURED, samples_s=samples), {"flops": 1.0, "bytes": 1.0},
        {"driver": "1.0" if device is OLD else "2.0", "tuner": "3.1"}, f"study {device.name}", device.uuid,
        measured_at="2026-11-20T10:00:00.000000+00:00",
    )  # fmt: skip
    return replace(made, **more)


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder with records of two boards."""
    with Store.open("sqlite:///studies.db") as store:
        store.add(
            [
                record(1, 1e-3), record(2, 1e-3), record(3, 1e-3), record(4, 1e-3),
                record(1, 0.9e-3, NEW), record(2, 2e-3, NEW), record(3, 1.001e-3, NEW), record(5, 1e-3, NEW),
                # Not of the latest finals, and a trial: neither speaks for a board.
                record(1, 0.1e-3, session="before", measured_at="2026-11-19T10:00:00.000000+00:00"),
                record(1, 0.1e-3, role=Role.TRIAL),
                record(1, 4e-3, role=Role.BASELINE), record(1, 2e-3, NEW, Role.BASELINE),
            ]
        )  # fmt: skip
    return here


def test_what_changed_most_comes_first(folder: Path) -> None:
    found = tuner.compare("device:Old board", "New board")
    assert [(row["problem"], row["verdict"]) for row in found.problems] == [
        ("toy 2 float32", "slower"), ("toy 1 float32", "faster"), ("toy 3 float32", "same"),
    ]  # fmt: skip
    assert [row["ratio"] for row in found.problems] == pytest.approx([0.5, 1 / 0.9, 1 / 1.001])
    assert [row["library_ratio"] for row in found.problems] == [None, pytest.approx(2), None]
    assert (found.only_one, found.only_other) == (["toy 4 float32, cold"], ["toy 5 float32, cold"])
    assert found.counts() == {"faster": 1, "same": 1, "slower": 1, "ambiguous": 0}
    assert found.mean == pytest.approx((0.5 / 0.9 / 1.001) ** (1 / 3))
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in found.problems)


@pytest.mark.parametrize(("text", "side"), [
    ("driver:2.0", ("driver", "2.0")), ("2.0", ("driver", "2.0")), ("3.1", ("version", "3.1")),
    ("study Old board", ("study", "study Old board")), ("NEW-1", ("uuid", "NEW-1")),
    ("2026-11-20", ("date", "2026-11-20")), ("night:2026-11-20", ("date", "2026-11-20")),
    ("studies.db", ("db", "sqlite:///studies.db")),
])  # fmt: skip
def test_sides_are_read_as_records_know_them(folder: Path, text: str, side: tuple[str, str]) -> None:
    assert read_side(text, lambda: [record(1, 1.0), record(1, 1.0, NEW)]) == side


def test_days_databases_and_what_they_lack(folder: Path) -> None:
    found = tuner.compare("night:2026-11-19", "date:2026-11-20..2026-11-21")
    assert [row["problem"] for row in found.problems] == ["toy 1 float32"]
    same = tuner.compare("studies.db", "sqlite:///studies.db")
    assert {(row["ratio"], row["timed_in_turn"]) for row in same.problems} == {(1.0, True)}
    with pytest.raises(NothingFound, match=r"night|date 2025-01-01 has 0 problems"):
        tuner.compare("2025-01-01", "New board")
    with pytest.raises(InputError, match=r"a side is a device, .* got 'Newer board'"):
        tuner.compare("Newer board", "New board")


def test_the_command_line_prints_it_in_each_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*more: str) -> str:
        assert run(["compare", "driver:1.0", "driver:2.0", *more]) == 0
        return capsys.readouterr().out

    shown = printed()
    assert "geometric mean" in shown
    assert shown.index("toy 2") < shown.index("toy 1")
    rows = list(csv.DictReader(io.StringIO(printed("--csv"))))
    assert [row["verdict"] for row in rows] == ["slower", "faster", "same"]
    assert json.loads(printed("--json"))["counts"]["slower"] == 1
    assert printed("--markdown").splitlines()[2].startswith("| toy 2 float32, cold | 1 ms | 2 ms | 0.500 |")
