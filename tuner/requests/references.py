"""What is right, and what a kernel is timed beside: read from what a user gave, or from the kernel itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.declare.python_source import Module, definition, njit, reference_of, unwrapped
from tuner.declare.writing import Own, Reference
from tuner.errors import InputError, UnknownName
from tuner.requests.arguments import on_host
from tuner.requests.code import Code, without

#: How inputs are drawn for checks.
INPUTS = ("drawn", "resampled", "given")


def with_reference(own: Own, code: Code, values: Mapping[str, Any], options: Mapping[str, Any]) -> Own:
    """The declaration with what is right, the library, and the author's own numbers where they are needed."""
    mode = options.get("inputs") or "drawn"
    if mode not in INPUTS:
        raise UnknownName("way to draw inputs", mode, INPUTS)
    reference, answer = options.get("reference"), options.get("answer")
    outputs = tuple(each.name for each in own.tensors if each.output)
    if reference is not None:
        found = _read_reference(own, reference, "its_reference")
    elif answer is not None:
        kept = {f"answer:{name}": each for name, each in answers(answer, list(values), outputs).items()}
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
    without(node, code.parameters)
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
