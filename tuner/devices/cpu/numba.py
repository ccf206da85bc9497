"""Writes rendered Numba kernels as modules on disk; Numba caches their machine code beside them.

One process can compile what another one runs: the file's name is the hash of its text, and Numba's own cache
(``cache=True`` in the source) passes the machine code on. Functions that Numba caches have files of their own,
which configs share (`tuner.devices.cpu.numba`).
"""

import ast
import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from tuner.declare.folders import write_whole
from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.devices.protocol import Arrays, Binary, CompileFailed, LaunchFailed, Run
from tuner.devices.settings import cache_root, cache_trouble
from tuner.results.measurement import OUT_OF_MEMORY, CompileReport, memory_reason

#: Decorators that make a function and have no other effect. Statements with other decorators are kept in every
#: part.
HARMLESS = frozenset({"njit", "jit", "intrinsic", "vectorize", "guvectorize", "cfunc", "lru_cache", "cache"})


class SourceParts:
    """The statements of a module, and the names to which each refers."""

    def __init__(self, text: str) -> None:
        """Reads a module.

        Args:
            text: Its source.

        Raises:
            SyntaxError: The text is not Python.
        """
        lines = text.splitlines()
        self._statements: list[tuple[set[str], set[str], list[str]]] = []
        for node in ast.parse(text).body:
            first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
            uses = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
            self._statements.append((_defined(node), uses, lines[first - 1 : node.end_lineno]))

    def of(self, name: str) -> str:
        """Returns the source of the smallest module that defines a name as this one does.

        It includes every statement that may have an effect beyond defining names.
        """
        wanted, size = {"", name}, 0
        while len(wanted) > size:
            size = len(wanted)
            wanted.update(*(uses for defined, uses, _ in self._statements if defined & wanted))
        kept = (lines for defined, _, lines in self._statements if defined & wanted)
        return "\n".join([line for lines in kept for line in lines] + [""])


def _defined(node: ast.stmt) -> set[str]:
    """The names that a function or an assignment defines; the empty one for what may do more than that."""
    if isinstance(node, ast.FunctionDef):
        # The last word of each decorator: ``njit`` of ``@numba.njit(cache=True)``.
        words = (ast.unparse(decorator).partition("(")[0] for decorator in node.decorator_list)
        return {node.name} if {word.rpartition(".")[2] for word in words} <= HARMLESS else {""}
    parts = [part for target in getattr(node, "targets", ()) for part in ast.walk(target)]
    if parts and all(isinstance(part, ast.Name | ast.Tuple | ast.expr_context) for part in parts):
        return {part.id for part in parts if isinstance(part, ast.Name)}
    return {""}


#: The compiler's name in records.
COMPILER = f"Numba {numba.__version__}"
#: Compiling runs the kernel once. Sizes are cut to this, so that even a slow kernel returns at once. It is a
#: power of two because a kernel may rely on a dim being divisible by, say, its WIDTH, which its rules ensure
#: only at full size.
COMPILE_DIM = 64
#: Kernels that have run in this process, by cache folder and hash: finals run each at a dozen shapes, and to
#: load one anew takes up to 0.1 s.
_ENTRIES: dict[tuple[Path, str], Callable[..., Any]] = {}
#: So many of them are kept, those loaded last: more than finals have.
MOST_LOADED = 32


def load_module(rendered: Rendered, in_parts: bool = False) -> Callable[..., Any]:
    """Imports a rendered CPU kernel.

    Args:
        rendered: The kernel.
        in_parts: True to take each function that Numba caches from a module that configs share.

    Returns:
        Its entry function, which compiles (or loads its machine code from the cache) at the first call.

    Raises:
        CompileFailed: It cannot be imported, or has no such function.
        EnvironmentTrouble: The cache cannot be written; this is not the kernel's fault.
    """
    module = _imported("kernel", rendered.hash, rendered.text)
    try:
        if in_parts:
            _share_parts(module, SourceParts(rendered.text))
        entry: Callable[..., Any] = getattr(module, rendered.entry)
    except (SyntaxError, AttributeError) as error:
        raise _compile_failed(error) from error
    return entry


def _share_parts(module: ModuleType, parts: SourceParts) -> None:
    shared: dict[Any, Any] = {}
    for name, function in list(vars(module).items()):
        if isinstance(function, Dispatcher) and _is_cached(function):
            if function not in shared:
                text = parts.of(name)
                part = _imported("part", hashlib.sha256(text.encode()).hexdigest()[:24], text)
                shared[function] = getattr(part, name)
            setattr(module, name, shared[function])


def _is_cached(function: Any) -> bool:
    return not isinstance(function._cache, NullCache)


def _compile_failed(error: Exception) -> CompileFailed:
    return CompileFailed(f"{type(error).__name__}: {error}")


def _imported(kind: str, digest: str, text: str) -> ModuleType:
    """Imports a module of this text: a part once, a kernel every time, because parts replace its functions."""
    name = f"tuner_{kind}_{digest}"
    path = cache_root() / "numba" / f"{kind[0]}{digest}.py"
    try:
        if not path.exists():
            write_whole(path, text.encode())
    except OSError as error:
        raise cache_trouble(error) from error
    known = sys.modules.get(name)
    # A module of another folder will not do: its machine code may be missing in this one.
    if kind == "part" and known is not None and known.__file__ == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    # Numba looks its cache up by the module's name.
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.NumbaWarning)
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _compile_failed(error) from error
    return module


def small_problem(problem: Problem) -> Problem:
    """Returns the problem with smaller dims, if the operation allows that."""
    try:
        small = problem.at({name: min(value, COMPILE_DIM) for name, value in problem.shape})
        tensors, scalars = small.tensors, small.scalars
    except Exception:
        return problem
    return small if tensors and scalars is not None else problem


def ready(rendered: Rendered, problem: Problem) -> Callable[..., Any]:
    """Compiles or loads a rendered CPU kernel, runs it on small arrays, and returns its entry function.

    Raises:
        CompileFailed: It cannot be imported or compiled.
        EnvironmentTrouble: The cache cannot be written.
    """
    try:
        return _tried(load_module(rendered, in_parts=True), problem)
    except CompileFailed as failure:
        if OUT_OF_MEMORY in str(failure):
            raise
    # A source may use names that its parts lack. Loaded as a whole it works, or fails with its own message.
    return _tried(load_module(rendered), problem)


def _tried(entry: Callable[..., Any], problem: Problem) -> Callable[..., Any]:
    small = small_problem(problem)
    arrays = [numpy.ones(tensor.shape, dtype=tensor.dtype) for tensor in small.tensors]
    scalars = [numpy.dtype(scalar.dtype).type(scalar.value).item() for scalar in small.scalars]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.NumbaWarning)
            entry(*arrays, *scalars)
    except MemoryError as error:
        raise CompileFailed(memory_reason(error)) from error
    except OSError as error:
        # Only Numba opens files here, to write machine code; a kernel opens none.
        raise cache_trouble(error) from error
    except Exception as error:
        raise _compile_failed(error) from error
    return entry


def bound(rendered: Rendered, arrays: Arrays) -> Run:
    """Makes a kernel ready to run on arrays; see `tuner.devices.protocol.Device.load`."""
    try:
        # It has run once, so the first timed run loads no machine code.
        key = cache_root(), rendered.hash
        entry = _ENTRIES.pop(key) if key in _ENTRIES else ready(rendered, arrays.problem)
        _ENTRIES[key] = entry
        if len(_ENTRIES) > MOST_LOADED:
            del _ENTRIES[next(iter(_ENTRIES))]
    except CompileFailed as error:
        raise LaunchFailed(str(error)) from error
    arguments = [value.item() if isinstance(value, numpy.generic) else value for value in arrays.arguments()]

    def run() -> None:
        try:
            entry(*arguments)
        except MemoryError as error:
            # Whatever holds the memory ends with the worker.
            raise LaunchFailed(memory_reason(error), device_unwell=True) from error
        except Exception as error:
            raise LaunchFailed(f"{type(error).__name__}: {error}") from error

    return run


class NumbaCompiler:
    """`tuner.devices.protocol.Compiler` for CPU kernels; it runs them once on small arrays."""

    def __init__(self) -> None:
        """Makes Numba ready: its first compilation takes 0.4 s more than others."""
        numba.njit()(lambda: None)()

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Compiles for this CPU; the machine code lands in Numba's cache, so the code is empty."""
        ready(rendered, problem)
        digest = hashlib.sha256(rendered.text.encode()).hexdigest()[:24]
        return Binary(b"", CompileReport(binary_hash=digest, compiler=COMPILER))
