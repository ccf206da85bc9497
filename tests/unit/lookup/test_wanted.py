"""`tuner wanted`, and the most wanted problems in a night."""

import json
import os
from pathlib import Path

import pytest
from fixtures.callable_records import crowned
from fixtures.commands import Told, caller
from fixtures.fake_device import BEST, BEST_S, copy_toy, stored, write_device

from tuner import lookup
from tuner.declare import catalogue
from tuner.devices.cpu.kind import cpu_info
from tuner.lookup import demand as module
from tuner.lookup.demand import most_wanted
from tuner.night import night as nightly
from tuner.results.record import ProblemKey, Wanted
from tuner.store import Store, watched

HERE = cpu_info().name


def gemm(m: int, calls: int = 1, saves_s: float = 1.0, device: str = HERE, kind: str = "cpu") -> Wanted:
    problem = ProblemKey("gemm", (("m", m), ("n", 8), ("k", 8)), "float32", "nn")
    return Wanted(problem, kind, device, "predicted", calls, saves_s)


@pytest.fixture
def told(own_records: None, capsys: pytest.CaptureFixture[str]) -> Told:
    return caller(capsys)


def add(*rows: Wanted) -> None:
    with Store.open(os.environ["TUNER_DB"]) as store:
        watched.add_demand(store, rows)


def listed(told: Told, *arguments: str) -> list[int]:
    code, out, error = told("wanted", "--json", *arguments)
    assert code == 0, error
    return [each["shape"]["m"] for each in json.loads(out)["wanted"]]


def test_it_lists_what_saves_most_and_is_not_tuned(told: Told) -> None:
    add(gemm(1, 10, 1.0), gemm(2, 1, 3.0), gemm(3, 5, 2.0), gemm(4, 7, 9.0, "NVIDIA H200", "cuda"))
    crowned("gemm", {"m": 3, "n": 8, "k": 8}, layout="nn")
    assert listed(told) == [4, 2, 1]
    assert listed(told, "--device", "cpu", "--limit", "1") == [2]
    assert listed(told, "--device", "NVIDIA H200") == [4]
    assert listed(told, "--operation", "gemv") == []
    code, out, _ = told("wanted")
    assert code == 0
    assert "gemm 4 x 8 x 8 float32 nn" in " ".join(out.split())
    assert "NVIDIA H200" in out


def test_a_published_result_counts_as_tuned(told: Told) -> None:
    square = ProblemKey("gemm", (("m", 4096), ("n", 4096), ("k", 4096)), "float32", "nn")
    add(Wanted(square, "cuda", "NVIDIA H200", "predicted", 1, 1.0))
    assert listed(told) == []


def test_it_forgets_what_it_is_told_to(told: Told) -> None:
    add(gemm(1), gemm(2, device="Other"))
    assert told("wanted", "--clear", "--device", "Other")[0] == 0
    assert listed(told) == [1]
    assert json.loads(told("wanted", "--clear", "--json")[1]) == {"cleared": 1}
    assert told("wanted")[0] == 0


# --- nights -------------------------------------------------------------------------------------------------


def toy(n: int, calls: int = 1, saves_s: float = 1.0) -> Wanted:
    problem = ProblemKey("toy", (("n", n),), "float32", "plain")
    return Wanted(problem, "cuda", "Fake board", "default", calls, saves_s)


@pytest.fixture
def built_in_toy(here: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The toy is built in; a fake device."""
    copy_toy(here)
    declared = catalogue.from_file(here / "toy.py")
    for each in (lookup, module):
        monkeypatch.setattr(each, "builtin_now", lambda: declared)
    monkeypatch.setattr(nightly, "builtin", lambda: declared)
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{here}/studies.db")
    return write_device(here / "device.json", baseline_s=2 * BEST_S)


PLAN = """
wanted = 2
[defaults]
sampler = "random"
trials = 70
"""


def test_a_night_tunes_the_most_wanted_and_names_them(built_in_toy: str, told: Told, here: Path) -> None:
    os.environ["TUNER_DB"] = f"sqlite:///{here}/studies.db"
    add(toy(1000, 9, 5.0), toy(33, 2, 4.0), toy(7, 1, 3.0))
    (here / "plan.toml").write_text(PLAN)
    code, out, error = told("nightly", "plan.toml", "--device", built_in_toy, "--quiet", "--json")
    assert code == 0, error
    problems = json.loads(out)["problems"]
    assert [(each["shape"]["n"], each["state"], each["wanted"]) for each in problems] == [
        (1000, "tuned", {"calls": 9, "saves_s": 5.0}), (33, "tuned", {"calls": 2, "saves_s": 4.0}),
    ]  # fmt: skip
    assert dict(stored(here)[0].config).keys() == BEST.keys()
    with Store.open(os.environ["TUNER_DB"], read_only=True) as store:
        assert [each.problem.dims["n"] for each in most_wanted(store)] == [7]
    _, out, _ = told("nightly", "plan.toml", "--device", built_in_toy, "--quiet")
    assert "wanted (1 call" in out
