"""A limit on the error of what may be champion, as a multiple of the library's at the same inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tuner.declare.problem import IEEE, Problem
from tuner.errors import InputError
from tuner.results.measurement import Error, Measurement, Outcome

#: Circumstances of what was measured under a limit: the limit, and the library's error at the same inputs.
ERROR_LIMIT, LIBRARY_RMS = "error_limit", "library_rms_rel"
#: An output of fewer elements is too few to compare two rms errors: at other inputs their ratio is another.
LEAST_ELEMENTS = 256
#: Finals have other inputs than the search had. There the limit is wider by this over the root of the output's
#: elements: the ratio of two rms errors of n elements was seen to spread by 0.6 to 1.3 over the root of n (gemm
#: of k 256, a running sum beside OpenBLAS, 16 to 65536 elements), and two such ratios are compared.
SLACK = 4.0


def read_error_limit(factor: float | None) -> float | None:
    """The limit that a number asks for; None and infinity ask for none.

    Raises:
        InputError: It is below 1, or no number.
    """
    if factor is None or factor == math.inf:
        return None
    if not factor >= 1:
        rule = "an error limit is 1 or more, times the library's error"
        raise InputError(f"{rule}, got {factor:g}; give e.g. 1.5")
    return factor


def limit_for(precision: str, asked: float | None) -> float | None:
    """The limit of a study: what is asked for; 1 for a precision whose promise is the library's own error."""
    return 1.0 if asked is None and precision != IEEE else asked


@dataclass(frozen=True)
class ErrorLimit:
    """What the rms error of a result may be.

    Attributes:
        factor: So many times the library's, at the most.
        library_rms: The library's rms error over the rms of the result, at the same inputs; None where there
            is none, or too little output to compare.
        slack: By which share the limit is wider in finals.
    """

    factor: float
    library_rms: float | None = None
    slack: float = 0.0

    @classmethod
    def beside(cls, factor: float, library: Error | None, problem: Problem) -> ErrorLimit:
        """The limit for a problem.

        Args:
            factor: At least 1.
            library: The library's error; None without a library.
            problem: Tells how many elements were compared.
        """
        elements = min(math.prod(tensor.shape) for tensor in problem.outputs)
        known = library is not None and math.isfinite(library.rms_rel) and elements >= LEAST_ELEMENTS
        return cls(factor, library.rms_rel if library and known else None, SLACK / math.sqrt(elements))

    @property
    def void(self) -> str:
        """Why it says nothing; empty where it says something."""
        if self.library_rms is None:
            return f"there is no library to compare with, or less output than {LEAST_ELEMENTS} elements"
        return "" if self.library_rms > 0 else "the library's error is 0"

    def ratio(self, error: Error | None) -> float | None:
        """An error over the library's; None where one of them is not known, or the library's is 0."""
        return error.rms_rel / self.library_rms if error and self.library_rms else None

    def complaint(self, error: Error | None, finals: bool = False) -> str:
        """What is to be said against an error; empty where it is within the limit, or nothing can be said."""
        ratio = self.ratio(error)
        if error is None or ratio is None or ratio <= self.factor * (1 + self.slack * finals):
            return ""
        return (
            f"rms error {error.rms_rel:.3g} of the result's rms, {ratio:.3g} times the library's of "
            f"{self.library_rms:.3g}; the limit is {self.factor:g} times"
        )

    @property
    def circumstances(self) -> dict[str, float]:
        """What a measurement under the limit keeps of it."""
        known = {} if self.library_rms is None else {LIBRARY_RMS: self.library_rms}
        return {ERROR_LIMIT: self.factor, **known}


def judged(found: Measurement, limit: ErrorLimit | None) -> Measurement | None:
    """A measurement from before as a limit sees it, by the errors that it keeps.

    Args:
        found: Of this limit, of another, or of none.
        limit: Its library's error counts where the measurement keeps none; None for no limit.

    Returns:
        INACCURATE for what is outside; None for what was not timed, as another limit kept it out.
    """
    if limit is not None and found.outcome in (Outcome.MEASURED, Outcome.PRUNED, Outcome.INACCURATE):
        own = replace(limit, library_rms=found.circumstances.get(LIBRARY_RMS, limit.library_rms))
        wrong = own.complaint(found.error)
        if wrong:
            return replace(found, outcome=Outcome.INACCURATE, reason=wrong, samples_s=())
    return None if found.outcome is Outcome.INACCURATE else found


def told(found: Measurement) -> dict[str, Any] | None:
    """The limit that something was measured under, as a JSON object; None without one.

    ``factor``, ``library_rms_rel``, ``ratio`` of the measurement's error to the library's, and
    ``says_nothing``: why the limit could not be held; empty where it was.
    """
    factor = found.circumstances.get(ERROR_LIMIT)
    if factor is None:
        return None
    limit = ErrorLimit(factor, found.circumstances.get(LIBRARY_RMS))
    return {
        "factor": factor, "library_rms_rel": limit.library_rms, "ratio": limit.ratio(found.error),
        "says_nothing": limit.void,
    }  # fmt: skip
