"""Checks an output against its float64 reference: how large its error is, and whether it is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.devices.comparing import differences
from tuner.results.measurement import Error


@dataclass(frozen=True)
class Expected:
    """The expected output.

    Attributes:
        values: float64 array of its shape.
        scale: rms relative to which its rounding errors are measured.
        tolerance: See `tuner.declare.problem.Problem.tolerance`.
    """

    values: Any
    scale: float
    tolerance: float

    def error_of(self, xp: Any, output: Any) -> Error:
        """Measures the error of an output.

        An element is correct if |out - ref| <= tolerance * (scale + |ref|).

        Args:
            xp: The array module.
            output: The output, of the same shape.
        """
        found = differences(xp, output.reshape(-1), self.values.reshape(-1), self.tolerance, self.scale)
        unit, count = self.scale or 1.0, self.values.size
        root = math.sqrt(found.squares / count)
        return Error(found.largest / unit, root / unit, found.ratio, mean_rel=found.total / count / unit)


def worst_of(errors: list[Error]) -> Error:
    """Returns the error that exceeds its bound most; NaN counts as the worst."""
    worst = Error(0.0, 0.0, 0.0, 0.0)
    for error in errors:
        # Written so that NaN is not missed.
        if not error.bound_ratio <= worst.bound_ratio:
            worst = error
    return worst


def complaint(worst: Error) -> str:
    """Describes what is wrong with an output; empty if nothing is."""
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
