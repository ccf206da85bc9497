"""Distils the data on a subject to a few configs and a tree that chooses among them."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.errors import NothingFound
from tuner.lookup.legality import Flags, Points
from tuner.lookup.tuned import Column, Subject, Tuned
from tuner.report.distil_tree import Rows, Tree, grow, ranking
from tuner.results.measurement import FALLS_BEHIND
from tuner.study.remeasure import Wanted

Floats = NDArray[np.float64]

#: Smallest gain of mean speed that counts.
LEAST_GAIN = 1e-9


def cover(speeds: Floats, count: int, given: Sequence[int] = ()) -> list[int]:
    """Returns the columns whose best, row by row, is fastest on average.

    Greedy: the column that gains most comes next. Then columns are exchanged as long as that gains, and finally
    every pair is taken out and replaced if that gains. Greedy alone reaches at least 63 % of the gain that is
    possible, because a column never gains more after others are chosen.

    Args:
        speeds: Shape (rows, columns): relative speed, 0 if a column may not be used for a row.
        count: Number of columns.
        given: Columns that are always included; they count.

    Returns:
        Columns in the order chosen; fewer than `count` if more would gain nothing.
    """
    return _without_pairs(speeds, _filled(speeds, list(given), count, len(given)), count, len(given))


def _filled(speeds: Floats, chosen: list[int], count: int, given: int) -> list[int]:
    """Adds the columns that gain most, up to `count`, and exchanges columns while that gains."""
    while len(chosen) < min(count, speeds.shape[1]):
        gains = np.maximum(speeds, _best(speeds, chosen)[:, None]).mean(axis=0)
        column = int(np.argmax(gains))
        if gains[column] <= _best(speeds, chosen).mean() + LEAST_GAIN:
            break
        chosen.append(column)
    return _exchanged(speeds, chosen, given)


def _without_pairs(speeds: Floats, chosen: list[int], count: int, given: int) -> list[int]:
    """Takes out every pair of columns and fills up again while that gains; a single exchange may not."""
    gained = True
    while gained:
        gained = False
        for pair in itertools.combinations(range(given, len(chosen)), 2):
            rest = [column for place, column in enumerate(chosen) if place not in pair]
            other = _filled(speeds, rest, count, given)
            if _best(speeds, other).mean() > _best(speeds, chosen).mean() + LEAST_GAIN:
                chosen, gained = other, True
                break
    return chosen


def _best(speeds: Floats, columns: Sequence[int]) -> Floats:
    if not columns:
        return np.zeros(len(speeds))
    best: Floats = speeds[:, list(columns)].max(axis=1)
    return best


def _exchanged(speeds: Floats, chosen: list[int], given: int) -> list[int]:
    """Exchanges one column at a time while that gains."""
    gained = True
    while gained:
        gained = False
        for place in range(given, len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            now = _best(speeds, chosen).mean()
            with_each = np.maximum(speeds, _best(speeds, others)[:, None]).mean(axis=0)
            column = int(np.argmax(with_each))
            if with_each[column] > now + LEAST_GAIN:
                chosen[place] = column
                gained = True
    return chosen


#: A config that always answers must be legal at these dims.
AWKWARD_DIMS = (1, 2, 3, 7, 17, 127, 1001, 4099)

Numbers = NDArray[np.intp]


@dataclass(frozen=True)
class Shapes:
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

    rows: tuple[Tuned, ...]
    regime: str
    kernels: Mapping[str, Kernel]
    columns: tuple[Column | None, ...]
    speeds: Floats
    measured: Floats
    always: tuple[bool, ...]

    @property
    def losses(self) -> Floats:
        """1 - speed; infinite if a column is not legal."""
        found: Floats = np.where(self.speeds > 0, 1 - self.speeds, np.inf)
        return found


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
        best: Loss of the best of the chosen configs.
        decided: Loss of the tree's choice.
        count: Largest number of configs requested.
    """

    shapes: Shapes
    chosen: tuple[int, ...]
    tree: Tree
    best: Losses
    decided: Losses
    count: int

    @functools.cached_property
    def left_out(self) -> Losses:
        """What it costs at shapes that neither configs nor tree were chosen by; takes a while."""
        rows = range(len(self.shapes.rows))
        return _costs(self.shapes, [(row, _without(self.shapes, row, self.count)) for row in rows])


def shapes_of(
    tuned: Sequence[Tuned], subject: Subject, catalogue: Catalogue, *, library: bool = False
) -> Shapes:
    """Returns the tuned shapes of a subject, with every config known there.

    Args:
        tuned: What was tuned.
        subject: Of what, and where.
        catalogue: The kernels.
        library: True if the library may be chosen, too.

    Raises:
        NothingFound: Fewer than two shapes were tuned on the device.
    """
    rows = tuple(each for each in tuned if each.champion is not None)
    if len(rows) < 2:
        raise NothingFound(
            f"to distil needs two tuned shapes or more, {len(rows)} of {subject.operation} {subject.dtype} are "
            f"tuned {subject.regime} on {subject.device}; run `tuner nightly` on a plan of shapes first"
        )
    kernels = {each.name: each for each in catalogue.of(subject.operation, subject.kind)}
    columns: list[Column | None] = list(dict.fromkeys(column for each in rows for column in each.times))
    configs = _Configs([column for column in columns if column is not None], kernels)
    legal = np.stack([configs.legal(each.problem, each.device) for each in rows])
    speeds, measured = _speeds(rows, configs.columns)
    speeds, always = np.where(legal, speeds, 0.0), configs.always(rows[0].problem, rows[0].device).tolist()
    if library:
        theirs = np.array([np.nan_to_num(each.best_s / each.library_s) for each in rows])
        speeds, measured = np.c_[speeds, theirs], np.c_[measured, theirs > 0]
        columns, always = [*columns, None], [*always, True]
        speeds = speeds / np.maximum(1.0, theirs)[:, None]
    return Shapes(rows, subject.regime, kernels, tuple(columns), speeds, measured, tuple(always))


class _Configs:
    """Columns, and where they are legal."""

    def __init__(self, columns: Sequence[Column], kernels: Mapping[str, Kernel]) -> None:
        self.columns = columns
        self._points = []
        for name, kernel in kernels.items():
            numbers = [at for at, (of, _) in enumerate(columns) if of == name]
            self._points.append((numbers, Points(kernel, [columns[at][1] for at in numbers])))

    def legal(self, problem: Problem, device: DeviceInfo) -> Flags:
        """Per column: whether it is legal."""
        found = np.zeros(len(self.columns), bool)
        for numbers, points in self._points:
            found[numbers] = points.flags(problem, device)[0]
        return found

    def always(self, like: Problem, device: DeviceInfo) -> Flags:
        """Per column: whether it is legal for every shape and layout, as tested at edge shapes."""
        operation, found = like.operation, np.ones(len(self.columns), bool)
        for layout in operation.layouts:
            for turn in range(len(AWKWARD_DIMS)):
                sizes = [AWKWARD_DIMS[(turn + 3 * at) % len(AWKWARD_DIMS)] for at in range(len(operation.dims))]
                dims = dict(zip(operation.dims, sizes, strict=True))
                problem = operation.problem(dims, like.dtype, layout, like.precision, like.epilogue)
                found &= self.legal(problem, device)
        return found


def _speeds(rows: Sequence[Tuned], columns: Sequence[Column]) -> tuple[Floats, Floats]:
    """Relative speeds, and which of them were measured; the others as at the nearest shape, and less."""
    behind = np.full((len(rows), len(columns)), np.nan)
    for row, each in enumerate(rows):
        for at, column in enumerate(columns):
            if column in each.times:
                behind[row, at] = max(np.log(each.times[column].time_s / each.best_s), 0.0)
    measured = ~np.isnan(behind)
    places = np.log2([[size for _, size in each.problem.shape] for each in rows])
    apart = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2))
    # Per row and column the nearest row that knows the column; its own, if that does.
    nearest = np.where(measured[None], apart[:, :, None], np.inf).argmin(axis=1)
    expected = np.take_along_axis(behind, nearest, axis=0) + FALLS_BEHIND * np.take_along_axis(
        apart, nearest, 1
    )
    return np.exp(-np.where(measured, behind, expected)), measured.astype(float)


def distilled(shapes: Shapes, count: int) -> Distilled:
    """Chooses configs and grows the tree.

    Args:
        shapes: The shapes and configs to choose from.
        count: Largest number of configs.
    """
    everything = np.arange(len(shapes.rows))
    chosen = _chosen(shapes, everything, count)
    tree = _tree(shapes, everything, chosen)
    rows = range(len(shapes.rows))
    best = [(row, max(chosen, key=lambda column: shapes.speeds[row, column])) for row in rows]
    decided = [(row, _decided(shapes, row, tree, chosen)) for row in rows]
    return Distilled(shapes, tuple(chosen), tree, _costs(shapes, best), _costs(shapes, decided), count)


def _chosen(shapes: Shapes, rows: Numbers, count: int) -> list[int]:
    """Returns the cover of some rows, with one column that is legal for every shape, if there is one."""
    speeds = shapes.speeds[rows]
    free = cover(speeds, count)
    if any(shapes.always[column] for column in free) or not any(shapes.always):
        return free
    among = [column for column in range(len(shapes.always)) if shapes.always[column]]
    covers = [cover(speeds, count, [column]) for column in _promising(speeds, among)]
    return max(covers, key=lambda columns: float(speeds[:, columns].max(axis=1).mean()))


def _promising(speeds: Floats, among: Sequence[int]) -> list[int]:
    return sorted(among, key=lambda column: -float(speeds[:, column].mean()))[:8]


def _tree(shapes: Shapes, rows: Numbers, chosen: Sequence[int]) -> Tree:
    places = [shapes.rows[row] for row in rows]
    return grow(
        Rows(
            [place.problem.dims for place in places],
            [place.problem.layout for place in places],
            shapes.losses[np.ix_(rows, np.array(chosen))],
        )
    )


def _decided(shapes: Shapes, row: int, tree: Tree, chosen: Sequence[int]) -> int | None:
    """Returns the column that the tree's function chooses for a row: the first legal one of its ranking."""
    problem: Problem = shapes.rows[row].problem
    for place in ranking(tree, problem.dims, problem.layout):
        if shapes.speeds[row, chosen[place]] > 0:
            return chosen[place]
    return None


def _without(shapes: Shapes, row: int, count: int) -> int | None:
    """Like `_decided`, with configs and a tree that were chosen without that row."""
    rows = np.array([each for each in range(len(shapes.rows)) if each != row])
    chosen = _chosen(shapes, rows, count)
    return _decided(shapes, row, _tree(shapes, rows, chosen), chosen)


def _costs(shapes: Shapes, answers: Sequence[tuple[int, int | None]]) -> Losses:
    losses = [1.0 if column is None else 1 - float(shapes.speeds[row, column]) for row, column in answers]
    unmeasured = sum(column is None or not shapes.measured[row, column] for row, column in answers)
    return Losses(statistics.fmean(losses), max(losses), len(losses), unmeasured)


def missing(found: Distilled) -> list[Wanted]:
    """Returns the missing times of the chosen configs at known shapes."""
    shapes, wanted = found.shapes, []
    for column in found.chosen:
        named = shapes.columns[column]
        if named is None:
            continue
        kernel, config = shapes.kernels[named[0]], named[1]
        for row, place in enumerate(shapes.rows):
            if shapes.speeds[row, column] > 0 and not shapes.measured[row, column]:
                wanted.append(Wanted(place.problem, kernel, config, place.best_s))
    return wanted
