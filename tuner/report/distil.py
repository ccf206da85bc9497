"""Distils the data on a subject to a few configs and a decision tree that chooses among them."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup.legality import Flags, Points
from tuner.lookup.snapshot import Column, Subject, TunedProblem
from tuner.results.distance import distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.study.first_use import MissingTime

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]

#: A config that always answers must be legal at these dims.
AWKWARD_DIMS = (1, 2, 3, 7, 17, 127, 1001, 4099)
#: Largest number of questions from the root of a tree to a leaf.
DEPTH = 7
#: Least gain of a question in mean loss over all rows: one that gains less is not asked.
LEAST_GAIN = 0.001


# ---- the cover: few columns, one of which is fast in each row


def cover(speeds: Floats, count: int, given: Sequence[int] = ()) -> list[int]:
    """Returns the columns whose best, row by row, is fastest on average.

    Greedy: the column that gains most comes next. Then one column at a time is taken out and replaced, as long
    as that gains. Greedy alone reaches at least 63 % of the gain that is possible, because a column never gains
    more after others are chosen.

    Args:
        speeds: Shape (rows, columns): relative speed, 0 if a column may not be used for a row.
        count: Number of columns.
        given: Columns that are always included; they count.

    Returns:
        Columns in the order chosen; fewer than `count` if more would gain nothing.
    """
    chosen = _filled(speeds, given, count)
    while True:
        kept = ([column for column in chosen if column != gone] for gone in chosen[len(given) :])
        others = [_filled(speeds, columns, count) for columns in kept]
        best = max(others, key=lambda columns: _worth(speeds, columns), default=chosen)
        if _worth(speeds, best) <= _worth(speeds, chosen) + 1e-9:
            return chosen
        chosen = best


def _filled(speeds: Floats, chosen: Sequence[int], count: int) -> list[int]:
    """Adds the columns that gain most, up to `count`."""
    filled = list(chosen)
    while len(filled) < min(count, speeds.shape[1]):
        best = speeds[:, filled].max(axis=1, initial=0.0)
        column = int(np.argmax(np.maximum(speeds, best[:, None]).mean(axis=0)))
        if _worth(speeds, [*filled, column]) <= _worth(speeds, filled) + 1e-9:
            break
        filled.append(column)
    return filled


def _worth(speeds: Floats, columns: Sequence[int]) -> float:
    """Mean speed of the best of some columns."""
    return float(speeds[:, list(columns)].max(axis=1, initial=0.0).mean())


# ---- the tree: which of a few columns to prefer at a shape


@dataclass(frozen=True)
class Fork:
    """A question about a shape and its two branches.

    Attributes:
        question: A Python expression in the dims and ``layout``.
        yes: The branch where it is true.
        no: The branch where it is false.
    """

    question: str
    yes: Tree
    no: Tree


#: A leaf ranks the columns, the one to prefer first.
Tree = Fork | tuple[int, ...]


def _holds(question: str, dims: Mapping[str, int], layout: str) -> bool:
    return bool(eval(_compiled(question), {"min": min, "max": max}, {**dims, "layout": layout}))  # type: ignore[arg-type]


@functools.cache
def _compiled(question: str) -> object:
    return compile(question, "<question>", "eval")


def ranking(tree: Tree, dims: Mapping[str, int], layout: str) -> tuple[int, ...]:
    """Returns the columns for a shape, the one to prefer first."""
    while isinstance(tree, Fork):
        tree = tree.yes if _holds(tree.question, dims, layout) else tree.no
    return tree


def grow(dims: Sequence[Mapping[str, int]], layouts: Sequence[str], losses: Floats) -> Tree:
    """Grows the tree whose leaves' first choices cost least.

    Args:
        dims: Per row: the shape.
        layouts: Per row: the layout.
        losses: Shape (rows, columns): loss of a column, as a fraction of speed; infinite if it may not be used.
    """
    losses = np.where(np.isinf(losses), 1.0, losses)
    questions = list(_questions(dims, layouts))
    shapes = list(zip(dims, layouts, strict=True))
    answers = np.array([[_holds(question, *shape) for shape in shapes] for question in questions], bool)
    usual = losses.mean(axis=0)

    def grown(rows: Numbers, depth: int) -> Tree:
        """Grows the part of the tree that these rows reach."""
        sums = losses[rows].sum(axis=0)
        leaf = tuple(np.lexsort((usual, sums)).tolist())
        yes = answers[:, rows].astype(float)
        # Per question: the total loss of rows after it; infinite if it does not separate them.
        costs = (yes @ losses[rows]).min(axis=1) + ((1 - yes) @ losses[rows]).min(axis=1)
        costs[yes.min(axis=1) == yes.max(axis=1)] = np.inf
        best = int(np.argmin(np.round(costs, 9)))
        if not depth or sums.min() - costs[best] < LEAST_GAIN * len(losses):
            return leaf
        branches = (grown(rows[answers[best, rows] == answer], depth - 1) for answer in (True, False))
        return Fork(questions[best], *branches)

    return grown(np.arange(len(losses)), DEPTH) if questions else tuple(np.argsort(usual).tolist())


def _questions(dims: Sequence[Mapping[str, int]], layouts: Sequence[str]) -> Iterator[str]:
    """Yields all possible questions: sizes of dims and their products, their divisors, the layout."""
    names = list(dims[0])

    def at_most(text: str) -> Iterator[str]:
        sizes = {eval(text, {"min": min, "max": max}, dict(shape)) for shape in dims}
        return (f"{text} <= {_between(*pair):_}" for pair in itertools.pairwise(sorted(sizes)))

    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            yield from at_most(" * ".join(some))
    for name, divisor in itertools.product(names, (2, 4)):
        yield f"{name} % {divisor} == 0"
    for left, right in itertools.combinations(names, 2):
        yield f"{left} <= {right}"
        yield from at_most(f"min({left}, {right})")
        yield from at_most(f"max({left}, {right})")
    for place in range(len(layouts[0])):
        for letter in sorted({layout[place] for layout in layouts})[1:]:
            yield f'layout[{place}] == "{letter}"'


def _between(low: int, high: int) -> int:
    """Returns a round number from one size on, and below the next: the first power of two, or the middle."""
    power = 1 << (low - 1).bit_length()
    return power if power < high else int(math.sqrt(low * high))


# ---- the data, and the choice


@dataclass(frozen=True)
class KnownShapes:
    """Known shapes of an operation on a device, and configs for them.

    Attributes:
        rows: The shapes.
        regime: How they were timed.
        kernels: By name.
        columns: Kernel and config of each column; the library's last, if it may be chosen.
        speeds: Shape (rows, columns): relative to the best of the row, 0 if a column is not legal.
        measured: True for the measured ones of `speeds`; the others are expected from the nearest shape.
        always: Per column: legal at the most edge shapes.
    """

    rows: tuple[TunedProblem, ...]
    regime: str
    kernels: Mapping[str, Kernel]
    columns: tuple[Column | None, ...]
    speeds: Floats
    measured: Flags
    always: Flags


@dataclass(frozen=True)
class Losses:
    """The loss of a choice over the known shapes, as fractions of speed.

    Attributes:
        mean: Over the shapes.
        worst: Of one shape.
        shapes: Number of shapes.
        unmeasured: Number of shapes that rest on estimates rather than measurements.
    """

    mean: float
    worst: float
    shapes: int
    unmeasured: int

    @classmethod
    def of(cls, shapes: KnownShapes, answers: Sequence[int | None]) -> Losses:
        """The losses of an answer for each row; None is no answer."""
        pairs = list(enumerate(answers))
        losses = [1.0 if column is None else 1 - float(shapes.speeds[row, column]) for row, column in pairs]
        unmeasured = sum(column is None or not shapes.measured[row, column] for row, column in pairs)
        return cls(statistics.fmean(losses), max(losses), len(losses), unmeasured)

    def __str__(self) -> str:
        rest = f", {self.unmeasured} of them not measured" if self.unmeasured else ""
        return f"mean {self.mean:.2%}, worst {self.worst:.2%} over {self.shapes} shapes{rest}"


@dataclass(frozen=True)
class Distilled:
    """Few configs for many shapes.

    Attributes:
        shapes: The known shapes and their configs.
        chosen: Numbers of columns, in the order chosen.
        tree: Chooses among them, by their place in `chosen`.
        count: Largest number of configs requested.
    """

    shapes: KnownShapes
    chosen: tuple[int, ...]
    tree: Tree
    count: int

    @property
    def columns(self) -> list[Column | None]:
        """Kernel and config of the chosen columns; None for the library."""
        return [self.shapes.columns[number] for number in self.chosen]

    @property
    def fastest(self) -> list[int]:
        """Per row: the best of the chosen columns."""
        return [max(self.chosen, key=lambda column: speeds[column]) for speeds in self.shapes.speeds]

    @functools.cached_property
    def losses(self) -> dict[str, Losses]:
        """``best``: of the best chosen config; ``decided``: of the tree's; ``left_out``: of other choices.

        Those of ``left_out`` are at shapes that neither configs nor tree were chosen by.
        """
        every = range(len(self.shapes.rows))
        without = (distilled(self.shapes, self.count, [at for at in every if at != row]) for row in every)
        answers: dict[str, Sequence[int | None]] = {
            "best": self.fastest, "decided": [self.decision(row) for row in every],
            "left_out": [choice.decision(row) for row, choice in enumerate(without)],
        }  # fmt: skip
        return {name: Losses.of(self.shapes, columns) for name, columns in answers.items()}

    def decision(self, row: int) -> int | None:
        """Returns the column that the tree chooses for a row: the first legal one of its ranking."""
        problem = self.shapes.rows[row].problem
        order = (self.chosen[place] for place in ranking(self.tree, problem.dims, problem.layout))
        return next((column for column in order if self.shapes.speeds[row, column] > 0), None)

    def missing(self) -> list[MissingTime]:
        """Returns the missing times of the chosen configs at known shapes."""
        shapes = self.shapes
        return [
            MissingTime(place.problem, shapes.kernels[named[0]], named[1], place.best_s)
            for column, named in zip(self.chosen, self.columns, strict=True)
            for row, place in enumerate(shapes.rows)
            if named is not None and shapes.speeds[row, column] > 0 and not shapes.measured[row, column]
        ]


def shapes_of(
    tuned: Sequence[TunedProblem], subject: Subject, catalogue: Catalogue, *, library: bool = False
) -> KnownShapes:
    """Returns the tuned shapes of a subject, with every config known there.

    Args:
        tuned: What was tuned.
        subject: Of what, and where.
        catalogue: The kernels.
        library: True if the library may be chosen, too.

    Raises:
        NothingFound: Fewer than two shapes were tuned on the device.
    """
    rows = tuple(place for place in tuned if place.champion is not None)
    if len(rows) < 2:
        raise NothingFound(
            f"to distil needs two tuned shapes or more, {len(rows)} of {subject.operation} {subject.dtype} are "
            f"tuned {subject.regime} on {subject.device}; run `tuner nightly` on a plan of shapes first"
        )
    kernels = {kernel.name: kernel for kernel in catalogue.of(subject.operation, subject.kind)}
    known = list(dict.fromkeys(column for place in rows for column in place.times))
    points = {
        name: Points(kernel, [config for of, config in known if of == name]) for name, kernel in kernels.items()
    }
    places = {name: [at for at, (of, _) in enumerate(known) if of == name] for name in kernels}

    def legal(problem: Problem, device: DeviceInfo) -> Flags:
        flags = np.zeros(len(known), bool)
        for name, numbers in places.items():
            flags[numbers] = points[name].flags(problem, device)[0]
        return flags

    speeds, measured = _speeds(rows, known)
    speeds = np.where([legal(place.problem, place.device) for place in rows], speeds, 0.0)
    # Legal for every shape and layout, as tested at edge shapes.
    always = np.all([legal(problem, rows[0].device) for problem in _awkward(rows[0].problem)], axis=0)
    columns: list[Column | None] = [*known]
    if library:
        theirs = np.array([np.nan_to_num(place.best_s / place.library_s) for place in rows])
        speeds = np.c_[speeds, theirs] / np.maximum(1.0, theirs)[:, None]
        measured, always = np.c_[measured, theirs > 0], np.append(always, True)
        columns.append(None)
    return KnownShapes(rows, subject.regime, kernels, tuple(columns), speeds, measured, always)


def _awkward(like: Problem) -> Iterator[Problem]:
    """Problems at the edge: every layout at each turn of awkward dims."""
    operation = like.operation
    for layout, turn in itertools.product(operation.layouts, range(len(AWKWARD_DIMS))):
        dims = {
            name: AWKWARD_DIMS[(turn + 3 * at) % len(AWKWARD_DIMS)] for at, name in enumerate(operation.dims)
        }
        yield operation.problem(dims, like.dtype, layout, like.precision, like.epilogue)


def _speeds(rows: Sequence[TunedProblem], columns: Sequence[Column]) -> tuple[Floats, Flags]:
    """Relative speeds, and which of them were measured; the others as at the nearest shape, and less."""
    times_s = np.array(
        [
            [place.times[column].time_s if column in place.times else np.nan for column in columns]
            for place in rows
        ]
    )
    behind = np.maximum(np.log(times_s / np.array([place.best_s for place in rows])[:, None]), 0.0)
    measured = ~np.isnan(behind)
    logs = np.array([log_dims(place.problem.shape) for place in rows])
    apart = distances(logs[:, None], logs[None])
    # Per row and column the nearest row that knows the column; its own, if that does.
    nearest = np.where(measured[None], apart[:, :, None], np.inf).argmin(axis=1)
    farther = FALLS_BEHIND * np.take_along_axis(apart, nearest, 1)
    expected = np.take_along_axis(behind, nearest, axis=0) + farther
    return np.exp(-np.where(measured, behind, expected)), measured


def distilled(shapes: KnownShapes, count: int, known: Sequence[int] | None = None) -> Distilled:
    """Chooses configs, one of which is legal for every shape if there is one, and grows the tree.

    Args:
        shapes: The shapes and configs to choose from.
        count: Largest number of configs.
        known: The rows to learn from; by default all.
    """
    rows = np.arange(len(shapes.rows)) if known is None else np.array(known)
    speeds = shapes.speeds[rows]
    chosen, always = cover(speeds, count), np.flatnonzero(shapes.always).tolist()
    if set(always).isdisjoint(chosen):
        promising = sorted(always, key=lambda column: -float(speeds[:, column].mean()))[:8]
        covers = [cover(speeds, count, [column]) for column in promising]
        chosen = max(covers, key=lambda columns: _worth(speeds, columns), default=chosen)
    problems = [shapes.rows[row].problem for row in rows]
    losses = np.where(speeds[:, chosen] > 0, 1 - speeds[:, chosen], np.inf)
    tree = grow([problem.dims for problem in problems], [problem.layout for problem in problems], losses)
    return Distilled(shapes, tuple(chosen), tree, count)
