"""Problems as the command line takes them."""

from __future__ import annotations

from tuner.declare.problem import IEEE
from tuner.results.record import ProblemKey


def arguments(problem: ProblemKey, regime: str = "cold") -> str:
    """Operation, dims and options of a problem."""
    dims = " ".join(str(size) for _, size in problem.shape)
    more = [f"--layout {problem.layout}"] if problem.layout else []
    more += [f"--precision {problem.precision}"] if problem.precision != IEEE else []
    more += [f"--epilogue {problem.epilogue}"] if problem.epilogue else []
    more += [f"--regime {regime}"] if regime != "cold" else []
    return " ".join([problem.operation, dims, f"--dtype {problem.dtype}", *more])
