"""The check of an output against its float64 reference: how far it is off, and whether that is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.results.measurement import Error

#: Elements that are compared at a time, by array module: what comes between stays in a core's cache, or bounds
#: the memory of a GPU that this takes.
PIECE = {"numpy": 1 << 15, "cupy": 1 << 24}


@dataclass(frozen=True)
class Expected:
    """What an output must be.

    Attributes:
        values: float64 array of its shape.
        scale: rms that its rounding errors are measured by.
        tolerance: See `tuner.declare.problem.Problem.tolerance`.
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
        out, values = output.reshape(-1), self.values.reshape(-1)
        parts: list[Any] = []
        piece = PIECE[xp.__name__]
        for start in range(0, values.size, piece):
            value = values[start : start + piece]
            difference = xp.abs(out[start : start + piece] - value)
            # Integers are exact: any difference is wrong, and none is right.
            allowed = xp.maximum(self.tolerance * (self.scale + xp.abs(value)), 1e-300)
            ratio = (difference / allowed).max()
            parts += [difference.max(), ratio, difference.sum(), (difference * difference).sum()]
        # One wait for the device: what the pieces come to is asked together.
        told = xp.stack(parts).reshape(-1, 4)
        (largest, ratio), (total, squares) = told[:, :2].max(axis=0).tolist(), told[:, 2:].sum(axis=0).tolist()
        unit = self.scale or 1.0
        root = math.sqrt(squares / values.size)
        return Error(largest / unit, root / unit, bound_ratio=ratio, mean_rel=total / values.size / unit)


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
