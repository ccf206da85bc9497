"""A kernel of a user's own, given as CUDA text or as a Python function with arguments: what declares it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.declare.catalogue import from_file
from tuner.declare.cuda_signature import Taken, taken_by
from tuner.declare.problem import Problem
from tuner.declare.python_source import definition, unwrapped
from tuner.declare.shapes import Given, shapes_of
from tuner.declare.writing import Own, write
from tuner.devices.cache_folder import cache_root, cache_trouble
from tuner.errors import InputError
from tuner.requests.arguments import described, named, with_outputs
from tuner.requests.code import THREADS, Code, source_of
from tuner.requests.references import answers, with_reference

#: Names of Kernel Tuner for the threads of a block, and for what divides the grid.
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
GRID_DIVISORS = ("grid_div_x", "grid_div_y", "grid_div_z")


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
    if code.function is not None:
        _check_used(code, ast.unparse(definition(unwrapped(code.function)[0])), options, later=True)
    values = named(arguments, code.takes, code.name)
    taken = {each.name: each for each in (taken_by(code.text, code.name) if code.text else ())}
    given = [described(name, value, _dtype(taken.get(name))) for name, value in values.items()]
    given = [replace(each, free=each.name in free_numbers(code, options)) for each in given]
    for each in given:
        _check_type(each, taken.get(each.name))
    given = list(with_outputs(given, _outputs(code, taken, options, values)))
    shapes = shapes_of(given, options.get("shapes") or {})
    own = Own(
        code.name, code.target, source_of(code, given), tuple(given), shapes, code.parameters,
        _rules(options.get("restrictions") or ()), more=_more(code, options),
    )  # fmt: skip
    _check_used(code, own.source, options)
    own = with_reference(own, code, values, options)
    return replace(own, launch=launch_of(own, options)) if code.target == "cuda" else own


def _check_used(code: Code, source: str, options: Mapping[str, Any], later: bool = False) -> None:
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


def free_numbers(code: Code, options: Mapping[str, Any]) -> tuple[str, ...]:
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


def _more(code: Code, options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: options[name] for name in ("terms", "flops") if name in options}
    threads = THREADS if code.target == "cpu" and THREADS in code.parameters else ""
    return found | {"threads": threads, "defaults": {**code.defaults, **(options.get("defaults") or {})}}


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


def own_problem(code: Code, arguments: object, options: Mapping[str, Any]) -> tuple[Own, Problem]:
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
    return own, from_file(file).operation(own.name).problem(dict(own.shapes.sizes))
