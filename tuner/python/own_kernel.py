"""A kernel of a user's own, given as CUDA text or as a Python function with arguments: what declares it."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.declare.catalogue import from_file
from tuner.declare.language import source_language
from tuner.declare.own import OwnKernel, Reference, write
from tuner.declare.own_source import Module, Taken, definition, njit, reference_of, taken_by, unwrapped
from tuner.declare.problem import Problem
from tuner.declare.shapes import KernelArgument, shapes_of
from tuner.devices.detect import kind_of
from tuner.devices.settings import cache_root, cache_trouble
from tuner.errors import InputError, UnknownName
from tuner.python.code import THREADS, KernelCode, source_of, without
from tuner.python.running import described, named, on_host, with_outputs

#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")


def with_reference(
    own: OwnKernel, code: KernelCode, values: Mapping[str, Any], options: Mapping[str, Any]
) -> OwnKernel:
    """The declaration with what is right, the library, and the author's own numbers where they are needed."""
    mode = options.get("inputs") or "drawn"
    if mode not in INPUTS:
        raise UnknownName("way to draw inputs", mode, INPUTS)
    reference, answer = options.get("reference"), options.get("answer")
    if reference is not None:
        found = _read_reference(own, reference, "its_reference")
    elif answer is not None:
        kept = {f"answer:{name}": each for name, each in answers(answer, list(values), own.outputs).items()}
        return _with_inputs(replace(own, arrays=kept), values, "given")
    elif code.function is not None:
        found = _itself(own, code)
    else:
        raise InputError(
            "each config is compared with what is right, and nothing tells that; give reference=, a function "
            "of NumPy arrays, or answer=, an array"
        )
    name, library = _library(own, code, options)
    return _with_inputs(replace(own, reference=found, library_name=name, library=library), values, mode)


def _with_inputs(own: OwnKernel, values: Mapping[str, Any], mode: str) -> OwnKernel:
    """Keeps the author's own numbers: all of them, or those that chance could not replace, such as indices."""
    kept = {
        each.name: on_host(values[each.name])
        for each in own.tensors
        if not each.output and (mode != "drawn" or not each.dtype.startswith("float"))
    }
    return replace(own, inputs=mode, arrays={**own.arrays, **kept})


def answers(answer: Any, names: Sequence[str], outputs: Sequence[str]) -> dict[str, Any]:
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


def _itself(own: OwnKernel, code: KernelCode) -> Reference:
    """The function at its first config, in float64: what it computes must not depend on its parameters."""
    inner, options = unwrapped(code.function)
    node = definition(inner)
    without(node, code.parameters)
    node.name = "its_own_result"
    first = {name: own.defaults.get(name, values[0]) for name, values in own.parameters.items()}
    module = Module(frozenset(own.parameters))
    fast = {name: value for name, value in (options or {}).items() if name not in ("parallel", "fastmath")}
    module.add_node(node, inner, njit(fast).replace("cache=True", "cache=False"))
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


#: Names of Kernel Tuner for the threads of a block, and for what divides the grid.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
GRID_DIVISORS = ("grid_div_x", "grid_div_y", "grid_div_z")


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
    if code.function is not None:
        _check_used(code, ast.unparse(definition(unwrapped(code.function)[0])), options, later=True)
    values = named(arguments, code.takes, code.name)
    taken = {each.name: each for each in (taken_by(code.text, code.name) if code.text else ())}
    given = [described(name, value, _dtype(taken.get(name))) for name, value in values.items()]
    given = [replace(each, free=each.name in free_numbers(code, options)) for each in given]
    for each in given:
        _check_type(each, taken.get(each.name))
    given = list(with_outputs(given, _outputs(code, taken, options, values)))
    sizes, shapes = shapes_of(given, options.get("shapes") or {})
    has_launch = source_language(code.target).has_launch
    own = OwnKernel(
        code.name, code.target, source_of(code, given), tuple(given), sizes, shapes, code.parameters,
        _rules(options.get("restrictions") or ()),
        terms=str(options.get("terms", 1)), flops=str(options.get("flops", 0)),
        defaults={**code.defaults, **(options.get("defaults") or {})},
        threads=THREADS if not has_launch and THREADS in code.parameters else "",
    )  # fmt: skip
    _check_used(code, own.source, options)
    own = with_reference(own, code, values, options)
    return replace(own, launch=launch_of(own, options)) if has_launch else own


def _check_used(code: KernelCode, source: str, options: Mapping[str, Any], later: bool = False) -> None:
    """Refuses parameters that nothing uses: each of their values would be tried in vain.

    Args:
        code: The kernel.
        source: Where its parameters are used, beside its launch and restrictions.
        options: What `tuner.tune` takes of `OwnOptions`.
        later: True if more of the source is read later: only what looks like a slip is refused.

    Raises:
        InputError: A parameter is not used.
    """
    beside = ("restrictions", "grid", "block", "shared_bytes", *GRID_DIVISORS)
    words = set(re.findall(r"\w+", " ".join([source, *(str(options.get(name)) for name in beside)])))
    used = words | {THREADS, *BLOCK_SIZES}
    known = [name for name in (*code.parameters, *code.takes) if name in used and name.isupper()]
    slips = not later or any(name not in code.parameters for name in known)
    for name in code.parameters:
        if slips and name not in used:
            capitals = {*known, *(word for word in words if word.isupper() and code.text)}
            nearest = difflib.get_close_matches(name, sorted(capitals), n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]}?" if nearest else "; correct its name, or leave it out"
            raise InputError(f"neither {code.name} nor its launch uses the parameter {name!r}{hint}")


def free_numbers(code: KernelCode, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the whole numbers that are no sizes.

    Raises:
        InputError: The kernel takes no such argument.
    """
    told = options.get("numbers") or ()
    names = (told,) if isinstance(told, str) else tuple(told)
    for name in names:
        if name not in code.takes:
            raise InputError(f"numbers= names arguments ({', '.join(code.takes)}), got {name!r}; correct it")
    return names


def _rules(told: object) -> tuple[str, ...]:
    """Restrictions as texts.

    Raises:
        InputError: One is something else.
    """
    rules = (told,) if isinstance(told, str) or not isinstance(told, Sequence) else tuple(told)
    for each in rules:
        if not isinstance(each, str):
            raise InputError(
                f'a restriction is a text such as "BLOCK <= n", got {type(each).__name__}; write it as one, or '
                "as a Constraint in a file"
            )
    return tuple(map(str, rules))


def _dtype(taken: Taken | None) -> str:
    return taken.dtype if taken is not None and not taken.pointer else ""


def _check_type(given: KernelArgument, taken: Taken | None) -> None:
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
    code: KernelCode, taken: Mapping[str, Taken], options: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the arrays that the kernel writes."""
    told = options.get("outputs")
    if told:
        return (told,) if isinstance(told, str) else tuple(told)
    known = answers(options.get("answer"), list(values), ())
    if known:
        return tuple(known)
    if taken:
        return tuple(name for name, each in taken.items() if each.written)
    return _written_by(code.function, code.takes)


def _written_by(function: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Arguments to whose elements a function assigns."""
    written = set()
    for each in ast.walk(definition(unwrapped(function)[0])):
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store):
            array = each.value
            while isinstance(array, ast.Subscript):
                array = array.value
            written.add(getattr(array, "id", ""))
    return tuple(name for name in names if name in written)


def launch_of(own: OwnKernel, options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
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


def _grid(own: OwnKernel, options: Mapping[str, Any]) -> tuple[str, ...]:
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
        named = [name for name, value in own.sizes.items() if extent == str(value)]
        whole = named[0] if len(named) == 1 else extent
        product = " * ".join(f"({each})" for each in _texts(divisors)) if divisors else "1"
        found.append(f"ceil_div({whole}, {product})")
    return tuple(found)


def own_problem(code: KernelCode, arguments: object, options: Mapping[str, Any]) -> tuple[OwnKernel, Problem]:
    """Writes the declaration of a kernel for arguments like these, and returns it with its problem.

    Raises:
        InputError: The arguments do not suit the kernel, or leave something open.
        EnvironmentTrouble: The folder of caches cannot be written.
    """
    own = declared(code, arguments, options)
    try:
        file = write(own, cache_root() / "declared")
    except OSError as error:
        raise cache_trouble(error) from error
    return own, from_file(file).operation(own.name).problem(dict(own.sizes))
