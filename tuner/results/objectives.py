"""Objectives of a study: time, and optionally energy of a run or error. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.space import Config
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Measurement, Outcome

#: Name -> what is minimised, in the order in which a search receives them.
OBJECTIVES: Mapping[str, str] = {
    "time": "seconds of a run",
    "energy": "joules of a run",
    "error": "rms error of a result against float64",
}
TIME = ("time",)
#: Energies or errors that differ by a smaller share than this count as equal.
RESOLUTION = 0.02


def read_objectives(text: str | Sequence[str]) -> tuple[str, ...]:
    """Reads objectives from a text such as ``time,energy``, or from a list of names.

    Raises:
        UnknownName: There is no such objective.
        InputError: An objective is given twice, or time is missing.
    """
    names = text.split(",") if isinstance(text, str) else list(text)
    names = [name.strip() for name in names]
    for name in names:
        if name not in OBJECTIVES:
            raise UnknownName("objective", name, tuple(OBJECTIVES))
    rule = "the objectives are time, or time with energy, error or both, each once"
    if len(set(names)) < len(names) or "time" not in names:
        example = ",".join(name for name in OBJECTIVES if name == "time" or name in names)
        raise InputError(f"{rule}, got {','.join(names)}; give e.g. {example}")
    return tuple(name for name in OBJECTIVES if name in names)


def values_of(measurement: Measurement, objectives: Sequence[str]) -> tuple[float, ...] | None:
    """Returns a measurement's value for each objective; None if one is missing, or timing was cut short."""
    if measurement.outcome is not Outcome.MEASURED:
        return None
    error = measurement.error
    known = {
        "time": measurement.time_s,
        "energy": measurement.circumstances.get("energy_j"),
        "error": error.rms_rel if error else None,
    }
    values = tuple(value for name in objectives if (value := known[name]) is not None)
    return values if len(values) == len(objectives) else None


def resolved(values: Sequence[float]) -> tuple[float, ...]:
    """Returns objectives as a front compares them: time unchanged, the others in steps of `RESOLUTION`.

    Otherwise a front would be full of slower configs that are barely more exact, because other inputs were
    drawn.
    """
    steps = (math.log(each) / math.log1p(RESOLUTION) if each > 0 else -math.inf for each in values[1:])
    return values[0], *(round(each) if math.isfinite(each) else each for each in steps)


@dataclass(frozen=True)
class Point:
    """A config, or the library, with its measurement.

    Attributes:
        kernel: Name of the kernel or the library.
        config: The config; empty for the library.
        measurement: Its measurement in the search, not in the finals.
    """

    kernel: str
    config: Config
    measurement: Measurement

    @property
    def energy_j(self) -> float | None:
        """Joules of a run; None if energy was not an objective."""
        return self.measurement.circumstances.get("energy_j")


@dataclass(frozen=True)
class Front:
    """The Pareto front: configs that no other beats in one objective while equalling them in the rest.

    Attributes:
        objectives: Their names.
        points: The front, the fastest first.
        beaten: Objectives of the measured configs that are not on the front.
        champion: The champion of the finals as measured in the search, so it may lie a little off the front;
            None if there is none.
        library: The library, measured before the search; None if there is none.
        work: ``flops`` and ``bytes`` of a run.
    """

    objectives: tuple[str, ...]
    points: tuple[Point, ...]
    beaten: tuple[tuple[float, ...], ...]
    champion: Point | None
    library: Point | None
    work: Mapping[str, float]

    def is_champion(self, point: Point) -> bool:
        """True for the champion's config."""
        mine = self.champion
        return mine is not None and (point.kernel, point.config) == (mine.kernel, mine.config)

    def values(self, point: Point) -> tuple[float, ...]:
        """Returns the objectives of a point."""
        return values_of(point.measurement, self.objectives) or ()

    def as_keys(self) -> dict[str, Any]:
        """Returns what a front adds to a JSON object: ``objectives``, and ``front`` with the fastest first.

        Seconds, joules, watts, TFLOPS and GB/s.
        """
        return {"objectives": list(self.objectives), "front": [self._json(each) for each in self.points]}

    def _json(self, point: Point) -> dict[str, Any]:
        found = point.measurement
        time_s = found.time_s or 0.0
        return {
            "champion": self.is_champion(point),
            "kernel": point.kernel,
            "config": dict(point.config),
            "time_s": time_s,
            "noise": found.noise,
            "tflops": self.work["flops"] / time_s / 1e12 if time_s else 0.0,
            "gbps": self.work["bytes"] / time_s / 1e9 if time_s else 0.0,
            "energy_j": point.energy_j,
            "power_w": None if point.energy_j is None else found.circumstances.get("power_w"),
            "error": found.error and {"max_rel": found.error.max_rel, "rms_rel": found.error.rms_rel},
        }
