"""Progress of a study, in a line: what is done, and what is left."""

from __future__ import annotations

import pytest
from fixtures.fake_device import TOY

from tuner.declare.catalogue import from_file
from tuner.study import progress as module
from tuner.study.progress import BAR, Progress, ProgressView, TimeBudget

PROBLEM = from_file(TOY).operation("toy").problem({"n": 1000})


def shown(monkeypatch: pytest.MonkeyPatch, now: Progress, trials: int | None) -> str:
    lines: list[str] = []
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    monkeypatch.setattr(module, "notebook_line", lambda: lines.append)
    with ProgressView(PROBLEM, False, trials) as view:
        view(now)
    return lines[-1]


@pytest.mark.parametrize(
    ("left_s", "trials", "done", "ending"),
    [
        (30.0, None, 0.25, "10 trials | {bar} 0:30 left"),
        (30.0, 20, 0.5, "10 of 20 trials | {bar} 0:30 left"),
        (None, 20, 0.5, "10 of 20 trials | {bar}"),
        (0.0, 1000, 1.0, "10 of 1000 trials | {bar} 0:00 left"),
        (None, None, 0.0, "10 trials"),
    ],
)
def test_a_bar_tells_what_is_left_of_what_ends_first(
    left_s: float | None, trials: int | None, done: float, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Progress("searching", trials=10, left_s=left_s, elapsed_s=10.0)
    full = round(BAR * done)
    bar = "━" * full + "╌" * (BAR - full)
    assert shown(monkeypatch, now, trials) == "searching | " + ending.format(bar=bar)


def test_elsewhere_lines_are_printed_without_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(PROBLEM, False, 20) as view:
        view(Progress("searching", trials=3, left_s=30.0, elapsed_s=10.0))
    assert capsys.readouterr().err == "searching | 3 of 20 trials | 0:30 left\n"
    with ProgressView(PROBLEM, True, 20) as view:
        view(Progress("searching", trials=3))
    assert capsys.readouterr().err == ""


def test_time_in_which_a_device_did_not_run_is_no_part_of_the_budget() -> None:
    budget = TimeBudget(10.0)
    left_s = budget.search_left_s
    assert left_s is not None
    budget.give_back(60.0)
    assert budget.search_left_s is not None
    assert budget.search_left_s > left_s
