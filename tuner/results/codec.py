"""Dataclasses as JSON data and back, by their fields: a new field is one line in its class.

A class whose JSON is not its fields has `to_json` and `from_json` of its own.
"""

import base64
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

T = TypeVar("T")
Converter = Callable[[Any], Any]


class _JsonField(NamedTuple):
    """A field of a dataclass, and how its value is written and read."""

    name: str
    write: Converter
    read: Converter
    required: bool


def to_json(item: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass as JSON data."""
    kind: Any = type(item)
    return {field.name: field.write(getattr(item, field.name)) for field in _fields(kind)}


def from_json(kind: Callable[..., T], data: Mapping[str, Any]) -> T:
    """Reads the output of `to_json`. Unknown keys are ignored; a field that has a default may be missing.

    Raises:
        KeyError: A field is missing.
        TypeError, ValueError, InputError: A value does not suit its field.
    """
    _object(data)
    present = (field for field in _fields(kind) if field.required or field.name in data)
    return kind(**{field.name: field.read(data[field.name]) for field in present})


def storable(text: str) -> str:
    """Returns a text that every database accepts; a compiler's or author's text may hold anything.

    PostgreSQL allows no NUL in texts, and no database allows unpaired surrogates.
    """
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _fields(kind: Any) -> tuple[_JsonField, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        _JsonField(
            field.name, *converters(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )  # fmt: skip


@functools.cache
def converters(hint: Any) -> tuple[Converter, Converter]:
    """Returns how values of a type are written and read."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hasattr(hint, "from_json"):
        return hint.to_json, hint.from_json
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return to_json, functools.partial(from_json, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return operator.attrgetter("value"), hint
    if origin is Annotated:
        return arguments[1], arguments[1]
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [converters(part) for part in arguments]
        return (
            lambda value: [write(part) for (write, _), part in zip(parts, value, strict=True)],
            lambda value: tuple(read(part) for (_, read), part in zip(parts, value, strict=True)),
        )
    write, read = converters(arguments[1] if origin in (Mapping, dict) else arguments[0])
    if origin in (Mapping, dict):
        return (
            lambda value: {key: write(part) for key, part in value.items()},
            lambda value: {key: read(part) for key, part in _object(value).items()},
        )
    if origin in (tuple, Sequence, list):
        made = tuple if origin is tuple else list
        return lambda value: list(map(write, value)), lambda value: made(map(read, value))
    assert origin in (typing.Union, types.UnionType), f"{hint} has no form in JSON"
    return (
        lambda value: None if value is None else write(value),
        lambda value: None if value is None else read(value),
    )


def _unchanged(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, got {value!r}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, got {value!r}")
    return value


def _number(value: Any) -> float:
    """Reads a number; JSON cannot express NaN and infinities, which are texts."""
    if isinstance(value, str):
        return float(value)
    if not isinstance(value, int | float):
        raise TypeError(f"a number was expected, got {value!r}")
    return value


#: Type -> how its values are written and read.
_PLAIN: Mapping[Any, tuple[Converter, Converter]] = {
    str: (storable, _text),
    int: (_unchanged, operator.index),
    float: (_unchanged, _number),
    bool: (_unchanged, bool),
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    Any: (_unchanged, _unchanged),
}
