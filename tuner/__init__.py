"""Autotuning of parameterised compute kernels: search, measure, store, look up, export.

Tuned kernels are functions of it: `tuner.matmul`, `tuner.gemv`, `tuner.transpose`. `tuner.explain` says what
they would run, `tuner.best` which config is best for a problem. Importing the package loads no GPU, SQL or
Optuna code; each of those loads where it is first needed.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for true, and see the names that are loaded at first use
if TYPE_CHECKING:
    from tuner.callables import clear_caches, explain, gemv, matmul, transpose
    from tuner.lookup import best

#: Name -> module that it is loaded from.
_AT_FIRST_USE = {
    **dict.fromkeys(("clear_caches", "explain", "gemv", "matmul", "transpose"), "tuner.callables"),
    "best": "tuner.lookup",
}
__all__ = ["__version__", "best", "clear_caches", "explain", "gemv", "matmul", "transpose"]


def __getattr__(name: str) -> object:
    """Loads a function of the package at its first use."""
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_AT_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
