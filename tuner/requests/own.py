"""A kernel of a user's own, given as CUDA text or as a Python function with arguments: what declares it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy

from tuner.declare.cuda_signature import Taken, callable_from_c, taken_by
from tuner.declare.python_source import Module, definition, njit, reference_of, unwrapped
from tuner.declare.shapes import Given, shapes_of
from tuner.declare.space import Parameter
from tuner.declare.writing import Own, Reference
from tuner.errors import InputError, UnknownName
from tuner.requests.arguments import described, named, on_host, with_outputs

#: Parameter that sets the number of Numba's threads.
THREADS = "THREADS"
#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")
#: Names of Kernel Tuner for the threads of a block, and for what divides the grid.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
GRID_DIVISORS = ("grid_div_x", "grid_div_y", "grid_div_z")


@dataclass(frozen=True)
class Code:
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


def read_code(what: object, name: str, params: object) -> Code:
    """The code that a user gave: CUDA text with the name of a function in it, or a Python function.

    Raises:
        DeclarationError: It cannot be read.
        InputError: Parameters without values, or that the function does not take.
    """
    parameters = _parameters(params)
    if isinstance(what, str):
        if not name:
            raise InputError(
                'CUDA text goes with the name of its function, got none; tune(source, "name", ...)'
            )
        taken = taken_by(what, name)
        return Code(name, "cuda", tuple(each.name for each in taken), what, None, parameters, {})
    inner, _ = unwrapped(what)
    if not callable(inner):
        raise InputError(
            f"what is tuned is a problem in words, a file, CUDA text or a function, got {type(what).__name__}"
        )
    signature = inspect.signature(inner).parameters
    takes = tuple(each for each in signature if each not in parameters)
    values = {each: signature[each].default for each in parameters if each in signature}
    defaults = {each: value for each, value in values.items() if value in parameters[each]}
    return Code(name or inner.__name__, "cpu", takes, "", what, parameters, defaults)


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


def declared(code: Code, arguments: object, options: Mapping[str, Any]) -> Own:
    """The declaration of a kernel for arguments like these.

    Args:
        code: The kernel.
        arguments: Arrays and numbers, by name or in order.
        options: What `tuner.tune` takes of `OwnOptions`.

    Raises:
        InputError: The arguments do not suit the kernel, or leave something open; the message says what.
        DeclarationError: Something that was given as text or function cannot be read.
    """
    values = named(arguments, code.takes, code.name)
    taken = {each.name: each for each in (taken_by(code.text, code.name) if code.text else ())}
    given = [described(name, value, _dtype(taken.get(name))) for name, value in values.items()]
    for each in given:
        _check_type(each, taken.get(each.name))
    given = list(with_outputs(given, _outputs(code, taken, options, values)))
    shapes = shapes_of(given, options.get("shapes") or {})
    own = Own(
        code.name, code.target, source_of(code, given), tuple(given), shapes, code.parameters,
        tuple(options.get("restrictions") or ()), more=_more(code, options),
    )  # fmt: skip
    own = _with_reference(own, code, values, options)
    return replace(own, launch=launch_of(own, options)) if code.target == "cuda" else own


def _dtype(taken: Taken | None) -> str:
    return taken.dtype if taken is not None and not taken.pointer else ""


def _check_type(given: Given, taken: Taken | None) -> None:
    """An array of another dtype would be read as what it is not."""
    if taken is None:
        return
    if taken.pointer != (given.shape is not None):
        wanted = "an array" if taken.pointer else "a number"
        raise InputError(f"{given.name} is {wanted} in the source, and another thing was passed; pass {wanted}")
    if taken.dtype and taken.pointer and taken.dtype != given.dtype:
        raise InputError(
            f"{given.name} is {taken.dtype} in the source, got an array of {given.dtype}; convert one of them"
        )


def _outputs(
    code: Code, taken: Mapping[str, Taken], options: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the arrays that the kernel writes."""
    told = options.get("outputs")
    if told:
        return (told,) if isinstance(told, str) else tuple(told)
    answers = _answers(options.get("answer"), list(values), ())
    if answers:
        return tuple(answers)
    if taken:
        return tuple(name for name, each in taken.items() if each.written)
    return _written_by(code.function, code.takes)


def _written_by(function: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Arguments to whose elements a function assigns.

    Raises:
        InputError: It also reads one of them: outputs hold NaN before a run.
    """
    node = definition(unwrapped(function)[0])
    written: dict[str, None] = {}
    for each in ast.walk(node):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                written[target.value.id] = None
    return tuple(name for name in names if name in written)


def _more(code: Code, options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: options[name] for name in ("terms", "flops") if name in options}
    threads = THREADS if code.target == "cpu" and THREADS in code.parameters else ""
    return found | {"threads": threads, "defaults": {**code.defaults, **(options.get("defaults") or {})}}


def source_of(code: Code, given: Sequence[Given]) -> str:
    """The source of a kernel as a file of its own."""
    if code.text:
        return callable_from_c(code.text, code.name)
    inner, options = unwrapped(code.function)
    node = definition(inner)
    _without(node, code.parameters)
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


def _without(node: ast.FunctionDef, parameters: Mapping[str, object]) -> None:
    """Leaves a function's parameters out of what it takes, and all annotations."""
    args = node.args
    every = [*args.posonlyargs, *args.args]
    kept = [each for each in every if each.arg not in parameters]
    for each in kept:
        each.annotation = None
    node.args = ast.arguments([], kept, None, [], [], None, [])
    node.returns, node.decorator_list = None, []


def _entry(code: Code, order: Sequence[str]) -> str:
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


def _with_reference(own: Own, code: Code, values: Mapping[str, Any], options: Mapping[str, Any]) -> Own:
    """The declaration with what is right, the library, and the author's own numbers where they are needed."""
    mode = options.get("inputs") or "drawn"
    if mode not in INPUTS:
        raise UnknownName("way to draw inputs", mode, INPUTS)
    reference, answer = options.get("reference"), options.get("answer")
    outputs = tuple(each.name for each in own.tensors if each.output)
    if reference is not None:
        found = _read_reference(own, reference, "its_reference")
    elif answer is not None:
        kept = {f"answer:{name}": each for name, each in _answers(answer, list(values), outputs).items()}
        return _with_inputs(replace(own, arrays=kept), values, "given")
    elif code.function is not None:
        found = _itself(own, code)
    else:
        raise InputError(
            "each config is compared with what is right, and nothing tells that; give reference=, a function "
            "of NumPy arrays, or answer=, an array"
        )
    own = replace(own, reference=found, more={**own.more, "library": _library(own, code, options)})
    return _with_inputs(own, values, mode)


def _with_inputs(own: Own, values: Mapping[str, Any], mode: str) -> Own:
    """Keeps the author's own numbers: all of them, or those that chance could not replace, such as indices."""
    kept = {
        each.name: on_host(values[each.name])
        for each in own.tensors
        if not each.output and (mode != "drawn" or not each.dtype.startswith("float"))
    }
    return replace(own, inputs=mode, arrays={**own.arrays, **kept})


def _answers(answer: Any, names: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
    """Output -> its right numbers; names alone count where outputs are not known yet."""
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        found = dict(answer)
    elif isinstance(answer, list | tuple) and len(answer) == len(names):
        found = {name: each for name, each in zip(names, answer, strict=True) if each is not None}
    elif not outputs:
        return {}
    elif len(outputs) == 1:
        found = {outputs[0]: answer}
    else:
        raise InputError(f"answer= has an array for each of {', '.join(outputs)}; give them by name")
    return {name: on_host(each).astype("float64") for name, each in found.items()}


def _read_reference(own: Own, function: Callable[..., Any], name: str) -> Reference:
    if not callable(function):
        raise InputError(
            f"reference= is a function of the inputs, got {type(function).__name__}; an array goes to answer="
        )
    module = Module()
    reference_of(function, module, name)
    if unwrapped(function)[1] is not None:
        module.lines.insert(0, "import numba")
    takes = _takes(own, function)
    outputs = [each.name for each in own.tensors if each.output]
    return Reference(module.text, name, takes, writes=any(each in outputs for each in takes))


def _takes(own: Own, function: Callable[..., Any]) -> tuple[str, ...]:
    """Arguments of the kernel that a function takes: by their names, or else the inputs in order."""
    every = [each.name for each in own.arguments]
    inputs = [each.name for each in own.tensors if not each.output]
    try:
        signature = inspect.signature(unwrapped(function)[0]).parameters.values()
    except (TypeError, ValueError):
        return tuple(inputs)
    positional = [each for each in signature if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    names = [each.name for each in positional if each.name in every or each.default is each.empty]
    if names and set(names) <= set(every):
        return tuple(names)
    scalars = [each.name for each in own.scalars]
    needed = sum(each.default is each.empty for each in positional)
    for given in (inputs, [*inputs, *scalars]):
        if needed <= len(given) <= len(positional) or any(
            each.kind is each.VAR_POSITIONAL for each in signature
        ):
            return tuple(given)
    raise InputError(
        f"a reference takes the kernel's inputs ({', '.join(inputs)}), maybe its numbers, by their names or in "
        f"this order; {getattr(function, '__name__', function)} takes "
        f"{', '.join(each.name for each in positional)}"
    )


def _itself(own: Own, code: Code) -> Reference:
    """The function at its first config, in float64: what it computes must not depend on its parameters."""
    inner, options = unwrapped(code.function)
    node = definition(inner)
    _without(node, code.parameters)
    node.name = "its_own_result"
    first = {name: {**own.more["defaults"]}.get(name, values[0]) for name, values in own.parameters.items()}
    module = Module(frozenset(own.parameters))
    fast = {name: value for name, value in (options or {}).items() if name not in ("parallel", "fastmath")}
    module.add_node(node, inner, njit(fast).replace("cache=True", "cache=False"))
    text = "\n".join(["import numba", *(f"{name} = {value!r}" for name, value in first.items()), module.text])
    return Reference(text, "its_own_result", code.takes, writes=True)


def _library(own: Own, code: Code, options: Mapping[str, Any]) -> tuple[str, Reference] | None:
    """Name and code of what is timed beside the kernel; None for nothing."""
    told, reference = options.get("library", "reference"), options.get("reference")
    if callable(told):
        return getattr(told, "__name__", "library"), _read_reference(own, told, "its_library")
    if told == "reference" and reference is not None and code.target == "cpu":
        compiled = unwrapped(reference)[1] is not None
        return ("reference" if compiled else "NumPy"), _read_reference(own, reference, "its_library")
    return None


def launch_of(own: Own, options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Grid, block and shared memory as expressions; by Kernel Tuner's names where nothing else is said.

    Raises:
        InputError: Nothing tells the block or the grid.
    """
    found = {
        name: _texts(options[name])
        for name in ("grid", "block", "shared_bytes")
        if options.get(name) is not None
    }
    if "block" not in found:
        found["block"] = tuple(name for name in BLOCK_SIZES if name in own.parameters)
    if not found["block"]:
        raise InputError(
            f"a block has a size, got no block= and no parameter named {BLOCK_SIZES[0]}; give e.g. "
            'block="BLOCK"'
        )
    if "grid" not in found:
        found["grid"] = _grid(own, options)
    return found


def _texts(told: object) -> tuple[str, ...]:
    return tuple(map(str, told)) if isinstance(told, tuple | list) else (str(told),)


def _grid(own: Own, options: Mapping[str, Any]) -> tuple[str, ...]:
    """``problem_size`` over ``grid_div_x`` and the like, as Kernel Tuner has it."""
    size = options.get("problem_size")
    if size is None:
        raise InputError(
            'a launch has a grid, got neither grid= nor problem_size=; give e.g. grid="ceil_div(n, BLOCK)"'
        )
    found = []
    for axis, extent in enumerate(_texts(size)):
        divisors = options.get(GRID_DIVISORS[axis])
        if divisors is None:
            divisors = [BLOCK_SIZES[axis]] if BLOCK_SIZES[axis] in own.parameters else []
        named = [name for name, value in own.shapes.sizes.items() if extent == str(value)]
        whole = named[0] if len(named) == 1 else extent
        product = " * ".join(f"({each})" for each in _texts(divisors)) if divisors else "1"
        found.append(f"ceil_div({whole}, {product})")
    return tuple(found)


def is_cuda(text: str) -> bool:
    """True for CUDA source rather than a problem in words or a path."""
    return re.search(r"__global__", text) is not None
