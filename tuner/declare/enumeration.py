"""Finds the combinations of values that satisfy every constraint; vectorised, one constraint at a time.

It works on codes (positions of values among a parameter's values) and knows neither parameters nor problems. A
table of partial combinations grows by the parameters that the next constraint reads, and shrinks by that
constraint before the next ones are bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
        flags = truth.astype(bool)
        return flags if flags.shape == (rows,) else np.broadcast_to(flags, (rows,))
    except Exception as error:
        raise DeclarationError(
            f'a constraint must work on arrays as on scalars; "{sentence}" does not ({type(error).__name__}: '
            f"{error}); write & | ~ and numpy.where in place of and, or, not, if, in, min and max "
            "between parameters, with brackets around each comparison"
        ) from error


class Enumeration:
    """A table of partial combinations: it grows by what the next rule reads, and keeps what the rule allows."""

    def __init__(
        self, values: Mapping[str, Sequence[Any]], rules: Sequence[tuple[str, Rule]], limit: int, seed: int
    ) -> None:
        """Begins with one row, in which no parameter is bound.

        Args:
            values: Parameter name -> its values.
            rules: (sentence, rule) pairs.
            limit: Largest number of rows in the table; beyond it the rows are a uniform sample.
            seed: Seed of that sample.
        """
        self._arrays = {name: value_array(array) for name, array in values.items()}
        self._sizes = {name: len(array) for name, array in values.items()}
        self._column = {name: at for at, name in enumerate(values)}
        self._rules, self._limit = rules, limit
        self._rng = np.random.default_rng(seed)
        largest = max(self._sizes.values(), default=0)
        dtype = np.uint8 if largest <= 256 else np.uint16 if largest <= 65536 else np.uint32
        # A column for each parameter, 0 until it is bound.
        self._table: Codes = np.zeros((1, len(values)), dtype)
        self._bound: list[str] = []
        self._weight = 1.0  # raw partial combinations that one row of a sample stands for

    def run(self) -> tuple[Codes, list[int], bool]:
        """Binds all parameters.

        Returns:
            Shape (combinations, parameters), in lexicographic order; for each rule the number of raw
            combinations that it was the first to reject; True if there were too many combinations, so that the
            first is a uniform sample.
        """
        reads, rejected = self._probe(), [0] * len(self._rules)
        waiting = list(range(len(reads)))
        while waiting and len(self._table):
            # The next rule is the one that makes the table grow least.
            number = min(waiting, key=lambda number: self._combinations(reads[number].difference(self._bound)))
            waiting.remove(number)
            rejected[number] = self._bind(reads[number], self._rules[number])
        if len(self._table):
            self._bind(self._sizes)
        codes = self._table
        if self._bound != list(self._sizes):
            codes = codes[np.lexsort(codes.T[::-1])]
        return codes, rejected, self._weight > 1

    def _probe(self) -> list[set[str]]:
        """What each rule reads, up to one that no combination satisfies whatever its values."""
        draws = self._rng.integers(0, 1 << 30, (len(self._rules), PROBE_ROWS))
        drawn = {name: array[draws % len(array)] for name, array in self._arrays.items()}
        reads = []
        for number, (sentence, rule) in enumerate(self._rules):
            columns = Columns({name: array[number] for name, array in drawn.items()})
            truth = holds(rule, sentence, columns, PROBE_ROWS)
            reads.append(columns.read)
            if not columns.read and not truth.any():
                break
        return reads

    def _combinations(self, names: Iterable[str]) -> int:
        return math.prod([self._sizes[name] for name in names])

    def _bind(self, names: Collection[str], rule: tuple[str, Rule] | None = None) -> int:
        """Binds parameters, and drops the rows that a rule over them rejects.

        Returns:
            The number of raw combinations that are dropped.
        """
        new = [name for name in self._sizes if name in names and name not in self._bound]
        while new and len(self._table) * self._combinations(new) > self._limit:
            self._grow([new.pop(0)])  # a sample is uniform if it is drawn anew at each parameter
        if rule is None:
            self._grow(new)
            return 0
        kept = self._truth(rule, [name for name in self._bound if name in names], new)
        if new or not kept.all():
            self._grow(new, kept)
        unbound = self._combinations(self._sizes.keys() - set(self._bound))
        return round((kept.size - len(self._table)) * self._weight * unbound)

    def _grow(self, new: Sequence[str], kept: NDArray[np.bool_] | None = None) -> None:
        """Each row with all combinations of new parameters, or with those that are kept.

        Args:
            new: The parameters.
            kept: Shape (rows, combinations).
        """
        many = self._combinations(new)
        most = max(1, self._limit // many)
        if kept is None and len(self._table) > most:
            self._weight *= len(self._table) / most
            self._table = self._table[np.sort(self._rng.choice(len(self._table), most, replace=False))]
        places = np.arange(len(self._table) * many) if kept is None else np.flatnonzero(kept)
        rows, within = np.divmod(places, many)
        self._table = self._table.take(rows, axis=0)
        for name, codes in self._codes(new).items():
            self._table[:, self._column[name]] = codes[within]
        self._bound += new

    def _codes(self, names: Sequence[str]) -> dict[str, Codes]:
        """Columns of all combinations of some parameters' values; the last one changes fastest."""
        codes = np.indices([self._sizes[name] for name in names], self._table.dtype)
        return {name: column.ravel() for name, column in zip(names, codes, strict=True)}

    def _truth(self, rule: tuple[str, Rule], bound: Sequence[str], new: Sequence[str]) -> NDArray[np.bool_]:
        """Which combinations of new parameters a rule allows for each row; shape (rows, combinations)."""
        rows, many = len(self._table), self._combinations(new)
        written = {name: self._table[:, self._column[name]] for name in bound}
        # Where rows share few combinations of what the rule reads, it is asked about each of these once.
        if self._combinations(bound) < rows:
            truth = self._asked(rule, self._codes([*bound, *new])).reshape(-1, many)
            place = np.zeros(rows, np.intp)
            for name, codes in written.items():
                place = place * self._sizes[name] + codes
            return truth.take(place, axis=0)
        columns = {name: np.repeat(codes, many) for name, codes in written.items()}
        columns |= {name: np.tile(codes, rows) for name, codes in self._codes(new).items()}
        return self._asked(rule, columns).reshape(rows, many)

    def _asked(self, rule: tuple[str, Rule], columns: Mapping[str, Codes]) -> NDArray[np.bool_]:
        """Which rows satisfy a rule, by the codes of what it reads."""
        if not columns:
            return holds(rule[1], rule[0], Columns({}), 1)
        kept = np.empty(len(next(iter(columns.values()))), bool)
        for start in range(0, len(kept), BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, len(kept)))
            arrays = {name: self._arrays[name].take(codes[block]) for name, codes in columns.items()}
            kept[block] = holds(rule[1], rule[0], Columns(arrays), block.stop - block.start)
        return kept
