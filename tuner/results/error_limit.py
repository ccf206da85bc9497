"""A limit on a champion's error, as a multiple of the library's error on the same inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.results.measurement import Error, Measurement, Outcome

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


def judged(found: Measurement, limit: ErrorLimit | None) -> Measurement | None:
    """Judges an earlier measurement by a limit, from the errors that it keeps.

    Args:
        found: A measurement under this limit, under another, or under none.
        limit: The limit. Its library's error counts if the measurement keeps none. None for no limit.

    Returns:
        The measurement; INACCURATE if it exceeds the limit; None if another limit had kept it from being timed.
    """
    if limit is not None and found.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
        own = replace(limit, library_rms=found.circumstances.get(LIBRARY_RMS, limit.library_rms))
        wrong = own.complaint(found.error)
        if wrong:
            return replace(found, outcome=Outcome.INACCURATE, reason=wrong, samples_s=())
    return None if found.outcome is Outcome.INACCURATE else found


def told(found: Measurement) -> dict[str, Any] | None:
    """Returns the limit that applied to a measurement, as a JSON object; None if there was none.

    ``factor``, ``library_rms_rel``, ``ratio`` of the measurement's error to the library's, and
    ``says_nothing``: why the limit could not be applied; empty if it was.
    """
    factor = found.circumstances.get(ERROR_LIMIT)
    if factor is None:
        return None
    limit = ErrorLimit(factor, found.circumstances.get(LIBRARY_RMS))
    return {
        "factor": factor, "library_rms_rel": limit.library_rms, "ratio": limit.ratio(found.error),
        "says_nothing": limit.void,
    }  # fmt: skip
