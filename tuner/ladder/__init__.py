"""The ladder: every kernel of an operation, step by step, with what each step buys."""

from tuner.ladder.climb import Climb, Request
from tuner.ladder.plan import ladder_of
from tuner.ladder.reading import read_ladder_plan
from tuner.results.rungs import Ladder, Library, Limits, Rung, SweepPoint, slower_steps
from tuner.results.steps import LadderPlan, Published, Step, Sweep

__all__ = [
    "Climb", "Ladder", "LadderPlan", "Library", "Limits", "Published", "Request", "Rung", "Step", "Sweep",
    "SweepPoint", "ladder_of", "read_ladder_plan", "slower_steps",
]  # fmt: skip
