"""Parameters, constraints, configs, and the legal configs of a kernel: the space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import DeclarationError

#: A parameter's value. Numbers may be compared and computed with in constraints; strings compared.
Value = int | float | bool | str

SCALES = ("log2", "linear", "categorical")


@dataclass(frozen=True)
class Parameter:
    """A named tunable choice.

    Attributes:
        name: e.g. ``BM``.
        values: What it may be, in its order.
        scale: How far values lie apart: ``log2`` (16, 32, 64 are neighbours at equal distance), ``linear``,
            or ``categorical`` (no order).
    """

    name: str
    values: tuple[Value, ...]
    scale: str

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise DeclarationError(f"a parameter's name is an identifier, got {self.name!r}")
        if not self.values or len(set(self.values)) != len(self.values):
            raise DeclarationError(f"parameter {self.name} needs distinct values, got {self.values!r}")
        if self.scale not in SCALES:
            raise DeclarationError(f"scale of {self.name} is one of {SCALES}, got {self.scale!r}")


def choice(name: str, *values: Value) -> Parameter:
    """A parameter from a list; the scale follows from the values.

    Powers of two are on a log2 scale, other numbers on a linear one, strings and booleans on none.
    """
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not numbers:
        return Parameter(name, values, "categorical")
    ordered = tuple(sorted(values))  # type: ignore[type-var]
    powers = all(isinstance(value, int) and value > 0 and value & (value - 1) == 0 for value in ordered)
    return Parameter(name, ordered, "log2" if powers else "linear")


def powers_of_two(name: str, low: int, high: int) -> Parameter:
    """A parameter of the powers of two from low to high."""
    values = [1 << bit for bit in range(high.bit_length()) if low <= 1 << bit <= high]
    return choice(name, *values)


class Config(Mapping[str, Value]):
    """One point of a space: an immutable mapping whose values are attributes too (``config.BM``)."""

    __slots__ = ("_items",)
    _items: tuple[tuple[str, Value], ...]

    def __init__(self, values: Mapping[str, Value]) -> None:
        object.__setattr__(self, "_items", tuple(values.items()))

    def __getitem__(self, name: str) -> Value:
        for key, value in self._items:
            if key == name:
                return value
        raise KeyError(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"config has no {name}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a config does not change; make another")

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return dict(self._items) == dict(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (dict(self._items),)

    def __repr__(self) -> str:
        return "Config(" + " ".join(f"{key}={value}" for key, value in self._items) + ")"

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self._items)


@dataclass(frozen=True)
class Constraint:
    """A rule over problem, device and config that a legal config obeys.

    Attributes:
        sentence: The rule for people.
        rule: ``(problem, device, config)`` -> bool. The config's attributes are scalars, or NumPy arrays of
            many configs at once; the rule must work on both (``&`` and ``|`` rather than ``and`` and ``or``
            between conditions on parameters).
    """

    sentence: str
    rule: Callable[[Any, Any, Any], Any]
