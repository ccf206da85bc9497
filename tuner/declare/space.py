"""Parameters, constraints and configs; and the space, which is the legal configs of a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import ml_dtypes  # noqa: F401  whoever has kernels and NumPy has bfloat16 by its name in NumPy
import numpy as np
from numpy.typing import NDArray

from tuner.declare.enumeration import Codes, Columns, Enumeration, Rule, holds, value_array
from tuner.errors import DeclarationError, InputError

#: A parameter's value. Constraints may compute with numbers and compare strings.
Value = int | float | bool | str

SCALES = ("log2", "linear", "categorical")


@dataclass(frozen=True)
class Parameter:
    """A named tunable choice.

    Attributes:
        name: e.g. ``BM``.
        values: Allowed values, in order.
        scale: Distance between values: ``log2`` (16, 32, 64 are neighbours at equal distance), ``linear``,
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
    """Makes a parameter from a list of values, which determine its scale.

    Powers of two have a log2 scale, other numbers a linear one, and strings and booleans have no order.
    """
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if not numbers:
        return Parameter(name, values, "categorical")
    ordered = tuple(sorted(values))
    powers = all(isinstance(value, int) and value > 0 and value & (value - 1) == 0 for value in ordered)
    return Parameter(name, ordered, "log2" if powers else "linear")


def powers_of_two(name: str, low: int, high: int) -> Parameter:
    """Makes a parameter of the powers of two from low to high."""
    values = [1 << bit for bit in range(high.bit_length()) if low <= 1 << bit <= high]
    return choice(name, *values)


class Config(Mapping[str, Value]):
    """One point of a space: an immutable mapping whose values are attributes too (``config.BM``)."""

    __slots__ = ("_values",)
    _values: dict[str, Value]

    def __init__(self, values: Mapping[str, Value]) -> None:
        object.__setattr__(self, "_values", dict(values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"config has no {name}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a config does not change; make another")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Value]:
        """Names and values; quicker than by name, one after the other."""
        return self._values.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self._values == dict(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (self._values,)

    def __repr__(self) -> str:
        return f"Config({self})"

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self._values.items())


@dataclass(frozen=True)
class Constraint:
    """A rule on problem, device and config that every legal config satisfies.

    Attributes:
        sentence: The rule in words.
        rule: ``(problem, device, config)`` -> bool. The config's attributes are scalars, or NumPy arrays of
            many configs at once; the rule must work on both (``&`` and ``|`` rather than ``and`` and ``or``
            between conditions on parameters).
        for_speed: True if the rule only leaves out configs that are not worth trying, and a config that breaks
            it still gives correct results. Exported kernels do not enforce such rules.
    """

    sentence: str
    rule: Callable[[Any, Any, Any], Any]
    for_speed: bool = False


#: A space with more combinations than this is not enumerated in full; it is a uniform sample of at most this
#: many.
ENUMERATION_LIMIT = 10_000_000


class Space(Sequence[Config]):
    """The legal configs of a kernel for a problem on a device, in the order of the parameters' values.

    Attributes:
        parameters: The tunable choices.
        raw_size: Combinations of values before any constraint.
        rejected: (sentence, raw combinations that this constraint was the first to reject).
        codes: Shape (configs, parameters): the position of each value among its parameter's values.
        sampled: True if there were too many combinations and the space is a uniform sample of the legal ones.
            `locate` then adds further legal configs when it meets them.
    """

    def __init__(
        self, parameters: Sequence[Parameter], codes: Codes, *, rejected: Sequence[tuple[str, int]] = (),
        rules: Sequence[tuple[str, Rule]] | None = None,
    ) -> None:  # fmt: skip
        """Wraps rows of codes. Callers use `build` or `of` instead.

        Args:
            parameters: The tunable choices.
            codes: Shape (configs, parameters); positions of values, distinct rows.
            rejected: For messages about empty spaces.
            rules: Rules that a config outside `codes` must satisfy to be legal; None if `codes` is complete.
        """
        self.parameters = tuple(parameters)
        self.raw_size = math.prod(len(parameter.values) for parameter in self.parameters)
        self.rejected = tuple(rejected)
        self.sampled = rules is not None
        self._rules = rules or ()
        self.codes = codes
        self._arrays = [value_array(parameter.values) for parameter in self.parameters]
        self._code_of = _codes_of(self.parameters)
        self._added: dict[bytes, int] = {}
        sizes = [len(parameter.values) for parameter in self.parameters]
        if self.raw_size < 2**63:
            weights = [math.prod(sizes[position + 1 :]) for position in range(len(sizes))]
        else:  # keys are then hashes, so hits are compared in full
            rng = np.random.default_rng(len(sizes))
            weights = [int(weight) | 1 for weight in rng.integers(1, 2**63, len(sizes))]
        self._weights = np.array(weights, dtype=np.uint64)

    @classmethod
    def build(
        cls, parameters: Sequence[Parameter], constraints: Sequence[Constraint], problem: Any, device: Any,
        *, limit: int = ENUMERATION_LIMIT, seed: int = 0,
    ) -> Space:  # fmt: skip
        """Enumerates the legal configs, filtering by each constraint as soon as its parameters are bound.

        Args:
            parameters: The tunable choices.
            constraints: Rules; they are given ``(problem, device, columns)``.
            problem: The problem passed to the rules.
            device: The device passed to the rules.
            limit: Largest number of combinations held at once; beyond it, the space is a uniform sample.
            seed: Seed of that sample.

        Raises:
            DeclarationError: A rule fails on arrays.
        """
        rules = [(constraint.sentence, _bound(constraint, problem, device)) for constraint in constraints]
        values = {parameter.name: parameter.values for parameter in parameters}
        codes, counts, sampled = Enumeration(values, rules, limit, seed).run()
        rejected = [(rule.sentence, count) for rule, count in zip(constraints, counts, strict=True)]
        return cls(parameters, codes, rejected=rejected, rules=rules if sampled else None)

    @classmethod
    def of(cls, parameters: Sequence[Parameter], configs: Iterable[Mapping[str, Value]]) -> Space:
        """Makes the space of exactly these configs, in this order; for example those of a recording."""
        code_of = list(zip(parameters, _codes_of(parameters), strict=True))
        rows = [[codes[config[parameter.name]] for parameter, codes in code_of] for config in configs]
        largest = max((len(parameter.values) for parameter in parameters), default=0)
        dtype = np.uint8 if largest <= 256 else np.uint32
        return cls(parameters, np.array(rows, dtype=dtype).reshape(len(rows), len(parameters)))

    @classmethod
    def at(
        cls, parameters: Sequence[Parameter], constraints: Sequence[Constraint], problem: Any, device: Any,
        config: Mapping[str, Value],
    ) -> Space:  # fmt: skip
        """Makes the space of one config, legal or not, which `locate` extends by the legal ones it meets.

        So what lies around a config is found without looking at all that is legal.
        """
        alone = cls.of(parameters, [config])
        rules = [(constraint.sentence, _bound(constraint, problem, device)) for constraint in constraints]
        return cls(parameters, alone.codes, rules=rules)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        row = zip(self.parameters, self.codes[index].tolist(), strict=True)
        return Config({parameter.name: parameter.values[code] for parameter, code in row})

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Mapping) and int(self.find([config])[0]) >= 0

    def index_of(self, config: Mapping[str, Value]) -> int:
        """Returns the position of a legal config.

        Raises:
            InputError: The config is not legal here.
        """
        index = int(self.find([config])[0])
        if index < 0:
            raise InputError(f"a config must be legal in this space, got {dict(config)}; choose another")
        return index

    def find(self, configs: Sequence[Mapping[str, Value]]) -> NDArray[np.intp]:
        """Returns the positions of configs; -1 for those that are not legal here."""
        rows = np.zeros((len(configs), len(self.parameters)), self.codes.dtype)
        known = np.array([len(config) == len(self.parameters) for config in configs], dtype=bool)
        for column, (parameter, codes) in enumerate(zip(self.parameters, self._code_of, strict=True)):
            name = parameter.name
            known_codes = [codes.get(config[name], -1) if name in config else -1 for config in configs]
            known &= np.array(known_codes) >= 0
            rows[:, column] = np.maximum(known_codes, 0)
        places = np.full(len(configs), -1, np.intp)
        places[known] = self.locate(rows[known])
        return places

    @cached_property
    def _sorted_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.intp] | None]:
        keys = self._keys(self.codes)
        if len(keys) < 2 or bool(np.all(keys[1:] > keys[:-1])):
            return keys, None
        order = np.argsort(keys)
        return keys[order], order

    def _keys(self, codes: Codes) -> NDArray[np.uint64]:
        total = np.zeros(len(codes), np.uint64)
        for column, weight in enumerate(self._weights):
            total += codes[:, column].astype(np.uint64) * weight
        return total

    def locate(self, codes: Codes) -> NDArray[np.intp]:
        """Returns the positions of rows of codes; -1 for illegal rows. A sampled space adds new legal rows."""
        keys, order = self._sorted_keys
        if not len(keys) or not len(codes):
            return np.full(len(codes), -1, np.intp)
        places = np.minimum(np.searchsorted(keys, self._keys(codes)), len(keys) - 1)
        located = (places if order is None else order[places]).astype(np.intp)
        located[np.any(self.codes[located] != codes, axis=1)] = -1
        missing = np.flatnonzero(located < 0)
        if self.sampled and len(missing):
            located[missing] = self._add_rows(codes[missing].astype(self.codes.dtype))
        return located

    def _add_rows(self, rows: Codes) -> list[int]:
        """Adds legal rows to the sample. `_sorted_keys` still describes the first rows only."""
        unknown = [at for at, row in enumerate(rows) if row.tobytes() not in self._added]
        if unknown:
            fresh = np.unique(rows[unknown], axis=0)
            legal = np.ones(len(fresh), bool)
            arrays = {
                parameter.name: self._arrays[at][fresh[:, at]] for at, parameter in enumerate(self.parameters)
            }
            for sentence, rule in self._rules:
                legal &= holds(rule, sentence, Columns(arrays), len(fresh))
            places = np.where(legal, len(self.codes) + np.cumsum(legal) - 1, -1)
            self.codes = np.concatenate([self.codes, fresh[legal]])
            self._added |= {row.tobytes(): int(at) for row, at in zip(fresh, places, strict=True)}
        return [self._added[row.tobytes()] for row in rows]

    @cached_property
    def positions(self) -> tuple[NDArray[np.float64] | None, ...]:
        """For each parameter the positions of its values between 0 and 1; None if they have no order."""
        return tuple(_positions(parameter) for parameter in self.parameters)

    def _steps(self, index: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Every change of one parameter of a config: columns, and codes."""
        own = self.codes[index].tolist()
        steps = [
            (column, code)
            for column, parameter in enumerate(self.parameters)
            for code in range(len(parameter.values))
            if code != own[column]
        ]
        columns, codes = np.array(steps, np.intp).reshape(-1, 2).T
        return columns, codes

    def neighbours(self, index: int) -> NDArray[np.intp]:
        """Returns positions of the legal configs that differ from a config in one parameter, nearest first."""
        own, (columns, codes) = self.codes[index], self._steps(index)
        apart = [
            1.0 if (places := self.positions[column]) is None else abs(places[code] - places[own[column]])
            for column, code in zip(columns, codes, strict=True)
        ]
        rows = np.repeat(own[None], len(columns), axis=0)
        rows[np.arange(len(columns)), columns] = codes
        located = self.locate(rows[np.argsort(apart, kind="stable")])
        return located[located >= 0]

    def beside(self, index: int, most: int, seed: int = 0) -> NDArray[np.intp]:
        """Returns positions of the legal configs that differ from a config in one parameter or in two.

        Args:
            index: Position of the config.
            most: Of more pairs of changes than this, so many are drawn.
            seed: Of that draw.
        """
        columns, codes = self._steps(index)
        one, two = np.triu_indices(len(columns), 1)
        pairs = np.flatnonzero(columns[one] != columns[two])
        if len(pairs) > most:
            pairs = np.sort(np.random.default_rng(seed).choice(pairs, most, replace=False))
        single = np.arange(len(columns))
        rows = np.repeat(self.codes[index][None], len(columns) + len(pairs), axis=0)
        for changed in (np.r_[single, one[pairs]], np.r_[single, two[pairs]]):
            rows[np.arange(len(rows)), columns[changed]] = codes[changed]
        located = self.locate(rows)
        return located[located >= 0]

    def nearest(self, configs: Iterable[Mapping[str, Value]]) -> list[int]:
        """For each config the position of the legal one that differs least; no positions if nothing is legal.

        It differs in the fewest parameters, and least in those.

        Args:
            configs: Points of the parameters, legal or not.
        """
        if not len(self):
            return []
        every = self.codes.astype(np.int16)
        shares = 1 / (np.array([len(parameter.values) for parameter in self.parameters]) * len(self.parameters))
        indices = []
        for config in configs:
            own = zip(self.parameters, self._code_of, strict=True)
            row = [codes[config[parameter.name]] for parameter, codes in own]
            steps = np.abs(every - np.array(row, np.int16))
            indices.append(int(np.argmin(np.count_nonzero(steps, axis=1) + steps @ shares)))
        return indices

    def around(self, index: int, radius: int, tries: int, rng: np.random.Generator) -> NDArray[np.intp]:
        """Returns the positions of random legal configs that differ from a config in 2 to `radius` parameters.

        Args:
            index: Position of the config.
            radius: Largest number of parameters that differ.
            tries: Number of raw combinations drawn; the legal ones among them are returned.
            rng: Random number generator.
        """
        sizes = np.array([len(parameter.values) for parameter in self.parameters])
        free = np.flatnonzero(sizes > 1)
        if len(free) < 2:
            return np.zeros(0, np.intp)
        rows = np.repeat(self.codes[index][None], tries, axis=0)
        columns = free[np.argsort(rng.random((tries, len(free))), axis=1)[:, :radius]]
        changes = rng.integers(2, radius + 1, tries)
        for nth, column in enumerate(columns.T):
            at = np.flatnonzero(nth < changes)
            size = sizes[column[at]]
            rows[at, column[at]] = (rows[at, column[at]] + 1 + rng.integers(0, size - 1)) % size
        located = self.locate(np.unique(rows, axis=0))
        return located[located >= 0]


def _codes_of(parameters: Iterable[Parameter]) -> list[dict[Value, int]]:
    """For each parameter the position of each of its values."""
    return [{value: code for code, value in enumerate(parameter.values)} for parameter in parameters]


def _bound(constraint: Constraint, problem: Any, device: Any) -> Rule:
    return lambda columns: constraint.rule(problem, device, columns)


def _positions(parameter: Parameter) -> NDArray[np.float64] | None:
    if parameter.scale == "categorical":
        return None
    values = np.array(parameter.values, dtype=float)
    if parameter.scale == "log2":
        values = np.log2(values)
    width = values.max() - values.min()
    return cast(NDArray[np.float64], (values - values.min()) / (width or 1.0))
