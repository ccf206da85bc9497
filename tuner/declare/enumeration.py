"""Finds the combinations of values that satisfy every constraint; vectorised, one constraint at a time.

It works on codes (positions of values among a parameter's values) and knows neither parameters nor problems. A
table of partial combinations grows by the parameters that the next constraint reads, and shrinks by that
constraint before the next ones are bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import DeclarationError

#: A rule is evaluated on this many rows at once. This bounds the memory of the value columns.
BLOCK_ROWS = 1 << 18
#: Each rule is tried on this many random combinations, to learn what it reads and whether it accepts arrays.
PROBE_ROWS = 16

Codes = NDArray[Any]
#: ``rule(columns)`` -> truth for each row, or one truth for all.
Rule = Callable[["Columns"], Any]


class Columns(Mapping[str, Any]):
    """Columns of values by parameter name, also as attributes. It remembers which ones were read."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        self.read.add(name)
        return column

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._columns:
            raise AttributeError(f"a rule may read {', '.join(self._columns)}; got {name}")
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def value_array(values: Sequence[Any]) -> NDArray[Any]:
    """Returns a parameter's values as an array whose elements compare and compute as the values do."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float} or len(kinds) == 1:
        return np.array(values)
    return np.array(values, dtype=object)


def holds(rule: Rule, sentence: str, columns: Columns, rows: int) -> NDArray[np.bool_]:
    """Evaluates a rule on columns.

    Args:
        rule: The rule to evaluate.
        sentence: The rule in words, for the error message.
        columns: Arrays of equal length.
        rows: That length.

    Raises:
        DeclarationError: The rule fails on arrays, or does not return one truth value for each row.
    """
    try:
        with np.errstate(all="ignore"):
            truth = np.asarray(rule(columns))
        return np.broadcast_to(truth.astype(bool), (rows,))
    except Exception as error:
        raise DeclarationError(
            f'a constraint must work on arrays as on scalars; "{sentence}" does not ({type(error).__name__}: '
            f"{error}); write & | ~ and numpy.where in place of and, or, not, if, in, min and max "
            "between parameters, with brackets around each comparison"
        ) from error


@dataclass(frozen=True)
class Legal:
    """The combinations that satisfy every constraint.

    Attributes:
        codes: Shape (combinations, parameters), in lexicographic order.
        rejected: For each constraint, the number of raw combinations that it was the first to reject.
        sampled: True if there were too many combinations; `codes` is then a uniform sample of them.
    """

    codes: Codes
    rejected: tuple[int, ...]
    sampled: bool


class Enumeration:
    """Builds the table of combinations parameter by parameter, and filters it."""

    def __init__(
        self, values: Mapping[str, Sequence[Any]], rules: Sequence[tuple[str, Rule]], limit: int, seed: int
    ) -> None:
        """Finds out which parameters each rule reads.

        Args:
            values: Parameter name -> its values.
            rules: (sentence, rule) pairs.
            limit: Largest number of rows in the table; beyond it the rows are a uniform sample.
            seed: Seed of that sample.
        """
        self._arrays = {name: value_array(each) for name, each in values.items()}
        self._sizes = {name: len(each) for name, each in values.items()}
        self._rules = rules
        self._limit = limit
        self._rng = np.random.default_rng(seed)
        self._table: dict[str, Codes] = {}
        self._rows = 1
        self._weight = 1.0  # raw partial combinations that one row of a sample stands for
        self._rejected = [0.0] * len(rules)
        self.reads = [self._probe(sentence, rule) for sentence, rule in rules]

    def _probe(self, sentence: str, rule: Rule) -> set[str]:
        rows = self._rng.integers(0, 1 << 30, PROBE_ROWS)
        columns = Columns({name: array[rows % len(array)] for name, array in self._arrays.items()})
        holds(rule, sentence, columns, PROBE_ROWS)
        return columns.read

    def run(self) -> Legal:
        """Binds parameters and filters rows until every parameter is bound."""
        waiting = list(range(len(self._rules)))
        while waiting:
            # The next constraint is the one that makes the table grow least.
            waiting.sort(key=lambda number: (self._growth(self.reads[number]), number))
            number = waiting.pop(0)
            for name in self._sizes:
                if name in self.reads[number]:
                    self._bind(name)
            self._filter(number)
        for name in self._sizes:
            self._bind(name)
        columns = [self._table[name] for name in self._sizes]
        codes = np.stack(columns, axis=1) if columns else np.zeros((self._rows, 0), np.uint8)
        if list(self._table) != list(self._sizes):
            codes = codes[np.lexsort(codes.T[::-1])]
        return Legal(codes, tuple(round(each) for each in self._rejected), self._weight > 1)

    def _growth(self, names: set[str]) -> int:
        return math.prod(self._sizes[name] for name in names if name not in self._table)

    def _bind(self, name: str) -> None:
        if name in self._table:
            return
        size = self._sizes[name]
        keep = max(1, self._limit // size)
        if self._rows > keep:
            rows = np.sort(self._rng.choice(self._rows, keep, replace=False))
            self._table = {each: column[rows] for each, column in self._table.items()}
            self._weight *= self._rows / keep
            self._rows = keep
        dtype = np.uint8 if size <= 256 else np.uint16 if size <= 65536 else np.uint32
        for each, column in self._table.items():
            self._table[each] = np.repeat(column, size)
        self._table[name] = np.tile(np.arange(size, dtype=dtype), self._rows)
        self._rows *= size

    def _filter(self, number: int) -> None:
        sentence, rule = self._rules[number]
        reads = self.reads[number]
        kept = np.empty(self._rows, bool)
        for start in range(0, self._rows, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, self._rows))
            arrays = {name: self._arrays[name][self._table[name][rows]] for name in reads}
            kept[rows] = holds(rule, sentence, Columns(arrays), rows.stop - rows.start)
        left = int(np.count_nonzero(kept))
        if left == self._rows:
            return
        unbound = math.prod(size for name, size in self._sizes.items() if name not in self._table)
        self._rejected[number] = (self._rows - left) * self._weight * unbound
        self._table = {name: column[kept] for name, column in self._table.items()}
        self._rows = left
