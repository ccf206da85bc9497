"""The budget that problems share: who gets the next slice, and when a problem stops."""

from __future__ import annotations

from tuner.night.budget import SLICES_WITHOUT_GAIN, Budget


def following(budget: Budget) -> str | None:
    """The problem that gets the next slice; None if all have stopped."""
    return next(iter([*budget.waiting, *budget.running]), None)


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
