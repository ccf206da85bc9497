"""A kernel of a user's own, given as CUDA text or as a Python function with arguments: what declares it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from tuner.declare.catalogue import from_file
from tuner.declare.language import source_language
from tuner.declare.own import OwnKernel, Reference, write
from tuner.declare.own_source import (
    Module,
    Taken,
    callable_from_c,
    definition,
    njit,
    reference_of,
    taken_by,
    unwrapped,
)
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.shapes import KernelArgument, shapes_of
from tuner.declare.space import Parameter
from tuner.devices.detect import kind_of
from tuner.devices.settings import cache_root, cache_trouble
from tuner.errors import InputError, UnknownName
from tuner.python.arrays import is_array, operand_of

#: Parameter that sets the number of Numba's threads.
THREADS = "THREADS"
#: Endings of files of CUDA source.
CUDA_FILES = (".cu", ".cuh")
#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")
#: Names of Kernel Tuner for the threads of a block, and for what divides the grid.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
GRID_DIVISORS = ("grid_div_x", "grid_div_y", "grid_div_z")
#: What of a launch is said by expressions.
LAUNCH = ("grid", "block", "shared_bytes")
#: Python's and NumPy's kinds of numbers -> dtype of a scalar argument.
_KINDS = {"i": "int64", "u": "int64", "b": "int64", "f": "float64"}
_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


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
        text = _cuda_text(what)
        if not name:
            raise InputError(
                'CUDA text goes with the name of its function, got none; tune(source, "name", ...)'
            )
        takes = tuple(argument.name for argument in taken_by(text, name))
        return KernelCode(name, "cuda", takes, text, None, parameters, {})
    inner, _ = unwrapped(what)
    if not callable(inner):
        raise InputError(
            f"what is tuned is a problem in words, a file, CUDA text or a function, got {type(what).__name__}"
        )
    signature = inspect.signature(inner).parameters
    takes = tuple(argument for argument in signature if argument not in parameters)
    values = {parameter: signature[parameter].default for parameter in parameters if parameter in signature}
    defaults = {parameter: value for parameter, value in values.items() if value in parameters[parameter]}
    return KernelCode(name or inner.__name__, "cpu", takes, "", what, parameters, defaults)


def _parameters(params: object) -> dict[str, tuple[Any, ...]]:
    if isinstance(params, Sequence) and all(isinstance(choice, Parameter) for choice in params):
        params = {choice.name: choice.values for choice in params}
    if not isinstance(params, Mapping) or not params:
        raise InputError(
            'a kernel is tuned by its parameters, got none; give e.g. params={"BLOCK": [64, 128, 256]}'
        )
    for name, values in params.items():
        if isinstance(values, str) or not isinstance(values, Sequence | numpy.ndarray) or not len(values):
            raise InputError(f"a parameter has a list of values, {name} has {values!r}; give e.g. [1, 2, 4]")
    return {
        str(name): tuple(value.item() if isinstance(value, numpy.generic) else value for value in values)
        for name, values in params.items()
    }


def is_cuda(what: str | Path) -> bool:
    """True for CUDA source or its file, rather than a problem in words or a file of declarations."""
    return "__global__" in str(what) or _is_cuda_file(str(what))


def _is_cuda_file(text: str) -> bool:
    return "\n" not in text and text.strip().endswith(CUDA_FILES)


def _cuda_text(what: str | Path) -> str:
    """CUDA source, given as such or by its file."""
    if isinstance(what, str) and not _is_cuda_file(what):
        return what
    try:
        return Path(str(what).strip()).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"CUDA source is a text or a file that can be read, got {what}: {error}") from error


def own_problem(code: KernelCode, arguments: object, options: Mapping[str, Any]) -> Problem:
    """Writes the declaration of a kernel for arguments like these, and returns its problem.

    Raises:
        InputError: The arguments do not suit the kernel, or leave something open.
        EnvironmentTrouble: The folder of caches cannot be written.
    """
    own = declared(code, arguments, options)
    try:
        file = write(own, cache_root() / "declared")
    except OSError as error:
        raise cache_trouble(error) from error
    return from_file(file).operation(own.name).problem(dict(own.sizes))


def declared(code: KernelCode, arguments: object, options: Mapping[str, Any]) -> OwnKernel:
    """The declaration of a kernel for arguments like these.

    Args:
        code: The kernel.
        arguments: Arrays and numbers, by name or in order.
        options: What `tuner.tune` takes of `OwnOptions`.

    Raises:
        InputError: The arguments do not suit the kernel, or leave something open; the message says what.
        DeclarationError: Something that was given as text or function cannot be read.
    """
    _check_used(code, options)
    in_order, by_name = ((), arguments) if isinstance(arguments, Mapping) else (arguments, {})
    in_order = in_order if isinstance(in_order, Sequence) else (in_order,)
    values, numbers = named(code.takes, code.name, *in_order, **by_name), free_numbers(code, options)
    taken = {argument.name: argument for argument in (taken_by(code.text, code.name) if code.text else ())}
    given = [
        replace(described(name, value, taken.get(name)), free=name in numbers) for name, value in values.items()
    ]
    outputs = _outputs(code, taken, options, values)
    _check_outputs(outputs, [argument.name for argument in given if argument.shape is not None])
    given = [replace(argument, output=argument.name in outputs) for argument in given]
    sizes, shapes = shapes_of(given, options.get("shapes") or {})
    has_launch = source_language(code.target).has_launch
    own = OwnKernel(
        code.name, code.target, source_of(code, given), tuple(given), sizes, shapes, code.parameters,
        _rules(options.get("restrictions")),
        terms=str(options.get("terms", 1)), flops=str(options.get("flops", 0)),
        defaults={**code.defaults, **(options.get("defaults") or {})},
        threads=THREADS if not has_launch and THREADS in code.parameters else "",
    )  # fmt: skip
    own = _with_reference(own, code, values, options)
    return replace(own, launch=_launch(own, options)) if has_launch else own


def named(names: Sequence[str], function: str, *arguments: Any, **by_name: Any) -> dict[str, Any]:
    """Arguments by name.

    Args:
        names: What the function takes, in order.
        function: Its name, for messages.
        arguments: In the order of the names.
        by_name: Those that are given by name.

    Raises:
        InputError: Some are missing, or too many.
    """
    signature = inspect.Signature([inspect.Parameter(name, _POSITIONAL) for name in names])
    try:
        return signature.bind(*arguments, **by_name).arguments
    except TypeError as error:
        raise InputError(
            f"{function} takes {len(names)} arguments ({', '.join(names)}), got "
            f"{len(arguments) + len(by_name)}: {error}; give one for each, parameters left out"
        ) from None


def described(name: str, value: Any, taken: Taken | None = None) -> KernelArgument:
    """An argument in words.

    Args:
        name: Its name.
        value: An array or a number.
        taken: What CUDA source takes in its place; None for a function of Python.

    Raises:
        InputError: It is neither, its dtype is not for kernels, or the source takes something else.
    """
    number = isinstance(value, bool | int | float | numpy.generic)
    kind = numpy.asarray(value).dtype.kind if number else ""
    if not (kind in _KINDS if number else is_array(value)):
        raise InputError(
            "an argument is an array (NumPy, CuPy, PyTorch, or one that speaks DLPack) or a number, "
            f"{name} is {type(value).__name__}; pass one of these"
        )
    if taken is not None and taken.pointer == number:
        wanted = "an array" if taken.pointer else "a number"
        raise InputError(f"{name} is {wanted} in the source, and another thing was passed; pass {wanted}")
    wanted = taken.dtype if taken is not None else ""
    if number:
        plain = value.item() if isinstance(value, numpy.generic) else value
        if kind == "f" and wanted.startswith("int"):
            raise InputError(f"{name} is a whole number in the source, got {plain}; pass one")
        own = wanted or (str(value.dtype) if isinstance(value, numpy.floating) else _KINDS[kind])
        return KernelArgument(name, _allowed(name, own), None, float(plain) if kind == "f" else int(plain))
    operand = operand_of(value)
    dtype = _allowed(name, operand.dtype)
    if wanted and wanted != dtype:
        raise InputError(f"{name} is {wanted} in the source, got an array of {dtype}; convert one of them")
    return KernelArgument(name, dtype, tuple(int(size) for size in operand.shape))


def _allowed(name: str, dtype: str) -> str:
    if dtype not in DTYPE_BYTES:
        raise InputError(f"an argument is of {', '.join(DTYPE_BYTES)}, {name} is {dtype}; convert it")
    return dtype


def _texts(given: object) -> tuple[str, ...]:
    """One thing, or several, as texts."""
    if given is None:
        return ()
    return tuple(map(str, given)) if isinstance(given, tuple | list) else (str(given),)


def free_numbers(code: KernelCode, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the whole numbers that are no sizes.

    Raises:
        InputError: The kernel takes no such argument.
    """
    names = _texts(options.get("numbers"))
    for name in names:
        if name not in code.takes:
            raise InputError(f"numbers= names arguments ({', '.join(code.takes)}), got {name!r}; correct it")
    return names


def _rules(restrictions: object) -> tuple[str, ...]:
    for rule in restrictions if isinstance(restrictions, tuple | list) else (restrictions or "",):
        if not isinstance(rule, str):
            raise InputError(
                f'a restriction is a text such as "BLOCK <= n", got {type(rule).__name__}; write it as one, or '
                "as a Constraint in a file"
            )
    return _texts(restrictions or None)


def _check_used(code: KernelCode, options: Mapping[str, Any]) -> None:
    """Refuses parameters that nothing uses: each of their values would be tried in vain."""
    source = code.text or _module(code, code.name, {}).text
    beside = (options.get(name) for name in ("restrictions", *LAUNCH, *GRID_DIVISORS))
    words = set(re.findall(r"\w+", " ".join([source, *map(str, beside)])))
    for name in code.parameters:
        if name not in words | {THREADS, *BLOCK_SIZES}:
            capitals = sorted(word for word in words if word.isupper())
            nearest = difflib.get_close_matches(name, capitals, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else "; correct its name, or leave it out"
            raise InputError(f"neither {code.name} nor its launch uses the parameter {name!r}{hint}")


def _outputs(
    code: KernelCode, taken: Mapping[str, Taken], options: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the arrays that the kernel writes."""
    known = _texts(options.get("outputs")) or tuple(_answers(options.get("answer"), list(values), ()))
    if known:
        return known
    if taken:
        return tuple(name for name, argument in taken.items() if argument.written)
    # Arguments to whose elements a function assigns.
    written = set()
    for node in ast.walk(definition(unwrapped(code.function)[0])):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            array = node.value
            while isinstance(array, ast.Subscript):
                array = array.value
            written.add(getattr(array, "id", ""))
    return tuple(name for name in code.takes if name in written)


def _check_outputs(outputs: Sequence[str], arrays: Sequence[str]) -> None:
    for name in outputs:
        if name not in arrays:
            raise InputError(f"outputs= names arrays ({', '.join(arrays)}), got {name!r}; correct it")
    if not outputs:
        raise InputError(
            f"a kernel writes an array, and nothing tells which of {', '.join(arrays) or 'none'}; name it by "
            "outputs="
        )


def source_of(code: KernelCode, given: Sequence[KernelArgument]) -> str:
    """The source of a kernel as a file of its own, whose function takes arrays before numbers."""
    if code.text:
        return callable_from_c(code.text, code.name)
    order = [argument.name for argument in sorted(given, key=lambda argument: argument.shape is None)]
    plain = order == list(code.takes) and THREADS not in code.parameters
    _, options = unwrapped(code.function)
    module = _module(code, code.name if plain else f"_{code.name}", options or {})
    module.lines.insert(0, "import numba")
    return module.text if plain else module.text + _entry(code, order)


def _module(code: KernelCode, name: str, options: Mapping[str, Any], itself: bool = False) -> Module:
    """A function of Python without its parameters, under a name, with all that it uses.

    Args:
        code: The function.
        name: Its name.
        options: Numba's.
        itself: True for what the kernel is held against: neither parallel nor cached.
    """
    inner, _ = unwrapped(code.function)
    node = definition(inner)
    kept = [
        argument
        for argument in (*node.args.posonlyargs, *node.args.args)
        if argument.arg not in code.parameters
    ]
    for argument in kept:
        argument.annotation = None
    node.name, node.args, node.returns = name, ast.arguments([], kept, None, [], [], None, []), None
    node.decorator_list = []
    if itself:
        decorator = njit(options).replace("cache=True", "cache=False")
    else:
        names = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}
        options = {"nogil": True, "parallel": "prange" in names, **options}
        decorator = njit(options)
        if THREADS in code.parameters and options["parallel"]:
            decorator = decorator.replace("parallel=True", f"parallel={THREADS} > 1")
    module = Module(frozenset(code.parameters))
    module.add_node(node, inner, decorator)
    return module


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


def _with_reference(
    own: OwnKernel, code: KernelCode, values: Mapping[str, Any], options: Mapping[str, Any]
) -> OwnKernel:
    """The declaration with what is right, the library, and the author's own numbers where they are needed."""
    mode, reference, answer = options.get("inputs") or "drawn", options.get("reference"), options.get("answer")
    if mode not in INPUTS:
        raise UnknownName("way to draw inputs", mode, INPUTS)
    if reference is None and answer is None and code.function is None:
        raise InputError(
            "each config is compared with what is right, and nothing tells that; give reference=, a function "
            "of NumPy arrays, or answer=, an array"
        )
    if reference is None and answer is not None:
        answers, mode = _answers(answer, list(values), own.outputs), "given"
        own = replace(own, arrays={f"answer:{name}": array for name, array in answers.items()})
    else:
        right = _itself(own, code) if reference is None else _read_reference(own, reference, "its_reference")
        name, library = _library(own, code, options)
        own = replace(own, reference=right, library_name=name, library=library)
    # All of the author's numbers are kept, or those that chance could not replace, such as indices.
    kept = {
        tensor.name: on_host(values[tensor.name])
        for tensor in own.tensors
        if not tensor.output and (mode != "drawn" or not tensor.dtype.startswith("float"))
    }
    return replace(own, inputs=mode, arrays={**own.arrays, **kept})


def on_host(array: Any) -> numpy.ndarray[Any, Any]:
    """A NumPy array with an array's numbers."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    elif hasattr(array, "get"):
        array = array.get()
    known = isinstance(array, numpy.ndarray) or hasattr(array, "__array__")
    return numpy.ascontiguousarray(array if known else numpy.from_dlpack(array))


def _answers(answer: Any, names: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    """Output -> its right numbers; names alone count where outputs are not known yet."""
    if isinstance(answer, Mapping):
        answers = dict(answer)
    elif isinstance(answer, list | tuple) and len(answer) == len(names):
        answers = {name: array for name, array in zip(names, answer, strict=True) if array is not None}
    elif answer is None or not outputs:
        return {}
    elif len(outputs) == 1:
        answers = {outputs[0]: answer}
    else:
        raise InputError(f"answer= has an array for each of {', '.join(outputs)}; give them by name")
    return {name: on_host(array).astype("float64") for name, array in answers.items()}


def _itself(own: OwnKernel, code: KernelCode) -> Reference:
    """The function at its first config, in float64: what it computes must not depend on its parameters."""
    first = {name: own.defaults.get(name, values[0]) for name, values in own.parameters.items()}
    _, options = unwrapped(code.function)
    fast = {name: value for name, value in (options or {}).items() if name not in ("parallel", "fastmath")}
    module = _module(code, "its_own_result", fast, itself=True)
    text = "\n".join(["import numba", *(f"{name} = {value!r}" for name, value in first.items()), module.text])
    return Reference(text, "its_own_result", code.takes, writes=True)


def _library(own: OwnKernel, code: KernelCode, options: Mapping[str, Any]) -> tuple[str, Reference | None]:
    """Name and code of what is timed beside the kernel; None for nothing."""
    library, reference = options.get("library", "reference"), options.get("reference")
    if callable(library):
        return getattr(library, "__name__", "library"), _read_reference(own, library, "its_library")
    if library == "reference" and reference is not None and kind_of(code.target).is_host:
        name = "NumPy" if unwrapped(reference)[1] is None else "reference"
        return name, _read_reference(own, reference, "its_library")
    return "", None


def _read_reference(own: OwnKernel, function: Callable[..., Any], name: str) -> Reference:
    if not callable(function):
        raise InputError(
            f"reference= is a function of the inputs, got {type(function).__name__}; an array goes to answer="
        )
    module = Module()
    reference_of(function, module, name)
    if unwrapped(function)[1] is not None:
        module.lines.insert(0, "import numba")
    takes = _takes(own, function)
    return Reference(module.text, name, takes, writes=any(name in own.outputs for name in takes))


def _takes(own: OwnKernel, function: Callable[..., Any]) -> tuple[str, ...]:
    """Arguments of the kernel that a function takes: by their names, or else the inputs in order."""
    every = {argument.name for argument in own.arguments}
    inputs = [tensor.name for tensor in own.tensors if not tensor.output]
    try:
        signature = inspect.signature(unwrapped(function)[0])
    except (TypeError, ValueError):
        return tuple(inputs)
    positional = [
        each for each in signature.parameters.values() if each.kind in (each.POSITIONAL_ONLY, _POSITIONAL)
    ]
    names = [each.name for each in positional if each.name in every or each.default is each.empty]
    if names and set(names) <= every:
        return tuple(names)
    for given in (inputs, [*inputs, *(scalar.name for scalar in own.scalars)]):
        with contextlib.suppress(TypeError):
            signature.bind(*given)
            return tuple(given)
    raise InputError(
        f"a reference takes the kernel's inputs ({', '.join(inputs)}), maybe its numbers, by their names or in "
        f"this order; {getattr(function, '__name__', function)} takes "
        f"{', '.join(each.name for each in positional)}"
    )


def _launch(own: OwnKernel, options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Grid, block and shared memory as expressions; by Kernel Tuner's names where nothing else is said.

    Raises:
        InputError: Nothing tells the block or the grid.
    """
    launch = {name: _texts(options[name]) for name in LAUNCH if options.get(name) is not None}
    block = launch.setdefault("block", tuple(name for name in BLOCK_SIZES if name in own.parameters))
    if not block:
        raise InputError(
            f"a block has a size, got no block= and no parameter named {BLOCK_SIZES[0]}; give e.g. "
            'block="BLOCK"'
        )
    if "grid" not in launch:
        launch["grid"] = _grid(own, options)
    return launch


def _grid(own: OwnKernel, options: Mapping[str, Any]) -> tuple[str, ...]:
    """``problem_size`` over ``grid_div_x`` and the like, as Kernel Tuner has it."""
    size, grid = options.get("problem_size"), []
    if size is None:
        raise InputError(
            'a launch has a grid, got neither grid= nor problem_size=; give e.g. grid="ceil_div(n, BLOCK)"'
        )
    for extent, block, divisor in zip(_texts(size), BLOCK_SIZES, GRID_DIVISORS, strict=False):
        divisors = options.get(divisor)
        if divisors is None:
            divisors = [block] if block in own.parameters else []
        names = [name for name, value in own.sizes.items() if extent == str(value)]
        product = " * ".join(f"({each})" for each in _texts(divisors)) or "1"
        grid.append(f"ceil_div({names[0] if len(names) == 1 else extent}, {product})")
    return tuple(grid)
