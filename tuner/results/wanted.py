"""Demand: problems that were asked and had no exact answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tuner.results.record import ProblemKey


@dataclass(frozen=True)
class Wanted:
    """How often a problem was asked on a device without an exact answer.

    Attributes:
        problem: The problem.
        kind: Of the device: ``cuda`` or ``cpu``.
        device: Its name.
        match: What the last answer rested on: ``predicted``, ``similar-device``, ``default`` ...; empty without
            one.
        calls: How often.
        saves_s: Seconds that tuning is predicted to save of these calls.
        first_at: When it was first asked, ISO 8601 in UTC; empty for counts that were not written yet.
        last_at: When it was last asked.
    """

    problem: ProblemKey
    kind: str
    device: str
    match: str
    calls: int
    saves_s: float
    first_at: str = ""
    last_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields, the problem's among them."""
        problem = self.problem
        return {
            "operation": problem.operation, "shape": problem.dims, "dtype": problem.dtype,
            "layout": problem.layout, "precision": problem.precision, **problem.told_epilogue,
            "device": {"name": self.device, "kind": self.kind}, "match": self.match,
            **self.counts(), "first_at": self.first_at, "last_at": self.last_at,
        }  # fmt: skip

    def counts(self) -> dict[str, Any]:
        """Calls and seconds alone."""
        return {"calls": self.calls, "saves_s": self.saves_s}
