"""Autotuning of parameterised compute kernels: search, measure, store, look up, export.

Tuned kernels are functions of it: `tuner.matmul`, `tuner.gemv`, `tuner.transpose`. `tuner.explain` says what
they would run, `tuner.best` which config is best for a problem.

Authors of kernels import from it what a declaration is made of: `Kernel`, `Operation`, `choice` and the like.
Importing the package loads no GPU, SQL or Optuna code; each of those loads where it is first needed.
"""

from tuner.version import __version__

TYPE_CHECKING = False  # type checkers take it for true, and see the names that are loaded at first use
if TYPE_CHECKING:
    from tuner.declare.epilogue import Epilogue
    from tuner.declare.kernel import Fallback, Kernel
    from tuner.declare.launch import Launch, Packing, Padded, Pieces, Step, TensorMap, Workspace, ceil_div
    from tuner.declare.problem import (
        DTYPE_BYTES,
        Baseline,
        Operation,
        Problem,
        Scalar,
        Tensor,
        Work,
        dims_as_scalars,
    )
    from tuner.declare.space import Config, Constraint, Value, choice, powers_of_two
    from tuner.lookup import best
    from tuner.python import (
        Packed,
        clear_caches,
        explain,
        fallbacks,
        gemv,
        matmul,
        on_miss,
        pack,
        precision,
        transpose,
    )
    from tuner.python.decorators import TunedFunction, cuda_kernel, kernel
    from tuner.python.record_tables import records
    from tuner.python.tuned import Tuned
    from tuner.python.tuning import tune
    from tuner.report.comparing import compare_sides as compare
    from tuner.report.pages import show
    from tuner.service.client import connect

#: Name -> module that it is loaded from.
_AT_FIRST_USE = {
    **dict.fromkeys(("Packed", "clear_caches", "explain", "fallbacks", "gemv"), "tuner.python"),
    **dict.fromkeys(("matmul", "on_miss", "pack", "precision", "transpose"), "tuner.python"),
    "best": "tuner.lookup",
    **dict.fromkeys(("TunedFunction", "cuda_kernel", "kernel"), "tuner.python.decorators"),
    "compare": "tuner.report.comparing",
    "records": "tuner.python.record_tables",
    "show": "tuner.report.pages",
    "Tuned": "tuner.python.tuned",
    "tune": "tuner.python.tuning",
    "Epilogue": "tuner.declare.epilogue",
    "Fallback": "tuner.declare.kernel",
    "dims_as_scalars": "tuner.declare.problem",
    "Kernel": "tuner.declare.kernel",
    **dict.fromkeys(
        ("Launch", "Packing", "Padded", "Pieces", "Step", "Workspace", "ceil_div"), "tuner.declare.launch"
    ),
    **dict.fromkeys(
        ("DTYPE_BYTES", "Baseline", "Operation", "Problem", "Scalar", "Tensor", "Work"), "tuner.declare.problem"
    ),
    **dict.fromkeys(("Config", "Constraint", "Value", "choice", "powers_of_two"), "tuner.declare.space"),
    "TensorMap": "tuner.declare.launch",
}
#: Name -> extension point: an extra has it.
_PROVIDED = {"connect": "client"}
#: Name here -> its name there, where that is another one's already.
_NAMED_OTHERWISE = {"compare": "compare_sides"}
__all__ = [
    "DTYPE_BYTES",
    "Baseline",
    "Config",
    "Constraint",
    "Epilogue",
    "Fallback",
    "Kernel",
    "Launch",
    "Operation",
    "Packed",
    "Packing",
    "Padded",
    "Pieces",
    "Problem",
    "Scalar",
    "Step",
    "Tensor",
    "TensorMap",
    "Tuned",
    "TunedFunction",
    "Value",
    "Work",
    "Workspace",
    "__version__",
    "best",
    "ceil_div",
    "choice",
    "clear_caches",
    "compare",
    "connect",
    "cuda_kernel",
    "dims_as_scalars",
    "explain",
    "fallbacks",
    "gemv",
    "kernel",
    "matmul",
    "on_miss",
    "pack",
    "powers_of_two",
    "precision",
    "records",
    "show",
    "transpose",
    "tune",
]


def __getattr__(name: str) -> object:
    """Loads a function of the package at its first use."""
    from importlib import import_module

    if name in _PROVIDED:
        from tuner.extras import provided

        if provided(_PROVIDED[name]):
            globals()[name] = value = provided(_PROVIDED[name])[0]
            return value
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_AT_FIRST_USE[name]), _NAMED_OTHERWISE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
