"""Objectives of a study: time, and optionally energy of a run or error. Plain data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import NOT_THE_SAME, VARIES, Error, Measurement, Outcome

#: What is minimised, in the order in which a search receives it: seconds and joules of a run, and the rms error
#: of a result against float64.
OBJECTIVES = ("time", "energy", "error")
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
            raise UnknownName("objective", name, OBJECTIVES)
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
    steps = (math.log(value) / math.log1p(RESOLUTION) if value > 0 else -math.inf for value in values[1:])
    return values[0], *(round(step) if math.isfinite(step) else step for step in steps)


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
        return {"objectives": list(self.objectives), "front": [self._json(point) for point in self.points]}

    def _json(self, point: Point) -> dict[str, Any]:
        measurement = point.measurement
        time_s = measurement.time_s or 0.0
        error, energy_j = measurement.error, point.energy_j
        return {
            "champion": self.is_champion(point), "kernel": point.kernel, "config": dict(point.config),
            "time_s": time_s, "noise": measurement.noise,
            "tflops": self.work["flops"] / time_s / 1e12 if time_s else 0.0,
            "gbps": self.work["bytes"] / time_s / 1e9 if time_s else 0.0, "energy_j": energy_j,
            "power_w": None if energy_j is None else measurement.circumstances.get("power_w"),
            "error": error and {"max_rel": error.max_rel, "rms_rel": error.rms_rel},
        }  # fmt: skip


#: Classes of bits that are told by name.
FEW_CLASSES = 6
#: Circumstances of a measurement under a limit: the limit, and the library's error on the same inputs.
ERROR_LIMIT, LIBRARY_RMS = "error_limit", "library_rms_rel"
#: Outputs with fewer elements are too small to compare two rms errors: on other inputs the ratio differs.
LEAST_ELEMENTS = 256
#: Finals use other inputs than the search. Their limit is wider by this value over the root of the number of
#: output elements: the ratio of two rms errors of n elements was measured to spread by 0.6 to 1.3 over the root
#: of n (gemm of k 256, a running sum beside OpenBLAS, 16 to 65536 elements), and two such ratios are compared.
SLACK = 4.0


def read_error_limit(factor: float | None) -> float | None:
    """Returns the requested limit; None and infinity request no limit.

    Raises:
        InputError: The factor is below 1, or is not a number.
    """
    if factor is None or factor == math.inf:
        return None
    if not factor >= 1:
        rule = "an error limit is 1 or more, times the library's error"
        raise InputError(f"{rule}, got {factor:g}; give e.g. 1.5")
    return factor


def limit_for(precision: str, factor: float | None) -> float | None:
    """The limit of a study: what is asked for; 1 for a precision whose promise is the library's own error."""
    return 1.0 if factor is None and precision != IEEE else factor


@dataclass(frozen=True)
class ErrorLimit:
    """The largest rms error that a result may have.

    Attributes:
        factor: Largest allowed multiple of the library's error.
        library_rms: The library's rms error over the rms of the result, at the same inputs; None if there is no
            library, or too little output to compare.
        slack: Share by which the limit is wider in finals.
    """

    factor: float
    library_rms: float | None = None
    slack: float = 0.0

    @classmethod
    def beside(cls, factor: float, library: Error | None, problem: Problem) -> ErrorLimit:
        """Returns the limit for a problem.

        Args:
            factor: At least 1.
            library: The library's error; None if there is no library.
            problem: Supplies the number of elements compared.
        """
        elements = min(math.prod(tensor.shape) for tensor in problem.outputs)
        known = library is not None and math.isfinite(library.rms_rel) and elements >= LEAST_ELEMENTS
        return cls(factor, library.rms_rel if library and known else None, SLACK / math.sqrt(elements))

    @property
    def void(self) -> str:
        """Reason why the limit cannot be applied; empty if it can."""
        if self.library_rms is None:
            return f"there is no library to compare with, or less output than {LEAST_ELEMENTS} elements"
        return "" if self.library_rms > 0 else "the library's error is 0"

    def ratio(self, error: Error | None) -> float | None:
        """Returns an error over the library's; None if one of them is unknown, or the library's is 0."""
        return error.rms_rel / self.library_rms if error and self.library_rms else None

    def complaint(self, error: Error | None, finals: bool = False) -> str:
        """Reason why an error exceeds the limit; empty if it does not, or if the limit cannot be applied."""
        ratio = self.ratio(error)
        if error is None or ratio is None or ratio <= self.factor * (1 + self.slack * finals):
            return ""
        return (
            f"rms error {error.rms_rel:.3g} of the result's rms, {ratio:.3g} times the library's of "
            f"{self.library_rms:.3g}; the limit is {self.factor:g} times"
        )

    @property
    def circumstances(self) -> dict[str, float]:
        """Returns the circumstances that a measurement under the limit keeps."""
        known = {} if self.library_rms is None else {LIBRARY_RMS: self.library_rms}
        return {ERROR_LIMIT: self.factor, **known}


def judged(measurement: Measurement, limit: ErrorLimit | None) -> Measurement | None:
    """Judges an earlier measurement by a limit, from the errors that it keeps.

    Args:
        measurement: A measurement under this limit, under another, or under none.
        limit: The limit. Its library's error counts if the measurement keeps none. None for no limit.

    Returns:
        The measurement; INACCURATE if it exceeds the limit; None if another limit had kept it from being timed.
    """
    if limit is not None and measurement.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
        own = replace(limit, library_rms=measurement.circumstances.get(LIBRARY_RMS, limit.library_rms))
        wrong = own.complaint(measurement.error)
        if wrong:
            return replace(measurement, outcome=Outcome.INACCURATE, reason=wrong, samples_s=())
    return None if measurement.outcome is Outcome.INACCURATE else measurement


#: What a study may keep to instead of a class that it names: the reigning champion's, the library's. `ANY_BITS`
#: allows bits, too, that differ between two runs.
KEEP, LIBRARY_BITS, ANY_BITS = "keep", "library", "any"


def read_bits(text: str | None) -> str:
    """Returns the requested class of bits: `KEEP`, `LIBRARY_BITS`, `ANY_BITS`, or a class by its name.

    Empty is for any class whose bits do not vary.

    Raises:
        InputError: It is none of these.
    """
    words = KEEP, LIBRARY_BITS, ANY_BITS
    if text and text not in words and not re.fullmatch("[0-9a-f]{12}", text):
        raise InputError(f"bits are {', '.join(words)} or a class of 12 hexadecimal digits, got {text!r}")
    return text or ""


def of_class(measurement: Measurement, bits: str) -> Measurement:
    """Judges a measurement by the class of bits that a study keeps to; unknown classes are left to the finals.

    Args:
        measurement: The measurement.
        bits: The class; empty for any, `ANY_BITS` for what varies, too.

    Returns:
        The measurement; OTHER_BITS if it is of another class, NOT_REPEATABLE if it has none.
    """
    if measurement.bits == VARIES and not bits:
        return replace(measurement, outcome=Outcome.NOT_REPEATABLE, reason=NOT_THE_SAME, samples_s=())
    if bits in ("", ANY_BITS) or measurement.bits in ("", bits) or measurement.outcome.failed:
        return measurement
    why = f"its bits are of class {measurement.bits}; the study keeps to {bits}"
    return replace(measurement, outcome=Outcome.OTHER_BITS, reason=why, samples_s=())


def classes_text(best_s: Mapping[str, float]) -> str:
    """Tells classes of bits: how many a study saw, and the best time of each, the fastest first.

    Args:
        best_s: Class -> best time in seconds.
    """
    ranked = sorted(best_s, key=best_s.__getitem__)
    shown = ", ".join(f"{bits} {best_s[bits] / best_s[ranked[0]]:.3f}" for bits in ranked[:FEW_CLASSES])
    more = ", ..." if len(ranked) > FEW_CLASSES else ""
    return f"{len(ranked)}; best time of each over the first's: {shown}{more}"


def told(measurement: Measurement) -> dict[str, Any] | None:
    """Returns the limit that applied to a measurement, as a JSON object; None if there was none.

    ``factor``, ``library_rms_rel``, ``ratio`` of the measurement's error to the library's, and
    ``says_nothing``: why the limit could not be applied; empty if it was.
    """
    factor = measurement.circumstances.get(ERROR_LIMIT)
    if factor is None:
        return None
    limit = ErrorLimit(factor, measurement.circumstances.get(LIBRARY_RMS))
    return {
        "factor": factor, "library_rms_rel": limit.library_rms, "ratio": limit.ratio(measurement.error),
        "says_nothing": limit.void,
    }  # fmt: skip
