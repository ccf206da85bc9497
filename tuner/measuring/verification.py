"""Checks an output against its float64 reference: how large its error is, and whether it is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.results.measurement import Error

#: Elements compared at a time, by array module. Intermediate results stay in a core's cache, or in a bounded
#: part of a GPU's memory.
PIECE = {"numpy": 1 << 15, "cupy": 1 << 24}


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
        out, values = output.reshape(-1), self.values.reshape(-1)
        parts: list[Any] = []
        piece = PIECE[xp.__name__]
        for start in range(0, values.size, piece):
            value = values[start : start + piece]
            difference = xp.abs(out[start : start + piece].astype(xp.float64, copy=False) - value)
            # Integers are exact: any difference is an error.
            allowed = xp.maximum(self.tolerance * (self.scale + xp.abs(value)), 1e-300)
            ratio = (difference / allowed).max()
            parts += [difference.max(), ratio, difference.sum(), (difference * difference).sum()]
        # The results of all pieces are read together, with one wait for the device.
        told = xp.stack(parts).reshape(-1, 4)
        (largest, ratio), (total, squares) = told[:, :2].max(axis=0).tolist(), told[:, 2:].sum(axis=0).tolist()
        unit = self.scale or 1.0
        root = math.sqrt(squares / values.size)
        return Error(largest / unit, root / unit, bound_ratio=ratio, mean_rel=total / values.size / unit)


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
