"""A small decision tree on a shape's dims: which of a few columns to prefer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Largest number of questions from the root to a leaf.
DEPTH = 7
#: Candidates for the least gain of a question in mean loss over all rows: from a full tree to a small one.
LEAST_GAINS = (0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008)


@dataclass(frozen=True)
class Question:
    """A yes-or-no question about a shape.

    Attributes:
        text: As a Python expression in the dims and ``layout``.
        asks: The question as a function of dims and layout.
    """

    text: str
    asks: Callable[[Mapping[str, int], str], bool]


@dataclass(frozen=True)
class Leaf:
    """Columns, the one to prefer first."""

    ranking: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """A question and its two branches."""

    question: Question
    yes: Fork | Leaf
    no: Fork | Leaf


Tree = Fork | Leaf


@dataclass(frozen=True)
class Rows:
    """The data for growing a tree.

    Attributes:
        dims: Per row: the shape.
        layouts: Per row: the layout.
        losses: Shape (rows, columns): loss of a column, as a fraction of speed; infinite if it may not be used.
    """

    dims: Sequence[Mapping[str, int]]
    layouts: Sequence[str]
    losses: Floats


def grow(rows: Rows) -> Tree:
    """Grows the tree whose leaves' first choices cost least, with the size chosen by cross-validation.

    The least gain of a question is chosen so that left-out rows cost little: among the values within one
    standard error of the best, the one whose tree suits the known rows best.
    """
    answered = _AnsweredRows.of(rows)
    everything = np.arange(len(rows.dims))
    whole = answered.grown(everything)
    if len(everything) < 3:
        return _cut(whole, LEAST_GAINS[0])
    losses = np.array([_without(answered, rows, int(row)) for row in everything]).T
    means = losses.mean(axis=1)
    least = int(np.argmin(means))
    errors = np.std(losses - losses[least], axis=1) / math.sqrt(len(everything))
    return _cut(whole, LEAST_GAINS[int(np.argmax(means <= means[least] + errors))])


def _without(answered: _AnsweredRows, rows: Rows, row: int) -> list[float]:
    """Returns the loss at a row of trees grown without it, for each of `LEAST_GAINS`."""
    grown = answered.grown(np.flatnonzero(np.arange(len(rows.dims)) != row))
    found = []
    for gain in LEAST_GAINS:
        order = ranking(_cut(grown, gain), rows.dims[row], rows.layouts[row])
        losses = rows.losses[row, list(order)]
        found.append(float(next(iter(losses[np.isfinite(losses)]), 1.0)))
    return found


@dataclass(frozen=True)
class _Grown:
    """A tree before its size is decided.

    Attributes:
        leaf: The leaf if no question is asked here.
        gain: Gain of the question in mean loss over all rows.
        question: The question; None if there is none.
        yes: The branch for yes.
        no: The branch for no.
    """

    leaf: Leaf
    gain: float = 0.0
    question: Question | None = None
    yes: _Grown | None = None
    no: _Grown | None = None


def _cut(grown: _Grown, gain: float) -> Tree:
    """Returns the tree whose questions each gain at least this much."""
    if grown.question is None or grown.yes is None or grown.no is None or grown.gain < gain:
        return grown.leaf
    yes, no = _cut(grown.yes, gain), _cut(grown.no, gain)
    if isinstance(yes, Leaf) and isinstance(no, Leaf) and yes.ranking[:1] == no.ranking[:1]:
        return grown.leaf
    return Fork(grown.question, yes, no)


@dataclass(frozen=True)
class _AnsweredRows:
    """Rows with all questions and their answers."""

    losses: Floats
    questions: Sequence[Question]
    answers: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Rows) -> _AnsweredRows:
        """Answers every question for some rows."""
        questions = _questions(rows.dims, rows.layouts)
        answers = [
            [question.asks(dims, layout) for dims, layout in zip(rows.dims, rows.layouts, strict=True)]
            for question in questions
        ]
        usable = np.where(np.isinf(rows.losses), 1.0, rows.losses)
        return cls(usable, questions, np.array(answers, bool).reshape(len(questions), len(rows.dims)))

    def grown(self, at: NDArray[np.intp]) -> _Grown:
        """Grows the tree of some rows, from these rows alone."""
        return self._grown(at, DEPTH, self.losses[at].mean(axis=0), len(at))

    def _grown(self, at: NDArray[np.intp], depth: int, usual: Floats, count: int) -> _Grown:
        """Grows a part of a tree.

        Args:
            at: The rows that reach this part.
            depth: Largest number of questions to a leaf.
            usual: Loss of each column over all rows of the tree, to break ties.
            count: Number of rows of the tree.
        """
        sums = self.losses[at].sum(axis=0)
        leaf, least = Leaf(tuple(np.lexsort((usual, sums)).tolist())), float(sums.min())
        found = self._question(at) if depth and least > LEAST_GAINS[0] * count else None
        if found is None:
            return _Grown(leaf)
        yes = self.answers[found[1], at]
        first, second = (self._grown(some, depth - 1, usual, count) for some in (at[yes], at[~yes]))
        return _Grown(leaf, (least - found[0]) / count, self.questions[found[1]], first, second)

    def _question(self, at: NDArray[np.intp]) -> tuple[float, int] | None:
        """Returns the least total loss and its question; None if no question separates the rows."""
        yes = self.answers[:, at].astype(float)
        count = yes.sum(axis=1)
        losses = self.losses[at]
        costs = (yes @ losses).min(axis=1) + ((1 - yes) @ losses).min(axis=1)
        costs[(count == 0) | (count == len(at))] = np.inf
        number = int(np.argmin(np.round(costs, 9))) if len(costs) else 0
        return (float(costs[number]), number) if len(costs) and np.isfinite(costs[number]) else None


def ranking(tree: Tree, dims: Mapping[str, int], layout: str) -> tuple[int, ...]:
    """Returns the columns for a shape, the one to prefer first."""
    while isinstance(tree, Fork):
        tree = tree.yes if tree.question.asks(dims, layout) else tree.no
    return tree.ranking


def _questions(dims: Sequence[Mapping[str, int]], layouts: Sequence[str]) -> list[Question]:
    """Yields all possible questions: sizes of dims and their products, their divisors, the layout."""
    names = list(dims[0])
    found: list[Question] = []
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            sizes = sorted({math.prod(each[name] for name in some) for each in dims})
            found += [_at_most(some, _between(low, high)) for low, high in itertools.pairwise(sizes)]
    for name, divisor in itertools.product(names, (2, 4)):
        found.append(_divisible(name, divisor))
    for left, right in itertools.combinations(names, 2):
        found.append(_not_longer(left, right))
        for choose in (min, max):
            sizes = sorted({choose(each[left], each[right]) for each in dims})
            found += [
                _end_at_most(choose, (left, right), _between(low, high))
                for low, high in itertools.pairwise(sizes)
            ]
    for place in range(len(layouts[0])):
        for letter in sorted({layout[place] for layout in layouts})[1:]:
            found.append(_letter(place, letter))
    return found


def _between(low: int, high: int) -> int:
    """Returns a round number from one size on, and below the next: the first power of two, or the middle."""
    power = 1 << low.bit_length() - 1
    power = power if power >= low else 2 * power
    return power if power < high else int(math.sqrt(low * high))


def _at_most(names: Sequence[str], limit: int) -> Question:
    text = f"{' * '.join(names)} <= {limit:_}"
    return Question(text, lambda dims, layout: math.prod(dims[name] for name in names) <= limit)


def _end_at_most(choose: Callable[..., int], names: tuple[str, str], limit: int) -> Question:
    """Makes the question about the shorter or the longer of two dims."""
    left, right = names
    text = f"{choose.__name__}({left}, {right}) <= {limit:_}"
    return Question(text, lambda dims, layout: choose(dims[left], dims[right]) <= limit)


def _divisible(name: str, divisor: int) -> Question:
    return Question(f"{name} % {divisor} == 0", lambda dims, layout: dims[name] % divisor == 0)


def _not_longer(left: str, right: str) -> Question:
    return Question(f"{left} <= {right}", lambda dims, layout: dims[left] <= dims[right])


def _letter(place: int, letter: str) -> Question:
    return Question(f'layout[{place}] == "{letter}"', lambda dims, layout: layout[place] == letter)
