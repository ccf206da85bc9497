"""A small decision tree on a shape's dims: which of a few columns to prefer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Questions from the root to a leaf at the most.
DEPTH = 5
#: Rows that a leaf is made for, at the least.
LEAF = 2
#: A question must bring this much of the mean loss over all rows.
LEAST_GAIN = 0.0005


@dataclass(frozen=True)
class Question:
    """A yes-or-no question about a shape.

    Attributes:
        text: As a Python expression in the dims and ``layout``.
        asks: The same as a function of dims and layout.
    """

    text: str
    asks: Callable[[Mapping[str, int], str], bool]


@dataclass(frozen=True)
class Leaf:
    """Columns, the one to prefer first."""

    ranking: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """A question and what follows from it."""

    question: Question
    yes: Fork | Leaf
    no: Fork | Leaf


Tree = Fork | Leaf


@dataclass(frozen=True)
class Rows:
    """What a tree is grown on.

    Attributes:
        dims: Per row: the shape.
        layouts: Per row: the layout.
        losses: Shape (rows, columns): what a column costs, as a fraction of speed; infinite where it may not
            be used.
    """

    dims: Sequence[Mapping[str, int]]
    layouts: Sequence[str]
    losses: Floats


def grow(rows: Rows) -> Tree:
    """The tree whose leaves' first choices cost least."""
    usable = np.where(np.isinf(rows.losses), 1.0, rows.losses)
    questions = _questions(rows.dims, rows.layouts)
    answers = np.array(
        [
            [question.asks(dims, layout) for dims, layout in zip(rows.dims, rows.layouts, strict=True)]
            for question in questions
        ],
        dtype=bool,
    ).reshape(len(questions), len(rows.dims))
    return _grown(usable, questions, answers, np.arange(len(rows.dims)), DEPTH)


def _grown(
    losses: Floats, questions: Sequence[Question], answers: NDArray[np.bool_], at: NDArray[np.intp], depth: int
) -> Tree:
    here = float(losses[at].sum(axis=0).min())
    best: tuple[float, int] | None = None
    for number in range(len(questions)) if depth else ():
        yes = answers[number, at]
        if LEAF <= int(yes.sum()) <= len(at) - LEAF:
            cost = losses[at[yes]].sum(axis=0).min() + losses[at[~yes]].sum(axis=0).min()
            if best is None or cost < best[0] - 1e-9:
                best = float(cost), number
    if best is None or here - best[0] < LEAST_GAIN * len(losses):
        return _leaf(losses, at)
    yes = answers[best[1], at]
    first = _grown(losses, questions, answers, at[yes], depth - 1)
    second = _grown(losses, questions, answers, at[~yes], depth - 1)
    if isinstance(first, Leaf) and isinstance(second, Leaf) and first.ranking[:1] == second.ranking[:1]:
        return _leaf(losses, at)
    return Fork(questions[best[1]], first, second)


def _leaf(losses: Floats, at: NDArray[np.intp]) -> Leaf:
    """Columns by what they cost the leaf's rows, then all rows."""
    here, everywhere = losses[at].mean(axis=0), losses.mean(axis=0)
    return Leaf(tuple(int(column) for column in np.lexsort((everywhere, here))))


def ranking(tree: Tree, dims: Mapping[str, int], layout: str) -> tuple[int, ...]:
    """Columns for a shape, the one to prefer first."""
    while isinstance(tree, Fork):
        tree = tree.yes if tree.question.asks(dims, layout) else tree.no
    return tree.ranking


def _questions(dims: Sequence[Mapping[str, int]], layouts: Sequence[str]) -> list[Question]:
    """All that may be asked: how large dims and their products are, what divides them, the layout."""
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
    for place in range(len(layouts[0])):
        for letter in sorted({layout[place] for layout in layouts})[1:]:
            found.append(_letter(place, letter))
    return found


def _between(low: int, high: int) -> int:
    """A round number from one size on, and below the next: the first power of two, or the middle."""
    power = 1 << low.bit_length() - 1
    power = power if power >= low else 2 * power
    return power if power < high else int(math.sqrt(low * high))


def _at_most(names: Sequence[str], limit: int) -> Question:
    text = f"{' * '.join(names)} <= {limit:_}"
    return Question(text, lambda dims, layout: math.prod(dims[name] for name in names) <= limit)


def _divisible(name: str, divisor: int) -> Question:
    return Question(f"{name} % {divisor} == 0", lambda dims, layout: dims[name] % divisor == 0)


def _not_longer(left: str, right: str) -> Question:
    return Question(f"{left} <= {right}", lambda dims, layout: dims[left] <= dims[right])


def _letter(place: int, letter: str) -> Question:
    return Question(f'layout[{place}] == "{letter}"', lambda dims, layout: layout[place] == letter)
