"""``tuner distil``: chooses few configs for many shapes, times what they lack, and writes the choice down.

It is written as a Python module that imports nothing: the configs, the conditions under which each is legal,
and their speeds at the tuned shapes. A shape takes the legal one that is fastest where near shapes count most.
"""

from __future__ import annotations

import math
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import click
import numpy as np

from tuner.cli.formatting import config_text, print_json, table
from tuner.cli.options import data_options, subject_options, writable_file
from tuner.declare.catalogue import Catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice, find, gpus, is_spec
from tuner.devices.protocol import REGIMES
from tuner.errors import DeviceTrouble, NothingFound
from tuner.export.symbolic import filled, in_python, traced
from tuner.lookup.asking import completed_device, opened, parse_device
from tuner.lookup.legality import Flags, Points
from tuner.lookup.snapshot import Column, Snapshot, TunedProblem
from tuner.lookup.stale import builtin_now
from tuner.report.remeasuring import MissingTime, remeasure
from tuner.results.distance import Floats, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.results.record import ELSEWHERE, Subject
from tuner.store import Store
from tuner.study.locks import occupied
from tuner.version import __version__
from tuner.workers.device_worker import Crew

#: Another layout counts as a shape that is so many times as large.
OTHER_LAYOUT = 150
#: Length of lines of the written function.
WIDTH = 110


# ---- the cover: few columns, one of which is fast in each row


def cover(speeds: Floats, count: int) -> list[int]:
    """The columns whose best, row by row, is fastest on average.

    Greedy: the column that gains most comes next. Then one column at a time is taken out and replaced, as long
    as that gains. Greedy alone reaches at least 63 % of the gain that is possible, because a column never gains
    more after others are chosen.

    Args:
        speeds: Shape (rows, columns): relative speed, 0 if a column may not be used for a row.
        count: Number of columns.

    Returns:
        Columns in the order chosen; fewer than `count` if more would gain nothing.
    """
    chosen, gains = list[int](), True
    while gains:
        kept = [chosen, *([column for column in chosen if column != gone] for gone in chosen)]
        others = [_filled(speeds, columns, count) for columns in kept]
        best = max(others, key=lambda columns: _worth(speeds, columns))
        gains = _worth(speeds, best) > _worth(speeds, chosen) + 1e-9
        chosen = best if gains else chosen
    return chosen


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


# ---- the data, and the choice


@dataclass(frozen=True)
class KnownShapes:
    """Known shapes of an operation on a device, and configs for them.

    Attributes:
        rows: The shapes.
        regime: How they were timed.
        kernels: By name.
        columns: Kernel and config of each column.
        speeds: Shape (rows, columns): relative to the best of the row, 0 if a column is not legal.
        measured: True for the measured ones of `speeds`; the others are expected from the nearest shape.
        library: Per row: the library's speed relative to the best; 0 without a library.
        near: Shape (rows, rows): how much one shape's speeds count at another; see `_nearness`.
    """

    rows: tuple[TunedProblem, ...]
    regime: str
    kernels: Mapping[str, Kernel]
    columns: tuple[Column, ...]
    speeds: Floats
    measured: Flags
    library: Floats
    near: Floats


@dataclass(frozen=True)
class Distilled:
    """Few configs for many shapes.

    Attributes:
        shapes: The known shapes and their configs.
        chosen: Numbers of columns, in the order chosen.
        learned: Rows that it was learned from.
        count: Largest number of configs requested.
    """

    shapes: KnownShapes
    chosen: tuple[int, ...]
    learned: Sequence[int]
    count: int

    @property
    def columns(self) -> list[Column]:
        """Kernel and config of the chosen columns."""
        return [self.shapes.columns[number] for number in self.chosen]

    @property
    def fastest(self) -> list[int | None]:
        """Per row: the best of the chosen columns; None where none is legal."""
        speeds, chosen = self.shapes.speeds[:, self.chosen], self.chosen
        return [chosen[row.argmax()] if row.any() else None for row in speeds]

    @property
    def decided(self) -> list[int | None]:
        """Per row: the legal column that is expected fastest, as the written function takes; None for none."""
        speeds, chosen, learned = self.shapes.speeds, np.array(self.chosen), np.array(self.learned)
        expected = self.shapes.near[:, learned] @ speeds[learned][:, chosen]
        legal = np.where(speeds[:, chosen] > 0, expected, 0.0)
        return [int(chosen[row.argmax()]) if row.any() else None for row in legal]

    @cached_property
    def losses(self) -> dict[str, dict[str, float]]:
        """``best``: of the best chosen config; ``decided``: of what `decided` takes; ``left_out``: see below.

        ``left_out`` is of choices that were learned from all shapes but the one that they decide. Each has the
        loss as a fraction of speed, ``mean`` and ``worst`` over the ``shapes``; and how many of these are
        ``unmeasured``, because their times are expected from other shapes.
        """
        every = range(len(self.shapes.rows))
        without = (distilled(self.shapes, self.count, [at for at in every if at != row]) for row in every)
        answers: dict[str, Sequence[int | None]] = {
            "best": self.fastest, "decided": self.decided,
            "left_out": [choice.decided[row] for row, choice in enumerate(without)],
        }  # fmt: skip
        speeds, measured, library = self.shapes.speeds, self.shapes.measured, self.shapes.library
        losses = {}
        for name, columns in answers.items():
            own = [float(library[row] if at is None else speeds[row, at]) for row, at in enumerate(columns)]
            unmeasured = sum(at is None or not measured[row, at] for row, at in enumerate(columns))
            losses[name] = {
                "mean": 1 - statistics.fmean(own), "worst": 1 - min(own), "shapes": len(own),
                "unmeasured": int(unmeasured),
            }  # fmt: skip
        return losses

    def missing(self) -> list[MissingTime]:
        """The missing times of the chosen configs at known shapes."""
        shapes = self.shapes
        return [
            MissingTime(place.problem, shapes.kernels[kernel], config, place.best_s)
            for column, (kernel, config) in zip(self.chosen, self.columns, strict=True)
            for row, place in enumerate(shapes.rows)
            if shapes.speeds[row, column] > 0 and not shapes.measured[row, column]
        ]

    def to_json(self) -> dict[str, Any]:
        """The configs, the shapes, what the choice costs there, and which times are missing."""
        return {
            "configs": [{"kernel": kernel, "config": dict(config)} for kernel, config in self.columns],
            "shapes": [place.problem.to_json() for place in self.shapes.rows],
            "loss": self.losses,
            "missing": [
                {**one.problem.to_json(), "kernel": one.kernel.name, "config": dict(one.config)}
                for one in self.missing()
            ],
        }  # fmt: skip


def loss_text(loss: Mapping[str, float]) -> str:
    """One of `Distilled.losses` in words."""
    rest = f", {loss['unmeasured']} of them not measured" if loss["unmeasured"] else ""
    return f"mean {loss['mean']:.2%}, worst {loss['worst']:.2%} over {loss['shapes']} shapes{rest}"


def shapes_of(tuned: Sequence[TunedProblem], subject: Subject, catalogue: Catalogue) -> KnownShapes:
    """The tuned shapes of a subject, with every config known there.

    Args:
        tuned: What was tuned.
        subject: Of what, and where.
        catalogue: The kernels.

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
    places = {name: [at for at, (of, _) in enumerate(known) if of == name] for name in kernels}
    speeds, measured = _speeds(rows, known)
    legal = np.zeros(speeds.shape, bool)
    for name, numbers in places.items():
        points = Points(kernels[name], [known[at][1] for at in numbers])
        for flags, place in zip(legal, rows, strict=True):
            flags[numbers] = points.flags(place.problem, place.device)[0]
    speeds = np.where(legal, speeds, 0.0)
    library = np.array([np.nan_to_num(place.best_s / place.library_s) for place in rows])
    near = _nearness([place.problem for place in rows])
    return KnownShapes(rows, subject.regime, kernels, tuple(known), speeds, measured, library, near)


def _nearness(problems: Sequence[Problem]) -> Floats:
    """How near problems are: one over the square of how many times larger one is, dim by dim, than another."""
    logs = np.array([log_dims(problem.shape) for problem in problems])
    times = 2.0 ** np.abs(logs[:, None] - logs[None]).sum(axis=-1)
    layouts = np.array([problem.layout for problem in problems])
    return cast(Floats, (times * np.where(layouts[:, None] == layouts, 1.0, OTHER_LAYOUT)) ** -2.0)


def _speeds(rows: Sequence[TunedProblem], columns: Sequence[Column]) -> tuple[Floats, Flags]:
    """Relative speeds, and which of them were measured; the others as at the nearest shape, and less."""
    times_s = np.array(
        [[getattr(own.times.get(column), "time_s", math.nan) for column in columns] for own in rows]
    )
    behind = np.maximum(np.log(times_s / np.array([own.best_s for own in rows])[:, None]), 0.0)
    measured = ~np.isnan(behind)
    logs = np.array([log_dims(own.problem.shape) for own in rows])
    apart = distances(logs[:, None], logs[None])
    # Per row and column the nearest row that knows the column; its own, if that does.
    nearest = np.where(measured[None], apart[:, :, None], np.inf).argmin(axis=1)
    farther = FALLS_BEHIND * np.take_along_axis(apart, nearest, 1)
    expected = np.take_along_axis(behind, nearest, axis=0) + farther
    return np.exp(-np.where(measured, behind, expected)), measured


def distilled(shapes: KnownShapes, count: int, known: Sequence[int] | None = None) -> Distilled:
    """Chooses configs.

    Args:
        shapes: The shapes and configs to choose from.
        count: Largest number of configs.
        known: The rows to learn from; by default all.
    """
    learned = list(range(len(shapes.rows))) if known is None else known
    return Distilled(shapes, tuple(cover(shapes.speeds[learned], count)), learned, count)


# ---- the command


@click.command()
@click.argument("operation")
@click.option(
    "--configs", "count", type=click.IntRange(1), default=12, show_default=True,
    help="Largest number of configs.",
)  # fmt: skip
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the function to this file.")
@subject_options
@click.option("--measure/--no-measure", default=None, help="Time missing ones; default: if the device is here.")
@click.option("--seconds", type=float, help="Seconds for timing; default: no limit.")
@data_options
def distil(
    operation: str, count: int, output: Path | None, measure: bool | None, seconds: float | None, db: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find few configs for many shapes, and write a Python function that chooses among them."""
    writable_file(output)
    catalogue = builtin_now()
    with opened(db) or nullcontext() as store:
        info, subject = _subject(Snapshot.open(store), operation, **options)

        def choose(known: Store | None) -> Distilled:
            tuned = Snapshot.open(known).tuned(subject, catalogue)
            return distilled(shapes_of(tuned, subject, catalogue), count)

        choice = choose(store)
        if choice.missing() and measure is not False:
            here = _here(options["device"], info)
            if here is not None:
                choice = _measured(choice, here, subject, db, choose, seconds)
            elif measure:
                raise DeviceTrouble(f"--measure times on {info.name}, which is not here; run the command there")
    text = python_text(choice)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if as_json:
        print_json(choice.to_json() | {"file": str(output or ""), "function": text})
    else:
        _show(choice)
        click.echo(str(output) if output is not None else text)


def _subject(
    snapshot: Snapshot, operation: str, device: str, dtype: str, regime: str | None
) -> tuple[DeviceInfo, Subject]:
    """The device, complete, and what is asked about: in the first regime with known times, unless one is named.

    Raises:
        UnknownName: No such operation, dtype, or device.
    """
    catalogue = builtin_now()
    declared = catalogue.operation(operation)
    info = completed_device(parse_device(device), snapshot.devices())
    dtype = declared.problem(dict.fromkeys(declared.dims, 1), dtype).dtype
    regimes = [regime] if regime else REGIMES
    subjects = [Subject(operation, dtype, info.kind, regime, info.name) for regime in regimes]
    timed = (subject for subject in subjects if snapshot.tuned(subject, catalogue))
    return info, next(timed, subjects[0])


def _here(device: str, info: DeviceInfo) -> DetectedDevice | None:
    """The device on this machine; None if it has none of that name."""
    if is_spec(device):
        return find(device)
    return next((own for own in (*gpus(), find("cpu")) if own.info.name == info.name), None)


def _measured(
    choice: Distilled, here: DetectedDevice, subject: Subject, db: str, choose: Callable[[Store], Distilled],
    seconds: float | None,
) -> Distilled:  # fmt: skip
    """Times what is missing, and chooses again, until nothing new is missing or time is up."""
    deadline_s = math.inf if seconds is None else time.monotonic() + seconds
    study, tried = f"{ELSEWHERE} {subject.operation}", set[Any]()
    with Store.open(db) as store, occupied(db, (here,), study), Crew([here]) as crew:
        while time.monotonic() < deadline_s:
            missing = {(one.problem, one.kernel.name, one.config): one for one in choice.missing()}
            fresh = [missing[key] for key in missing.keys() - tried]
            if not fresh:
                break
            tried |= missing.keys()
            remeasure(store, crew, fresh, subject.regime, study, deadline_s, partial(click.echo, err=True))
            choice = choose(store)
    return choice


def _show(choice: Distilled) -> None:
    fastest = choice.fastest
    rows = [
        (number, kernel, config_text(config), f"{fastest.count(column)} of {len(fastest)}")
        for number, (column, (kernel, config)) in enumerate(zip(choice.chosen, choice.columns, strict=True))
    ]
    table("The configs", ("", "kernel", "config", "best for"), rows)
    names = ("the best of them", "the one that `choose` takes", "at shapes left out of all choices")
    costs = zip(names, map(loss_text, choice.losses.values()), strict=True)
    table("What they cost, as a fraction of speed", ("", "loss"), costs)
    if missing := choice.missing():
        click.echo(f"{len(missing)} times are missing; `--measure` takes them, on the device", err=True)


# ---- the function


def python_text(choice: Distilled) -> str:
    """A module with ``CONFIGS``, a ``legal_N`` for each that asks something of the shape, and ``choose``.

    ``choose(dims..., layout)`` returns (kernel, config). A kernel of ``None`` stands for the library.
    """
    problems = [place.problem for place in choice.shapes.rows]
    speeds = choice.shapes.speeds[:, choice.chosen].round(3).tolist()
    return filled(
        Path(__file__).with_name("templates") / "choose.py.jinja", {"loss": loss_text},
        choice=choice, like=choice.shapes.rows[0], version=__version__, other_layout=OTHER_LAYOUT,
        columns=[_written(column) for column in choice.columns],
        legal=[_conditions(choice, column) for column in choice.columns],
        known=[
            (tuple(problem.dims.values()), problem.layout, tuple(row))
            for problem, row in zip(problems, speeds, strict=True)
        ],
    )  # fmt: skip


def _written(column: Column) -> str:
    kernel, config = column
    text = textwrap.fill(repr(dict(config)), WIDTH - 4, initial_indent=" " * 8, subsequent_indent=" " * 9)
    return f"({kernel!r},\n{text})"


def _conditions(choice: Distilled, column: Column) -> list[tuple[str, str]]:
    """What a config asks of the dims in each layout, as Python; empty where it asks nothing."""
    (name, config), rows, rules = column, choice.shapes.rows, list[tuple[str, str]]()
    kernel, device = choice.shapes.kernels[name], rows[0].device
    for layout in rows[0].problem.operation.layouts:
        known = [place.problem for place in rows if place.problem.layout == layout]
        problems = known or [replace(place.problem, layout=layout) for place in rows]
        allowed = next((problem for problem in problems if kernel.allows(problem, device, config)), None)
        rules.append((layout, "False" if allowed is None else _rule(kernel, config, allowed, device)))
    return rules if any(rule for _, rule in rules) else []


def _rule(kernel: Kernel, config: Config, problem: Problem, device: DeviceInfo) -> str:
    """The conditions under which the rules hold as they do at a problem where they all do; empty for none."""
    dims, trace = traced(problem)
    try:
        for constraint in kernel.constraints:
            if not constraint.for_speed:
                bool(constraint.rule(dims, device, config))
    except Exception:  # a rule that cannot be followed holds for this one shape, as far as is known
        return " and ".join(f"{name} == {size}" for name, size in problem.shape)
    conditions = [in_python(assumption.condition) for assumption in trace.assumptions]
    return " and ".join(f"({text})" if " or " in text else text for text in conditions)
