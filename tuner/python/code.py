"""The code of a user's kernel: CUDA text or a Python function, with its parameters."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from tuner.declare.own_source import Module, callable_from_c, definition, njit, taken_by, unwrapped
from tuner.declare.shapes import KernelArgument
from tuner.declare.space import Parameter
from tuner.errors import InputError

#: Parameter that sets the number of Numba's threads.
THREADS = "THREADS"
#: Endings of files of CUDA source.
_CUDA_FILES = (".cu", ".cuh")


@dataclass(frozen=True)
class KernelCode:
    """The code of a kernel before it has arguments.

    Attributes:
        name: Name of the function.
        target: ``cuda`` or ``cpu``.
        takes: Names of its arguments, in order, parameters left out.
        text: CUDA source; empty for a function.
        function: Python function; None for CUDA.
        parameters: The tunable choices.
        defaults: Values to try first.
    """

    name: str
    target: str
    takes: tuple[str, ...]
    text: str
    function: Any
    parameters: Mapping[str, tuple[Any, ...]]
    defaults: Mapping[str, Any]


def read_code(what: object, name: str, params: object) -> KernelCode:
    """The code that a user gave: CUDA text with the name of a function in it, or a Python function.

    Raises:
        DeclarationError: It cannot be read.
        InputError: Parameters without values, or that the function does not take.
    """
    parameters = _parameters(params)
    if isinstance(what, str | Path):
        what = cuda_text(what)
        if not name:
            raise InputError(
                'CUDA text goes with the name of its function, got none; tune(source, "name", ...)'
            )
        taken = taken_by(what, name)
        return KernelCode(name, "cuda", tuple(each.name for each in taken), what, None, parameters, {})
    inner, _ = unwrapped(what)
    if not callable(inner):
        raise InputError(
            f"what is tuned is a problem in words, a file, CUDA text or a function, got {type(what).__name__}"
        )
    signature = inspect.signature(inner).parameters
    takes = tuple(each for each in signature if each not in parameters)
    values = {each: signature[each].default for each in parameters if each in signature}
    defaults = {each: value for each, value in values.items() if value in parameters[each]}
    return KernelCode(name or inner.__name__, "cpu", takes, "", what, parameters, defaults)


def _parameters(params: object) -> dict[str, tuple[Any, ...]]:
    if isinstance(params, Mapping):
        found = {
            str(name): tuple(_plain(each) for each in _listed(name, values)) for name, values in params.items()
        }
    elif isinstance(params, Sequence) and all(isinstance(each, Parameter) for each in params):
        found = {each.name: each.values for each in params}
    else:
        found = {}
    if not found:
        raise InputError(
            'a kernel is tuned by its parameters, got none; give e.g. params={"BLOCK": [64, 128, 256]}'
        )
    return found


def _listed(name: object, values: object) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence | numpy.ndarray | range) or not len(values):
        raise InputError(f"a parameter has a list of values, {name} has {values!r}; give e.g. [1, 2, 4]")
    return list(values)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, numpy.generic) else value


def source_of(code: KernelCode, given: Sequence[KernelArgument]) -> str:
    """The source of a kernel as a file of its own."""
    if code.text:
        return callable_from_c(code.text, code.name)
    inner, options = unwrapped(code.function)
    node = definition(inner)
    without(node, code.parameters)
    uses_prange = any(
        isinstance(each, ast.Name | ast.Attribute) and "prange" in ast.unparse(each) for each in ast.walk(node)
    )
    told = {"nogil": True, "parallel": uses_prange, **(options or {})}
    threads = code.parameters.get(THREADS)
    decorator = njit(told)
    if threads and told["parallel"]:
        decorator = decorator.replace("parallel=True", f"parallel={THREADS} > 1")
    order = [each.name for each in sorted(given, key=lambda each: each.shape is None)]
    plain = order == list(code.takes) and not threads
    node.name = code.name if plain else f"_{code.name}"
    module = Module(frozenset(code.parameters))
    module.add_node(node, inner, decorator)
    module.lines.insert(0, "import numba")
    return module.text if plain else module.text + _entry(code, order)


def without(node: ast.FunctionDef, parameters: Mapping[str, object]) -> None:
    """Leaves a function's parameters out of what it takes, and all annotations."""
    args = node.args
    every = [*args.posonlyargs, *args.args]
    kept = [each for each in every if each.arg not in parameters]
    for each in kept:
        each.annotation = None
    node.args = ast.arguments([], kept, None, [], [], None, [])
    node.returns, node.decorator_list = None, []


def _entry(code: KernelCode, order: Sequence[str]) -> str:
    """The function that takes arrays before numbers, and sets the number of threads."""
    call = f"_{code.name}({', '.join(code.takes)})"
    lines = ["", "", f"def {code.name}({', '.join(order)}):"]
    if THREADS in code.parameters:
        lines += [
            f"    if {THREADS} == 1:", f"        {call}", "        return",
            "    before = numba.get_num_threads()",
            f"    numba.set_num_threads(min({THREADS}, numba.config.NUMBA_NUM_THREADS))",
            "    try:", f"        {call}", "    finally:", "        numba.set_num_threads(before)",
        ]  # fmt: skip
    else:
        lines.append(f"    {call}")
    return "\n".join([*lines, ""])


def is_cuda(what: object) -> bool:
    """True for CUDA source or its file, rather than a problem in words or a file of declarations."""
    if isinstance(what, Path):
        return what.suffix in _CUDA_FILES
    return isinstance(what, str) and ("__global__" in what or _is_file_name(what))


def _is_file_name(text: str) -> bool:
    return "\n" not in text and text.strip().endswith(_CUDA_FILES)


def cuda_text(what: object) -> str:
    """CUDA source, given as such or by its file.

    Raises:
        InputError: The file cannot be read.
    """
    if not isinstance(what, Path) and not _is_file_name(str(what)):
        return str(what)
    try:
        return Path(str(what).strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"CUDA source is a text or a file that can be read, got {what}: {error}") from error
