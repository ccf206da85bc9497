"""Arguments of a user's kernel: arrays of any library, and numbers; what a declaration needs of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

from tuner.callables.families import family_of, shares_memory_with_others
from tuner.callables.foreign import view
from tuner.declare.problem import DTYPE_BYTES
from tuner.declare.shapes import Given
from tuner.errors import InputError

#: Python's and NumPy's kinds of numbers -> dtype of a scalar argument.
_KINDS = {"i": "int64", "u": "int64", "b": "int64", "f": "float64"}


def named(arguments: object, names: Sequence[str], function: str) -> dict[str, Any]:
    """Arguments by name.

    Args:
        arguments: By name, or in the order of the names.
        names: What the function takes, in order.
        function: Its name, for messages.

    Raises:
        InputError: Some are missing, or too many.
    """
    if isinstance(arguments, Mapping):
        missing, unknown = set(names) - arguments.keys(), arguments.keys() - set(names)
        if missing or unknown:
            wrong = f"{sorted(missing)[0]!r} is missing" if missing else f"got {sorted(unknown)[0]!r}"
            raise InputError(f"{function} takes {', '.join(names)}; {wrong}; give exactly these")
        return {name: arguments[name] for name in names}
    given = list(arguments) if isinstance(arguments, Sequence) else [arguments]
    if len(given) != len(names):
        raise InputError(
            f"{function} takes {len(names)} arguments ({', '.join(names)}), got {len(given)}; give one for "
            "each, parameters left out"
        )
    return dict(zip(names, given, strict=True))


def is_array(value: object) -> bool:
    """True for an array of a library that is known, or that shares its memory."""
    if isinstance(value, numpy.generic):
        return False
    return family_of(value) is not None or shares_memory_with_others(value)


def described(name: str, value: Any, dtype: str = "") -> Given:
    """An argument in words.

    Args:
        name: Its name.
        value: An array or a number.
        dtype: That of a number, as the source declares it; by default that of Python's number.

    Raises:
        InputError: It is neither, or its dtype is not for kernels.
    """
    if is_array(value):
        found = family_of(value)
        operand = found.operand(value) if found is not None else None
        shape = operand.shape if operand is not None else tuple(view(value).shape)
        told = operand.dtype if operand is not None else view(value).dtype.name
        return Given(name, _allowed(name, told), tuple(int(size) for size in shape))
    if isinstance(value, bool | int | float | numpy.generic):
        plain = value.item() if isinstance(value, numpy.generic) else value
        kind = numpy.asarray(plain).dtype.kind
        if kind in _KINDS:
            if kind == "f" and dtype.startswith("int"):
                raise InputError(f"{name} is a whole number in the source, got {plain}; pass one")
            own = dtype or (str(value.dtype) if isinstance(value, numpy.floating) else _KINDS[kind])
            return Given(name, _allowed(name, own), None, int(plain) if kind in "iub" else float(plain))
    raise InputError(
        f"an argument is an array (NumPy, CuPy, PyTorch, or one that speaks DLPack) or a number, {name} is "
        f"{type(value).__name__}; pass one of these"
    )


def _allowed(name: str, dtype: str) -> str:
    if dtype not in DTYPE_BYTES:
        raise InputError(f"an argument is of {', '.join(DTYPE_BYTES)}, {name} is {dtype}; convert it")
    return dtype


def with_outputs(arguments: Sequence[Given], outputs: Sequence[str]) -> tuple[Given, ...]:
    """Arguments, those marked that a kernel writes.

    Raises:
        InputError: None of them is written, or an output is no array.
    """
    arrays = [each.name for each in arguments if each.shape is not None]
    for name in outputs:
        if name not in arrays:
            raise InputError(f"outputs= names arrays ({', '.join(arrays)}), got {name!r}; correct it")
    if not outputs:
        raise InputError(
            f"a kernel writes an array, and nothing tells which of {', '.join(arrays) or 'none'}; name it by "
            "outputs="
        )
    return tuple(replace(each, output=each.name in outputs) for each in arguments)


def on_host(array: Any) -> numpy.ndarray[Any, Any]:
    """A NumPy array with an array's numbers."""
    for name in ("get", "detach"):
        if hasattr(array, name) and not isinstance(array, numpy.ndarray):
            array = getattr(array, name)()
            array = array.cpu() if name == "detach" else array
    if isinstance(array, numpy.ndarray):
        return numpy.ascontiguousarray(array)
    return numpy.ascontiguousarray(array if hasattr(array, "__array__") else numpy.from_dlpack(array))


def key_of(value: Any) -> Hashable:
    """All of an argument that a prepared run depends on: an array that was `seen`, or a number."""
    found = family_of(value)
    key: Hashable = value if found is None else found.key(value)
    return key


def device_of(values: Any, target: str) -> str:
    """The device that arrays are on, among other arguments; the first GPU for a CUDA kernel on host arrays."""
    for value in values if isinstance(values, Iterable) else ():
        found = family_of(value) if is_array(value) else None
        if found is not None and found.operand(value).device.startswith("cuda"):
            return found.operand(value).device
    return "cpu" if target == "cpu" else "cuda:0"
