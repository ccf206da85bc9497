"""The check of an output against its float64 reference: how far it is off, and whether that is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.measurement import Error

#: Elements compared at a time on a CPU, so that what comes in between stays in the caches.
AT_A_TIME = 1 << 15


@dataclass(frozen=True)
class Expected:
    """What an output must be.

    Attributes:
        values: float64 array of its shape.
        scale: rms that its rounding errors are measured by.
        tolerance: See `tuner.problem.Problem.tolerance`.
    """

    values: Any
    scale: float
    tolerance: float

    def error_of(self, xp: Any, output: Any) -> Error:
        """How far an output is off.

        An element is right when |out - ref| <= tolerance * (scale + |ref|).

        Args:
            xp: The array module.
            output: Of the same shape.
        """
        ours, theirs = output.reshape(-1), self.values.reshape(-1)
        at_a_time = AT_A_TIME if xp.__name__ == "numpy" else max(ours.size, 1)
        largest = ratio = total = squares = 0.0
        for start in range(0, ours.size, at_a_time):
            values = theirs[start : start + at_a_time]
            difference = xp.abs(ours[start : start + at_a_time] - values)
            # Integers are exact: any difference is wrong, and none is right.
            allowed = xp.maximum(self.tolerance * (self.scale + xp.abs(values)), 1e-300)
            largest = _larger(largest, float(difference.max()))
            ratio = _larger(ratio, float((difference / allowed).max()))
            total += float(difference.sum())
            squares += float((difference * difference).sum())
        unit, count = self.scale or 1.0, max(ours.size, 1)
        rms_rel, mean_rel = math.sqrt(squares / count) / unit, total / count / unit
        return Error(largest / unit, rms_rel, bound_ratio=ratio, mean_rel=mean_rel)


def _larger(one: float, other: float) -> float:
    """The larger; NaN where one of them is."""
    return one if one > other or math.isnan(one) else other


def worst_of(errors: list[Error]) -> Error:
    """The error that is most over its bound; a NaN counts as the worst."""
    worst = Error(0.0, 0.0, 0.0, 0.0)
    for error in errors:
        # Written so that a NaN is not passed over.
        if not error.bound_ratio <= worst.bound_ratio:
            worst = error
    return worst


def complaint(worst: Error) -> str:
    """What is wrong with an output; empty when nothing is."""
    if math.isnan(worst.bound_ratio):
        return "left elements unwritten, or computed NaN"
    if worst.bound_ratio > 1:
        return (
            f"largest error {worst.max_rel:.3g} of the result's rms, {worst.bound_ratio:.3g} times what "
            "rounding explains"
        )
    return ""


def rms(values: Any) -> float:
    """Root of the mean square."""
    return math.sqrt(float((values * values).mean()))
