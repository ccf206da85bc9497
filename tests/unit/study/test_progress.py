"""Progress of a study, in a line: what is done, and what is left."""

import pytest
from fixtures.fake_device import TOY

from tuner.declare.catalogue import from_file
from tuner.study import progress as module
from tuner.study.progress import Progress, ProgressView, TimeBudget

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
