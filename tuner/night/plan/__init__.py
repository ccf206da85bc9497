"""Plans of nightly runs, read from TOML as a flat list of problems. docs/plans.md describes them."""

from tuner.night.plan.items import DEFAULT_SECONDS, Plan, PlanItem, clock_time, seconds_until
from tuner.night.plan.reading import MAX_PROBLEMS, document_of, listed_problems, plan_of, read_plan

__all__ = [
    "DEFAULT_SECONDS", "MAX_PROBLEMS", "Plan", "PlanItem", "clock_time", "document_of", "listed_problems",
    "plan_of", "read_plan", "seconds_until",
]  # fmt: skip
