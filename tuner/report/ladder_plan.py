"""What a ladder measures: the kernels of an operation in order, with the figures of published reports."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import configs_folder
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Operation, Problem
from tuner.declare.space import Value
from tuner.errors import InputError, PlanError, UnknownName


@dataclass(frozen=True)
class ReportedFigures:
    """Figures of a public report for a step, on its own hardware.

    Attributes:
        hardware: The report's hardware.
        source: The report.
        shape: Dims in the operation's order.
        figures: ``ms``, ``gflops``, ``gbps``, ``of_library``, ``max_rel``, ``mean_rel``, ``note``.
    """

    hardware: str
    source: str
    shape: tuple[int, ...]
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class LadderStep:
    """One kernel of a ladder.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        pins: Parameters that are fixed; the others are tuned, or take their defaults.
        layout: Its layout, if not the ladder's.
        published: Figures of reports.
    """

    kernel: Kernel
    label: str
    pins: Mapping[str, Value] = field(default_factory=dict)
    layout: str = ""
    published: tuple[ReportedFigures, ...] = ()

    @property
    def lesson(self) -> str:
        """The point of the step, in words."""
        return str(lesson_of(self.kernel).get("lesson", ""))

    @property
    def slower(self) -> str:
        """Why it may be slower than the previous step, in words."""
        return str(lesson_of(self.kernel).get("slower", ""))

    def published_near(self, shape: Sequence[int]) -> ReportedFigures | None:
        """Returns the report's figures for the nearest shape."""

        def distance(other: Sequence[int]) -> float:
            return sum(abs(x - y) / max(x, y) for x, y in zip(other, shape, strict=True))

        return min(self.published, key=lambda report: distance(report.shape), default=None)


@dataclass(frozen=True)
class Sweep:
    """One parameter of a kernel over its values, for several shapes.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        parameter: The parameter that varies; several names, separated by spaces, vary together.
        values: Its values.
        problems: The problems.
        pins: Fixed parameters; the others take their defaults, or the nearest legal values.
        published_ms: By (shape, value), a report's time in milliseconds.
    """

    kernel: Kernel
    label: str
    parameter: str
    values: tuple[Value, ...]
    problems: tuple[Problem, ...]
    pins: Mapping[str, Value] = field(default_factory=dict)
    published_ms: Mapping[tuple[tuple[int, ...], Value], float] = field(default_factory=dict)

    def pinned(self, value: Value) -> dict[str, Value]:
        """Returns the fixed parameters for one value."""
        return {**self.pins, **dict.fromkeys(self.parameter.split(), value)}


@dataclass(frozen=True)
class LadderPlan:
    """What to climb.

    Attributes:
        title: Title for people.
        problems: The shapes, each a ladder of its own.
        steps: Steps in order.
        sweeps: Sweeps beside them.
        target: ``cuda`` or ``cpu``.
        classic: True if steps use their declared configs instead of being tuned.
        source: The report that it reproduces, if any.
        hardware: That report's hardware.
        notes: Further remarks of the report, line by line.
    """

    title: str
    problems: tuple[Problem, ...]
    steps: tuple[LadderStep, ...]
    sweeps: tuple[Sweep, ...] = ()
    target: str = ""
    classic: bool = False
    source: str = ""
    hardware: str = ""
    notes: tuple[str, ...] = ()


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``, ``sweep``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel) -> Mapping[str, Any]:
    """Returns the lesson of a kernel; empty if there is none."""
    lesson: Mapping[str, Any] = lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {})
    return lesson


# ---- plans in files


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Figures(_Table):
    shape: list[int]
    ms: float | None = None
    gflops: float | None = None
    gbps: float | None = None
    of_library: float | None = None
    max_rel: float | None = None
    mean_rel: float | None = None
    note: str = ""


class _Step(_Table):
    kernel: str
    label: str = ""
    config: dict[str, Any] = {}
    layout: str = ""
    published: list[_Figures] = []


class _Sweep(_Table):
    kernel: str
    label: str = ""
    parameter: str
    values: list[Any]
    shapes: list[list[int]]
    config: dict[str, Any] = {}
    published_ms: list[list[float]] = []


class _Plan(_Table):
    title: str = ""
    source: str = ""
    hardware: str = ""
    operation: str
    target: str
    dtype: str = ""
    layout: str = ""
    shapes: list[list[int]]
    classic: bool = False
    steps: list[_Step] = []
    sweeps: list[_Sweep] = []
    notes: list[str] = []


#: Key of a list of tables -> their form.
_TABLES: Mapping[str, type[_Table]] = {"steps": _Step, "sweeps": _Sweep, "published": _Figures}


def read_ladder_plan(path: Path, catalogue: Catalogue) -> LadderPlan:
    """Reads a plan.

    Args:
        path: A TOML file; ``docs/ladder.md`` describes it.
        catalogue: The catalogue with its kernels.

    Raises:
        PlanError: It cannot be read, or a key or value is wrong; the message names file and key.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(
            f"{path} cannot be read as a ladder plan: {error}; check the path and the text"
        ) from None
    try:
        return _planned(_Plan.model_validate(data), path.stem, catalogue)
    except ValidationError as error:
        raise PlanError(f"{path}: {_complaint(error)}") from None
    except InputError as error:
        raise PlanError(f"{path}: {error}") from error


def _complaint(error: ValidationError) -> str:
    """The first mistake, with the path of its key."""
    mistake = error.errors()[0]
    *parents, key = mistake["loc"]
    where = ".".join(str(part) for part in (*parents, key))
    if mistake["type"] == "missing":
        return f"{where} is needed; add it"
    if mistake["type"] == "extra_forbidden":
        form = next((_TABLES[str(part)] for part in reversed(parents) if part in _TABLES), _Plan)
        return f"{where}: {UnknownName('key', str(key), form.model_fields)}"
    return f"{where} has the wrong type, got {mistake['input']!r}: {mistake['msg'].lower()}"


def _planned(plan: _Plan, name: str, catalogue: Catalogue) -> LadderPlan:
    operation = catalogue.operation(plan.operation)
    problems = _problems(operation, plan.shapes, plan.dtype, plan.layout)
    kernels = {kernel.name: kernel for kernel in catalogue.of(operation.name, plan.target)}
    steps = tuple(_step(step, plan, operation, kernels) for step in plan.steps)
    sweeps = tuple(_sweep(sweep, plan, operation, kernels) for sweep in plan.sweeps)
    if not problems or not (steps or sweeps):
        raise InputError("a ladder has a shape, and a step or a sweep; add them")
    return LadderPlan(
        plan.title or name, problems, steps, sweeps, plan.target, plan.classic, plan.source, plan.hardware,
        tuple(plan.notes),
    )  # fmt: skip


def _problems(
    operation: Operation, shapes: Iterable[list[int]], dtype: str = "", layout: str = ""
) -> tuple[Problem, ...]:
    problems = []
    for shape in shapes:
        if len(shape) != len(operation.dims):
            raise InputError(f"a shape is a list of {len(operation.dims)} dims, got {shape!r}")
        problems.append(operation.problem(dict(zip(operation.dims, shape, strict=True)), dtype, layout))
    return tuple(problems)


def _pinned(kernels: Mapping[str, Kernel], name: str, config: Mapping[str, Value]) -> Kernel:
    """The kernel of a name, which has the values of a config."""
    if name not in kernels:
        raise UnknownName("kernel", name, kernels)
    known = {parameter.name: parameter.values for parameter in kernels[name].parameters}
    for parameter, value in config.items():
        if value not in known.get(parameter, ()):
            raise InputError(
                f"step {name}: a config names a parameter and one of its values, got {parameter} = {value!r}; "
                f"choose among {known.get(parameter, tuple(known))}"
            )
    return kernels[name]


def _step(table: _Step, plan: _Plan, operation: Operation, kernels: Mapping[str, Kernel]) -> LadderStep:
    kernel = _pinned(kernels, table.kernel, table.config)
    if table.layout and table.layout not in operation.layouts:
        raise UnknownName(f"layout of {operation.name}", table.layout, operation.layouts)
    problems = _problems(operation, (figures.shape for figures in table.published))
    published = tuple(
        ReportedFigures(
            plan.hardware,
            plan.source,
            tuple(size for _, size in problem.shape),
            figures.model_dump(exclude_unset=True, exclude={"shape"}),
        )
        for problem, figures in zip(problems, table.published, strict=True)
    )
    return LadderStep(kernel, table.label or kernel.name, table.config, table.layout, published)


def _sweep(table: _Sweep, plan: _Plan, operation: Operation, kernels: Mapping[str, Kernel]) -> Sweep:
    for value in table.values:
        _pinned(kernels, table.kernel, dict.fromkeys(table.parameter.split(), value))
    kernel = _pinned(kernels, table.kernel, table.config)
    problems = _problems(operation, table.shapes, plan.dtype, plan.layout)
    rows, widths = table.published_ms, [len(row) for row in table.published_ms]
    if rows and widths != [len(table.values)] * len(problems):
        raise InputError(
            f"sweep of {kernel.name}: published_ms has a row for each shape, with a figure for each value, got "
            f"{widths} for {len(problems)} x {len(table.values)}"
        )
    published_ms = {
        (tuple(size for _, size in problem.shape), value): figure
        for problem, row in zip(problems, rows, strict=False)
        for value, figure in zip(table.values, row, strict=True)
    }
    label = table.label or kernel.name
    return Sweep(kernel, label, table.parameter, tuple(table.values), problems, table.config, published_ms)


# ---- the ladder of an operation


def ladder_of(
    catalogue: Catalogue, problem: Problem, target: str, only: Sequence[str], *, sweeps: bool = False
) -> LadderPlan:
    """Makes the ladder of an operation's kernels, in order, with the figures of published reports.

    Args:
        catalogue: The catalogue with the kernels.
        problem: The problem.
        target: ``cuda`` or ``cpu``.
        only: Kernel names to keep; all if empty.
        sweeps: True to add sweeps for kernels whose lesson names a parameter.

    Raises:
        UnknownName: There is no such kernel.
        InputError: The operation has no kernel for the target.
    """
    name = problem.operation.name
    kernels = _kernels(catalogue, problem, target, tuple(only))
    if not kernels:
        raise InputError(f"{name} has no kernel for {target}; choose another --device")
    reports: list[LadderStep] = []
    for path in [] if problem.operation.origin else sorted(configs_folder().glob("ladder-*.toml")):
        plan = read_ladder_plan(path, catalogue)
        if (plan.target, plan.problems[0].operation.name) == (target, name):
            reports += plan.steps
    steps = []
    for kernel in kernels:
        published = (
            figures for step in reports if step.kernel.name == kernel.name for figures in step.published
        )
        steps.append(LadderStep(kernel, kernel.name, published=tuple(published)))
    swept = [_lesson_sweep(kernel, problem) for kernel in kernels] if sweeps else []
    return LadderPlan(f"The ladder of {problem}", (problem,), tuple(steps), tuple(filter(None, swept)), target)


def _kernels(catalogue: Catalogue, problem: Problem, target: str, only: tuple[str, ...]) -> tuple[Kernel, ...]:
    """The kernels of a ladder; beyond ``ieee``, those of the precision, after what only ladders show."""
    name, precision = problem.operation.name, problem.precision
    shown = [
        kernel
        for kernel in catalogue.shown
        if (kernel.operation, kernel.target) == (name, target) and kernel.serves(precision)
    ]
    usual: tuple[Kernel, ...] = ()
    kept = tuple(one for one in only if one not in {kernel.name for kernel in shown})
    if kept or not only:
        usual = catalogue.of(name, target, kept, precision, problem.dtype, problem.epilogue)
    if precision != IEEE and not only:
        usual = tuple(kernel for kernel in usual if not kernel.serves(IEEE))
    return (*(kernel for kernel in shown if not only or kernel.name in only), *usual)


def _lesson_sweep(kernel: Kernel, problem: Problem) -> Sweep | None:
    """Returns the sweep that a kernel's lesson names, over problems up to this one."""
    names = lesson_of(kernel).get("sweep", "").split()
    values_of = {parameter.name: parameter.values for parameter in kernel.parameters}
    if not names or not values_of.keys() >= set(names):
        return None
    values = tuple(value for value in values_of[names[0]] if all(value in values_of[name] for name in names))
    shapes = [{dim: max(1, size >> halvings) for dim, size in problem.shape} for halvings in (3, 2, 1, 0)]
    problems = tuple(dict.fromkeys(problem.at(shape) for shape in shapes))
    return Sweep(kernel, kernel.name, " ".join(names), values, problems)
