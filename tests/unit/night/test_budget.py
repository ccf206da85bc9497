"""The budget that problems share: who gets the next slice, and when a problem stops."""

from __future__ import annotations

import pytest

from tuner.night.budget import SLICES_WITHOUT_GAIN, TRIALS_WITHOUT_GAIN, Budget


def following(budget: Budget) -> str | None:
    """The problem that gets the next slice; None if all have stopped."""
    return next(iter([*budget.waiting, *budget.running]), None)


def test_every_problem_gets_a_slice_and_then_the_one_that_gains() -> None:
    budget = Budget(["a", "b", "c"])
    best = {"a": 1.0, "b": 1.0, "c": 1.0}
    order = []
    while (name := following(budget)) is not None and len(order) < 12:
        order.append(name)
        best[name] *= 0.8 if name == "b" else 0.999
        gain = budget.report(name, best[name], 40 * len(order))
        assert gain is None or gain == pytest.approx(0.2 if name == "b" else 0.001)
    assert order[:3] == ["a", "b", "c"]
    assert order[3:].count("b") >= 6


def test_converged_problems_stop_with_a_reason() -> None:
    budget = Budget(["a", "b"])
    slices = 0
    while (name := following(budget)) is not None:
        slices += 1
        budget.report(name, 1.0, TRIALS_WITHOUT_GAIN * slices, "space covered" if name == "b" else "")
    assert slices == 1 + 1 + SLICES_WITHOUT_GAIN
    assert budget.why_stopped("b") == "space covered"
    assert budget.why_stopped("a").startswith("converged: 3 slices in a row, of ")


def test_few_trials_or_none_that_worked_are_no_convergence() -> None:
    budget = Budget(["slow", "failing"])
    for slices in range(2 * SLICES_WITHOUT_GAIN):
        budget.report("slow", 1.0, 2 * slices)
        budget.report("failing", None, 100 * slices)
    assert budget.why_stopped("slow") == budget.why_stopped("failing") == ""
    # The first time is a gain, from which on it counts.
    assert budget.report("failing", 1.0, 1000) is None
    assert following(budget) == "failing"
    for slices in range(SLICES_WITHOUT_GAIN):
        assert budget.report("failing", 1.0, 1100 + slices) == 0.0
    assert budget.why_stopped("failing")
    assert following(budget) == "slow"
    budget.stop("slow")
    assert following(budget) is None
