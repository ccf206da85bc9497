"""What a study needs before its first trial, and what it tries first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BOARD, TOY, copy_toy, study, write_device

from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation, Problem
from tuner.errors import DeclarationError, NothingFound
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store
from tuner.study import progress as module
from tuner.study.progress import Progress, ProgressView, TimeBudget
from tuner.study.session import check_fits
from tuner.study.starting import NEIGHBOURS, declared_starts, near_champions

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


# --- what a study tries first


def record(n: int = 1000, config: dict[str, Any] | None = None, **more: Any) -> Record:
    given = {
        "device": DEVICE, "regime": "cold", "role": Role.FINAL, "kernel": "blocks", "config": config or BEST,
        "source_hash": BLOCKS.source_hash, "measurement": Measurement(Outcome.MEASURED, samples_s=(1e-3,)),
        "work": {"flops": 1.0, "bytes": 1.0}, "versions": {"compiler": "fake 1", "driver": "1.0"},
    } | more  # fmt: skip
    return Record(replace(KEY, shape=(("n", n),)), **given)


def test_a_study_starts_from_champions_of_the_nearest_problems_and_defaults(tmp_path: Path) -> None:
    near = {"BLOCK": 64, "ITEMS": 1, "ORDER": "blocked"}
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as store:
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


def test_time_in_which_a_device_did_not_run_is_no_part_of_the_budget() -> None:
    budget = TimeBudget(10.0)
    left_s = budget.search_left_s
    assert left_s is not None
    budget.give_back(60.0)
    assert budget.search_left_s is not None
    assert budget.search_left_s > left_s


def test_elsewhere_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(PROBLEM, False, 20) as view:
        view(Progress("searching", trials=3, left_s=30.0, elapsed_s=10.0))
    assert capsys.readouterr().err == "searching | 3 of 20 trials | 0:30 left\n"
    with ProgressView(PROBLEM, True, 20) as view:
        view(Progress("searching", trials=3))
    assert capsys.readouterr().err == ""
