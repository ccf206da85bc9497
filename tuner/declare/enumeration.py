"""Finds the combinations of values that satisfy every constraint; vectorised, one constraint at a time.

It works on codes (positions of values among a parameter's values) and knows neither parameters nor problems. A
table of partial combinations grows by the parameters that the next constraint reads, and shrinks by that
constraint before the next ones are bound.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._arrays = {name: value_array(known) for name, known in values.items()}
        self._sizes = {name: len(known) for name, known in values.items()}
        self._column = {name: at for at, name in enumerate(values)}
        self._rules = rules
        self._limit = limit
        self._rng = np.random.default_rng(seed)
        largest = max(self._sizes.values(), default=0)
        dtype = np.uint8 if largest <= 256 else np.uint16 if largest <= 65536 else np.uint32
        # A column for each parameter, 0 until it is written: rows are copied faster than columns, one by one.
        self._table: Codes = np.zeros((1, len(values)), dtype)
        self._rows = 1
        self._bound: dict[str, None] = {}
        # Bound, but not written yet: each row of the table stands for all combinations of their values.
        self._open: list[str] = []
        self._weight = 1.0  # raw partial combinations that one row of a sample stands for
        self._rejected = [0.0] * len(rules)
        self._reads = self._probe()
        # How many times as many rows the table has once what a rule reads is bound.
        self._growths = [self._combinations(names) for names in self._reads]

    def _probe(self) -> list[set[str]]:
        """What each rule reads, up to one that no combination satisfies whatever its values."""
        draws = self._rng.integers(0, 1 << 30, (len(self._rules), PROBE_ROWS))
        drawn = {name: array[draws % len(array)] for name, array in self._arrays.items()}
        reads = []
        for number, (sentence, rule) in enumerate(self._rules):
            columns = Columns({name: column[number] for name, column in drawn.items()})
            truth = holds(rule, sentence, columns, PROBE_ROWS)
            reads.append(columns.read)
            if not columns.read and not truth.any():
                break
        return reads

    def run(self) -> tuple[Codes, list[int], bool]:
        """Binds parameters and filters rows until every parameter is bound.

        Returns:
            Shape (combinations, parameters), in lexicographic order; for each rule the number of raw
            combinations that it was the first to reject; True if there were too many combinations, so that the
            first is a uniform sample.
        """
        waiting = list(range(len(self._reads)))
        while waiting and self._rows:
            # The next constraint is the one that makes the table grow least.
            number = min(waiting, key=self._growths.__getitem__)
            waiting.remove(number)
            for name in self._sizes:
                if name in self._reads[number]:
                    self._bind(name)
            self._filter(number)
        if self._rows:
            for name in self._sizes:
                self._bind(name)
            self._write_all()
        codes = self._table
        if list(self._bound) != list(self._sizes):
            codes = codes[np.lexsort(codes.T[::-1])]
        return codes, [round(count) for count in self._rejected], self._weight > 1

    def _combinations(self, names: Iterable[str]) -> int:
        return math.prod([self._sizes[name] for name in names])

    def _bind(self, name: str) -> None:
        if name in self._bound:
            return
        keep = max(1, self._limit // self._sizes[name])
        if self._rows > keep:
            chosen = np.zeros(self._rows, bool)
            chosen[self._rng.choice(self._rows, keep, replace=False)] = True
            self._weight *= self._rows / keep
            self._write(chosen)
        self._bound[name] = None
        if self._sizes[name] == 1:
            return
        self._open.append(name)
        self._rows *= self._sizes[name]
        for number, names in enumerate(self._reads):
            if name in names:
                self._growths[number] //= self._sizes[name]

    def _filter(self, number: int) -> None:
        names = [name for name in self._sizes if name in self._reads[number]]
        # Where rows share few combinations of what the rule reads, it is asked about each of these once.
        if self._combinations(names) < self._rows:
            kept = self._looked_up(number, names)
        else:
            self._write_all()
            columns = {name: self._table[:, self._column[name]] for name in names}
            kept = self._asked(number, columns, self._rows)
        left = int(np.count_nonzero(kept))
        if left == self._rows:
            return
        unbound = self._combinations([name for name in self._sizes if name not in self._bound])
        self._rejected[number] = (self._rows - left) * self._weight * unbound
        self._write(kept)

    def _looked_up(self, number: int, names: Sequence[str]) -> NDArray[np.bool_]:
        """Which rows satisfy a rule, by its answers for all combinations of the values that it reads."""
        written = [name for name in names if name not in self._open]
        opened = [name for name in self._open if name in names]
        truth = self._asked(number, self._codes([*written, *opened]), self._combinations(names))
        place = np.zeros(len(self._table), np.intp)
        for name in written:
            place = place * self._sizes[name] + self._table[:, self._column[name]]
        kept = truth.reshape(self._combinations(written), self._combinations(opened)).take(place, axis=0)
        sizes = [self._sizes[name] for name in self._open]
        kept = kept.reshape(len(place), *(self._sizes[name] if name in names else 1 for name in self._open))
        return np.broadcast_to(kept, (len(place), *sizes)).ravel()

    def _asked(self, number: int, columns: Mapping[str, Codes], rows: int) -> NDArray[np.bool_]:
        """Which of so many combinations satisfy a rule, by the codes of what it reads."""
        sentence, rule = self._rules[number]
        kept = np.empty(rows, bool)
        for start in range(0, rows, BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, rows))
            arrays = {name: self._arrays[name].take(codes[block]) for name, codes in columns.items()}
            kept[block] = holds(rule, sentence, Columns(arrays), block.stop - block.start)
        return kept

    def _codes(self, names: Sequence[str]) -> dict[str, Codes]:
        """Columns of all combinations of some parameters' values; the last one changes fastest."""
        every = after = self._combinations(names)
        codes = {}
        for name in names:
            after //= self._sizes[name]
            column = np.repeat(np.arange(self._sizes[name], dtype=self._table.dtype), after)
            codes[name] = np.tile(column, every // len(column))
        return codes

    def _write(self, chosen: NDArray[np.bool_]) -> None:
        """Writes the chosen rows, and leaves the others out."""
        rows, within = np.divmod(np.flatnonzero(chosen), self._combinations(self._open))
        table = self._table.take(rows, axis=0)
        for name, codes in self._codes(self._open).items():
            table[:, self._column[name]] = codes[within]
        self._table, self._rows, self._open = table, len(table), []

    def _write_all(self) -> None:
        """Writes every row."""
        if not self._open:
            return
        table = np.repeat(self._table, self._combinations(self._open), axis=0)
        for name, codes in self._codes(self._open).items():
            table[:, self._column[name]] = np.tile(codes, len(self._table))
        self._table, self._open = table, []
