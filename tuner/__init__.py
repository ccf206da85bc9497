"""Autotuning of parameterised compute kernels: search, measure, store, look up, export.

Tuned kernels are functions of it: `tuner.matmul`, `tuner.gemv`, `tuner.transpose`. `tuner.explain` says what
they would run, `tuner.best` which config is best for a problem.

Authors of kernels import from it what a declaration is made of: `Kernel`, `Operation`, `choice` and the like.
Importing the package loads no GPU, SQL or Optuna code; each of those loads where it is first needed.
"""

from tuner.version import __version__ as __version__

#: Type checkers take it for true. What is imported below it is the one list of public names: at run time the
#: list is read from this file, and each name is imported at its first use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tuner.declare.epilogue import E5M2 as E5M2
    from tuner.declare.epilogue import FLOAT8_DTYPES as FLOAT8_DTYPES
    from tuner.declare.epilogue import SCALE_BLOCK as SCALE_BLOCK
    from tuner.declare.epilogue import SCALES as SCALES
    from tuner.declare.epilogue import Epilogue as Epilogue
    from tuner.declare.kernel import Fallback as Fallback
    from tuner.declare.kernel import Kernel as Kernel
    from tuner.declare.kernel import Scope as Scope
    from tuner.declare.kernel import Source as Source
    from tuner.declare.launch import Launch as Launch
    from tuner.declare.launch import Packing as Packing
    from tuner.declare.launch import Padded as Padded
    from tuner.declare.launch import Pieces as Pieces
    from tuner.declare.launch import Step as Step
    from tuner.declare.launch import TensorMap as TensorMap
    from tuner.declare.launch import Workspace as Workspace
    from tuner.declare.launch import ceil_div as ceil_div
    from tuner.declare.problem import DTYPE_BYTES as DTYPE_BYTES
    from tuner.declare.problem import Baseline as Baseline
    from tuner.declare.problem import Operation as Operation
    from tuner.declare.problem import Problem as Problem
    from tuner.declare.problem import Scalar as Scalar
    from tuner.declare.problem import Tensor as Tensor
    from tuner.declare.problem import Work as Work
    from tuner.declare.problem import dims_as_scalars as dims_as_scalars
    from tuner.declare.space import Config as Config
    from tuner.declare.space import Constraint as Constraint
    from tuner.declare.space import Value as Value
    from tuner.declare.space import choice as choice
    from tuner.declare.space import powers_of_two as powers_of_two
    from tuner.lookup import best as best
    from tuner.python.decorators import TunedFunction as TunedFunction
    from tuner.python.decorators import cuda_kernel as cuda_kernel
    from tuner.python.decorators import kernel as kernel
    from tuner.python.explaining import explain as explain
    from tuner.python.functions import Packed as Packed
    from tuner.python.functions import clear_caches as clear_caches
    from tuner.python.functions import fallbacks as fallbacks
    from tuner.python.functions import gemv as gemv
    from tuner.python.functions import grouped as grouped
    from tuner.python.functions import matmul as matmul
    from tuner.python.functions import pack as pack
    from tuner.python.functions import transpose as transpose
    from tuner.python.misses import on_miss as on_miss
    from tuner.python.requests import precision as precision
    from tuner.python.tuned import Tuned as Tuned
    from tuner.python.tuned import records as records
    from tuner.python.tuning import tune as tune
    from tuner.report.comparing import compare_sides as compare  # noqa: F401
    from tuner.report.pages import show as show
    from tuner.service.client import connect as connect
    from tuner.triton import autotune as autotune


_PUBLIC: dict[str, tuple[str, str]] = {}


def _public() -> dict[str, tuple[str, str]]:
    """Public name -> module that it is imported from, and its name there."""
    if not _PUBLIC:
        import ast
        from pathlib import Path

        for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tuner."):
                _PUBLIC.update({name.asname or name.name: (str(node.module), name.name) for name in node.names})
    return _PUBLIC


def __getattr__(name: str) -> object:
    """Imports a public name at its first use."""
    from importlib import import_module

    public = _public()
    if name == "__all__":
        return sorted(public)
    if name not in public:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, original = public[name]
    globals()[name] = value = getattr(import_module(module), original)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_public()})
