"""Distils the data on a subject to a few configs and a decision tree that chooses among them."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup.legality import Flags, Points
from tuner.lookup.tuned import Column, Subject, TunedProblem
from tuner.results.distance import distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.study.remeasure import MissingTime

Floats = NDArray[np.float64]
Numbers = NDArray[np.intp]

#: Smallest gain of mean speed that counts.
LEAST_GAIN = 1e-9
#: A config that always answers must be legal at these dims.
AWKWARD_DIMS = (1, 2, 3, 7, 17, 127, 1001, 4099)
#: Largest number of questions from the root of a tree to a leaf.
DEPTH = 7
#: Candidates for the least gain of a question in mean loss over all rows: from a full tree to a small one.
LEAST_GAINS = (0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008)


# ---- the cover: few columns, one of which is fast in each row


def cover(speeds: Floats, count: int, given: Sequence[int] = ()) -> list[int]:
    """Returns the columns whose best, row by row, is fastest on average.

    Greedy: the column that gains most comes next. Then one or two columns at a time are taken out and replaced,
    as long as that gains. Greedy alone reaches at least 63 % of the gain that is possible, because a column
    never gains more after others are chosen.

    Args:
        speeds: Shape (rows, columns): relative speed, 0 if a column may not be used for a row.
        count: Number of columns.
        given: Columns that are always included; they count.

    Returns:
        Columns in the order chosen; fewer than `count` if more would gain nothing.
    """
    chosen, gained = _filled(speeds, list(given), count), True
    while gained:
        gained = False
        for gone in itertools.chain.from_iterable(
            itertools.combinations(chosen[len(given) :], size) for size in (1, 2)
        ):
            other = _filled(speeds, [column for column in chosen if column not in gone], count)
            if _best(speeds, other).mean() > _best(speeds, chosen).mean() + LEAST_GAIN:
                chosen, gained = other, True
                break
    return chosen


def _filled(speeds: Floats, chosen: list[int], count: int) -> list[int]:
    """Adds the columns that gain most, up to `count`."""
    while len(chosen) < min(count, speeds.shape[1]):
        gains = np.maximum(speeds, _best(speeds, chosen)[:, None]).mean(axis=0)
        column = int(np.argmax(gains))
        if gains[column] <= _best(speeds, chosen).mean() + LEAST_GAIN:
            break
        chosen.append(column)
    return chosen


def _best(speeds: Floats, columns: Sequence[int]) -> Floats:
    best: Floats = speeds[:, list(columns)].max(axis=1, initial=0.0)
    return best


# ---- the tree: which of a few columns to prefer at a shape


@dataclass(frozen=True)
class Fork:
    """A question about a shape and its two branches.

    Attributes:
        question: A Python expression in the dims and ``layout``.
        yes: The branch where it is true.
        no: The branch where it is false.
        ranking: The leaf that would stand here without the question.
        gain: What the question gains in mean loss over all rows.
    """

    question: str
    yes: Tree
    no: Tree
    ranking: tuple[int, ...]
    gain: float


#: A leaf ranks the columns, the one to prefer first.
Tree = Fork | tuple[int, ...]


@dataclass(frozen=True)
class TreeRows:
    """The data for growing a tree.

    Attributes:
        dims: Per row: the shape.
        layouts: Per row: the layout.
        losses: Shape (rows, columns): loss of a column, as a fraction of speed; infinite if it may not be used.
    """

    dims: Sequence[Mapping[str, int]]
    layouts: Sequence[str]
    losses: Floats


@functools.cache
def _compiled(question: str) -> object:
    return compile(question, "<question>", "eval")


def _holds(question: str, dims: Mapping[str, int], layout: str) -> bool:
    return bool(eval(_compiled(question), {"min": min, "max": max}, {**dims, "layout": layout}))  # type: ignore[arg-type]


def ranking(tree: Tree, dims: Mapping[str, int], layout: str) -> tuple[int, ...]:
    """Returns the columns for a shape, the one to prefer first."""
    while isinstance(tree, Fork):
        tree = tree.yes if _holds(tree.question, dims, layout) else tree.no
    return tree


def grow(rows: TreeRows) -> Tree:
    """Grows the tree whose leaves' first choices cost least, with the size chosen by cross-validation.

    The least gain of a question is chosen so that left-out rows cost little: among the values within one
    standard error of the best, the one whose tree suits the known rows best.
    """
    grower = _Grower(rows)
    everything = np.arange(len(rows.dims))
    whole = grower.grown(everything)
    if len(everything) < 3:
        return _cut(whole, LEAST_GAINS[0])
    losses = np.array([grower.losses_without(int(row)) for row in everything]).T
    means = losses.mean(axis=1)
    least = int(np.argmin(means))
    errors = np.std(losses - losses[least], axis=1) / math.sqrt(len(everything))
    return _cut(whole, LEAST_GAINS[int(np.argmax(means <= means[least] + errors))])


def _cut(tree: Tree, gain: float) -> Tree:
    """Returns the tree whose questions each gain at least this much, and decide something."""
    if not isinstance(tree, Fork):
        return tree
    yes, no = _cut(tree.yes, gain), _cut(tree.no, gain)
    alike = not isinstance(yes, Fork) and not isinstance(no, Fork) and yes[:1] == no[:1]
    return tree.ranking if tree.gain < gain or alike else replace(tree, yes=yes, no=no)


class _Grower:
    """Grows trees of some of the rows; every question is answered once."""

    def __init__(self, rows: TreeRows) -> None:
        self._rows = rows
        self._losses = np.where(np.isinf(rows.losses), 1.0, rows.losses)
        self._questions = list(_questions(rows.dims, rows.layouts))
        shapes = list(zip(rows.dims, rows.layouts, strict=True))
        answers = [[_holds(question, *shape) for shape in shapes] for question in self._questions]
        self._answers = np.array(answers, bool).reshape(len(self._questions), len(shapes))

    def losses_without(self, row: int) -> list[float]:
        """Returns the loss at a row of trees grown without it, for each of `LEAST_GAINS`."""
        tree = self.grown(np.flatnonzero(np.arange(len(self._losses)) != row))
        losses = []
        for gain in LEAST_GAINS:
            order = ranking(_cut(tree, gain), self._rows.dims[row], self._rows.layouts[row])
            usable = (loss for loss in self._rows.losses[row, list(order)] if np.isfinite(loss))
            losses.append(float(next(usable, 1.0)))
        return losses

    def grown(self, at: Numbers) -> Tree:
        """Grows the tree of some rows, from these rows alone."""
        return self._part(at, DEPTH, self._losses[at].mean(axis=0), len(at))

    def _part(self, at: Numbers, depth: int, usual: Floats, count: int) -> Tree:
        """Grows a part of a tree.

        Args:
            at: The rows that reach this part.
            depth: Largest number of questions to a leaf.
            usual: Loss of each column over all rows of the tree, to break ties.
            count: Number of rows of the tree.
        """
        sums = self._losses[at].sum(axis=0)
        leaf, least = tuple(np.lexsort((usual, sums)).tolist()), float(sums.min())
        costs = self._costs(at) if depth and least > LEAST_GAINS[0] * count else np.zeros(0)
        if not np.isfinite(costs).any():
            return leaf
        number = int(np.argmin(np.round(costs, 9)))
        answers = self._answers[number, at]
        yes, no = (self._part(some, depth - 1, usual, count) for some in (at[answers], at[~answers]))
        return Fork(self._questions[number], yes, no, leaf, (least - float(costs[number])) / count)

    def _costs(self, at: Numbers) -> Floats:
        """Per question: the total loss of rows after it; infinite if it does not separate them."""
        yes, losses = self._answers[:, at].astype(float), self._losses[at]
        count = yes.sum(axis=1)
        costs: Floats = (yes @ losses).min(axis=1) + ((1 - yes) @ losses).min(axis=1)
        costs[(count == 0) | (count == len(at))] = np.inf
        return costs


def _questions(dims: Sequence[Mapping[str, int]], layouts: Sequence[str]) -> Iterator[str]:
    """Yields all possible questions: sizes of dims and their products, their divisors, the layout."""
    names = list(dims[0])

    def at_most(text: str, sizes: set[int]) -> Iterator[str]:
        return (f"{text} <= {_between(*pair):_}" for pair in itertools.pairwise(sorted(sizes)))

    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            yield from at_most(" * ".join(some), {math.prod(shape[name] for name in some) for shape in dims})
    for name, divisor in itertools.product(names, (2, 4)):
        yield f"{name} % {divisor} == 0"
    for left, right in itertools.combinations(names, 2):
        yield f"{left} <= {right}"
        for end in (min, max):
            yield from at_most(f"{end.__name__}({left}, {right})", {end(s[left], s[right]) for s in dims})
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
    measured: Floats
    always: tuple[bool, ...]


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

    @functools.cached_property
    def best(self) -> Losses:
        """Loss of the best of the chosen configs."""
        speeds = self.shapes.speeds
        return _losses(self.shapes, [max(self.chosen, key=lambda column: row[column]) for row in speeds])

    @functools.cached_property
    def decided(self) -> Losses:
        """Loss of the tree's choice."""
        return _losses(self.shapes, [self.decision(row) for row in range(len(self.shapes.rows))])

    @functools.cached_property
    def left_out(self) -> Losses:
        """What it costs at shapes that neither configs nor tree were chosen by; takes a while."""
        every = range(len(self.shapes.rows))
        without = (distilled(self.shapes, self.count, [at for at in every if at != row]) for row in every)
        return _losses(self.shapes, [choice.decision(row) for row, choice in enumerate(without)])

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


def _losses(shapes: KnownShapes, answers: Sequence[int | None]) -> Losses:
    """The losses of an answer for each row; None is no answer."""
    pairs = list(enumerate(answers))
    losses = [1.0 if column is None else 1 - float(shapes.speeds[row, column]) for row, column in pairs]
    unmeasured = sum(column is None or not shapes.measured[row, column] for row, column in pairs)
    return Losses(statistics.fmean(losses), max(losses), len(losses), unmeasured)


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
    configs = _Configs(known, kernels)
    legal = np.stack([configs.legal(place.problem, place.device) for place in rows])
    speeds, measured = _speeds(rows, known)
    speeds, always = np.where(legal, speeds, 0.0), configs.always(rows[0].problem, rows[0].device).tolist()
    columns: list[Column | None] = [*known]
    if library:
        theirs = np.array([np.nan_to_num(place.best_s / place.library_s) for place in rows])
        speeds, measured = np.c_[speeds, theirs], np.c_[measured, theirs > 0]
        columns, always = [*columns, None], [*always, True]
        speeds = speeds / np.maximum(1.0, theirs)[:, None]
    return KnownShapes(rows, subject.regime, kernels, tuple(columns), speeds, measured, tuple(always))


class _Configs:
    """Columns, and where they are legal."""

    def __init__(self, columns: Sequence[Column], kernels: Mapping[str, Kernel]) -> None:
        self._count = len(columns)
        self._points = []
        for name, kernel in kernels.items():
            numbers = [at for at, (of, _) in enumerate(columns) if of == name]
            self._points.append((numbers, Points(kernel, [columns[at][1] for at in numbers])))

    def legal(self, problem: Problem, device: DeviceInfo) -> Flags:
        """Per column: whether it is legal."""
        flags = np.zeros(self._count, bool)
        for numbers, points in self._points:
            flags[numbers] = points.flags(problem, device)[0]
        return flags

    def always(self, like: Problem, device: DeviceInfo) -> Flags:
        """Per column: whether it is legal for every shape and layout, as tested at edge shapes."""
        operation, flags = like.operation, np.ones(self._count, bool)
        for layout, turn in itertools.product(operation.layouts, range(len(AWKWARD_DIMS))):
            sizes = [AWKWARD_DIMS[(turn + 3 * at) % len(AWKWARD_DIMS)] for at in range(len(operation.dims))]
            dims = dict(zip(operation.dims, sizes, strict=True))
            problem = operation.problem(dims, like.dtype, layout, like.precision, like.epilogue)
            flags &= self.legal(problem, device)
        return flags


def _speeds(rows: Sequence[TunedProblem], columns: Sequence[Column]) -> tuple[Floats, Floats]:
    """Relative speeds, and which of them were measured; the others as at the nearest shape, and less."""
    behind = np.full((len(rows), len(columns)), np.nan)
    for row, place in enumerate(rows):
        for at, column in enumerate(columns):
            if column in place.times:
                behind[row, at] = max(np.log(place.times[column].time_s / place.best_s), 0.0)
    measured = ~np.isnan(behind)
    logs = np.array([log_dims(place.problem.shape) for place in rows])
    apart = distances(logs[:, None], logs[None])
    # Per row and column the nearest row that knows the column; its own, if that does.
    nearest = np.where(measured[None], apart[:, :, None], np.inf).argmin(axis=1)
    farther = FALLS_BEHIND * np.take_along_axis(apart, nearest, 1)
    expected = np.take_along_axis(behind, nearest, axis=0) + farther
    return np.exp(-np.where(measured, behind, expected)), measured.astype(float)


def distilled(shapes: KnownShapes, count: int, known: Sequence[int] | None = None) -> Distilled:
    """Chooses configs and grows the tree.

    Args:
        shapes: The shapes and configs to choose from.
        count: Largest number of configs.
        known: The rows to learn from; by default all.
    """
    rows = np.arange(len(shapes.rows)) if known is None else np.array(known)
    chosen = _chosen(shapes, shapes.speeds[rows], count)
    problems = [shapes.rows[row].problem for row in rows]
    speeds = shapes.speeds[np.ix_(rows, np.array(chosen))]
    losses = np.where(speeds > 0, 1 - speeds, np.inf)
    tree = grow(TreeRows([each.dims for each in problems], [each.layout for each in problems], losses))
    return Distilled(shapes, tuple(chosen), tree, count)


def _chosen(shapes: KnownShapes, speeds: Floats, count: int) -> list[int]:
    """Returns the cover of some rows, with one column that is legal for every shape, if there is one."""
    free = cover(speeds, count)
    always = [column for column, legal in enumerate(shapes.always) if legal]
    if not always or not set(always).isdisjoint(free):
        return free
    promising = sorted(always, key=lambda column: -float(speeds[:, column].mean()))[:8]
    covers = [cover(speeds, count, [column]) for column in promising]
    return max(covers, key=lambda columns: float(speeds[:, columns].max(axis=1).mean()))
