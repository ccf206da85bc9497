"""Distils the data on a subject to a few configs and a tree that chooses among them."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.distil.cover import Floats, cover
from tuner.distil.tree import Rows, Tree, grow, ranking
from tuner.errors import NothingFound
from tuner.lookup.estimate import likely_loss
from tuner.lookup.legality import Flags
from tuner.lookup.matrix import Column, Place
from tuner.lookup.snapshot import SubjectData
from tuner.lookup.transfer import Numbers
from tuner.study.remeasure import Wanted

#: A config that always answers must be legal at these dims.
AWKWARD_DIMS = (1, 2, 3, 7, 17, 127, 1001, 4099)


@dataclass(frozen=True)
class Shapes:
    """Known shapes of an operation on a device, and configs for them.

    Attributes:
        data: What is known.
        places: Numbers of the places, which are the rows.
        columns: Kernel and config of each column; the library's last, if it may be chosen.
        speeds: Shape (rows, columns): relative to the best of the row, 0 if a column is not legal.
        measured: True for the measured ones of `speeds`; the others are estimated from the records.
        always: Per column: legal at the most edge shapes.
    """

    data: SubjectData
    places: tuple[int, ...]
    columns: tuple[Column | None, ...]
    speeds: Floats
    measured: Floats
    always: tuple[bool, ...]

    @property
    def rows(self) -> list[Place]:
        """The places."""
        return [self.data.matrix.places[number] for number in self.places]

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
        rows = range(len(self.shapes.places))
        return _costs(self.shapes, [(row, _without(self.shapes, row, self.count)) for row in rows])


def shapes_of(data: SubjectData, device: DeviceInfo, *, library: bool = False) -> Shapes:
    """Returns the known shapes on a device, with every config known there.

    Args:
        data: What is known.
        device: By name.
        library: True if the library may be chosen, too.

    Raises:
        NothingFound: Fewer than two shapes were tuned on the device.
    """
    landscape, matrix = data.landscape, data.matrix
    places = [
        number
        for number, place in enumerate(matrix.places)
        if place.device.name == device.name and place.champion is not None
    ]
    if len(places) < 2 or landscape is None:
        raise NothingFound(
            f"to distil needs two tuned shapes or more, {len(places)} of {matrix.subject.operation} "
            f"{matrix.subject.dtype} are tuned {matrix.subject.regime} on {device.name}; run `tuner nightly` "
            "on a plan of shapes first"
        )
    rows = [matrix.places[number] for number in places]
    legal = np.stack([landscape.legal(place.problem, place.device)[0] for place in rows])
    known = landscape.known_at(data.places(lambda place: place in places))
    used = np.flatnonzero(legal.any(axis=0) & known)
    speeds = np.zeros((len(places), len(used)))
    measured = np.zeros_like(speeds)
    for row, number in enumerate(places):
        at = np.flatnonzero(legal[row, used])
        speeds[row, at], measured[row, at] = _speeds(data, number, used[at])
    columns: list[Column | None] = [matrix.columns[number] for number in used]
    always = [bool(each) for each in _always(data, matrix.places[places[0]], used)]
    if library:
        theirs = np.exp(-np.nan_to_num(matrix.library[places], nan=np.inf))
        speeds, measured = np.c_[speeds, theirs], np.c_[measured, theirs > 0]
        columns, always = [*columns, None], [*always, True]
        speeds = speeds / np.maximum(1.0, theirs)[:, None]
    return Shapes(data, tuple(places), tuple(columns), speeds, measured, tuple(always))


def _speeds(data: SubjectData, number: int, columns: Numbers) -> tuple[Floats, Floats]:
    """Returns relative speeds at a place, and which of them were measured."""
    assert data.landscape is not None, "asked only where there are places"
    place = data.matrix.places[number]
    elsewhere = data.places(lambda other: data.matrix.places[other].device.name == place.device.name)
    estimate = data.landscape.estimate(data.model(), place.problem, place.device, elsewhere, columns)
    loss = likely_loss(estimate.slower + _cost_of_blocks(data, place)[columns], estimate.variance)
    times = [place.times.get(data.matrix.columns[column]) for column in columns]
    known = np.array([place.best_s / time.time_s if time else np.nan for time in times])
    measured = ~np.isnan(known)
    return np.where(measured, np.minimum(known, 1.0), 1 - loss), measured.astype(float)


def _cost_of_blocks(data: SubjectData, place: Place) -> Floats:
    """Per column: what its whole blocks cost at a place, beyond what those of the champion do."""
    assert data.landscape is not None, "asked only where there are places"
    costs: Floats = data.model().trust @ data.landscape.costs(place.problem, place.device)
    if place.champion is None:
        return costs
    beyond: Floats = costs - costs[data.matrix.columns.index(place.champion)]
    return beyond


def _always(data: SubjectData, place: Place, columns: Numbers) -> Flags:
    """Returns the columns that are legal for every shape and layout, as tested at edge shapes."""
    assert data.landscape is not None, "asked only where there are places"
    operation, found = place.problem.operation, np.ones(len(data.matrix.columns), bool)
    for layout in operation.layouts:
        for turn in range(len(AWKWARD_DIMS)):
            sizes = [AWKWARD_DIMS[(turn + 3 * at) % len(AWKWARD_DIMS)] for at in range(len(operation.dims))]
            dims = dict(zip(operation.dims, sizes, strict=True))
            problem = operation.problem(
                dims, place.problem.dtype, layout, place.problem.precision, place.problem.epilogue
            )
            found &= data.landscape.legal(problem, place.device)[0]
    always: Flags = found[columns]
    return always


def distilled(shapes: Shapes, count: int) -> Distilled:
    """Chooses configs and grows the tree.

    Args:
        shapes: The shapes and configs to choose from.
        count: Largest number of configs.
    """
    everything = np.arange(len(shapes.places))
    chosen = _chosen(shapes, everything, count)
    tree = _tree(shapes, everything, chosen)
    rows = range(len(shapes.places))
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
    rows = np.array([each for each in range(len(shapes.places)) if each != row])
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
        kernel, config = shapes.data.matrix.kernels[named[0]], named[1]
        for row, place in enumerate(shapes.rows):
            if shapes.speeds[row, column] > 0 and not shapes.measured[row, column]:
                wanted.append(Wanted(place.problem, kernel, config, place.best_s))
    return wanted
