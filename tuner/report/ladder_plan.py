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
class LadderStep:
    """One kernel of a ladder.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        pins: Parameters that are fixed; the others are tuned, or take their defaults.
        layout: Its layout, if not the ladder's.
        published: Figures of public reports: ``shape`` in the operation's order, the report's ``source`` and
            ``hardware``, and what it says: ``ms``, ``gflops``, ``gbps``, ``of_library``, ``max_rel``,
            ``mean_rel``, ``note``.
    """

    kernel: Kernel
    label: str
    pins: Mapping[str, Value] = field(default_factory=dict)
    layout: str = ""
    published: tuple[Mapping[str, Any], ...] = ()

    def published_near(self, shape: Sequence[int]) -> Mapping[str, Any] | None:
        """Returns the report's figures for the nearest shape."""

        def distance(report: Mapping[str, Any]) -> float:
            pairs = zip(report["shape"], shape, strict=True)
            return float(sum(abs(x - y) / max(x, y) for x, y in pairs))

        return min(self.published, key=distance, default=None)


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
        remarks: What a page says of it: the report that it reproduces, and notes, line by line.
    """

    title: str
    problems: tuple[Problem, ...]
    steps: tuple[LadderStep, ...]
    sweeps: tuple[Sweep, ...] = ()
    target: str = ""
    classic: bool = False
    remarks: tuple[str, ...] = ()


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``, ``sweep``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel, key: str) -> str:
    """Returns what is said of a kernel under a key of `lessons`; empty if there is nothing."""
    return str(lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {}).get(key, ""))


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
_FORMS: Mapping[str, type[_Table]] = {"steps": _Step, "sweeps": _Sweep, "published": _Figures}


def read_ladder_plan(path: Path, catalogue: Catalogue) -> LadderPlan:
    """Reads a plan.

    Args:
        path: A TOML file; ``docs/ladder.md`` describes it.
        catalogue: The catalogue with its kernels.

    Raises:
        PlanError: It cannot be read, or a key or value is wrong; the message names file and key.
    """
    try:
        table = _Plan.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        return _PlanReader(table, catalogue).read(path.stem)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(
            f"{path} cannot be read as a ladder plan: {error}; check the path and the text"
        ) from None
    except ValidationError as error:
        raise PlanError(f"{path}: {_complaint(error)}") from None
    except InputError as error:
        raise PlanError(f"{path}: {error}") from error


def _complaint(error: ValidationError) -> str:
    """The first mistake, with the path of its key."""
    mistake = error.errors()[0]
    *parents, key = map(str, mistake["loc"])
    where = ".".join((*parents, key))
    if mistake["type"] == "missing":
        return f"{where} is needed; add it"
    if mistake["type"] == "extra_forbidden":
        form = next((_FORMS[part] for part in reversed(parents) if part in _FORMS), _Plan)
        return f"{where}: {UnknownName('key', key, form.model_fields)}"
    return f"{where} has the wrong type, got {mistake['input']!r}: {mistake['msg'].lower()}"


class _PlanReader:
    """Turns the tables of a plan into what is climbed, by the declarations that they name."""

    def __init__(self, plan: _Plan, catalogue: Catalogue) -> None:
        self._plan = plan
        self._operation: Operation = catalogue.operation(plan.operation)
        self._kernels = {kernel.name: kernel for kernel in catalogue.of(plan.operation, plan.target)}

    def read(self, name: str) -> LadderPlan:
        """The plan; its file's name is its title if it has none."""
        plan, problems = self._plan, self._problems(self._plan.shapes)
        steps, sweeps = tuple(map(self._step, plan.steps)), tuple(map(self._sweep, plan.sweeps))
        if not problems or not (steps or sweeps):
            raise InputError("a ladder has a shape, and a step or a sweep; add them")
        reproduces = [f"Reproduces: {plan.source} ({plan.hardware})"] if plan.source else []
        remarks = (*reproduces, *plan.notes)
        return LadderPlan(plan.title or name, problems, steps, sweeps, plan.target, plan.classic, remarks)

    def _problems(self, shapes: Iterable[list[int]]) -> tuple[Problem, ...]:
        operation, problems = self._operation, []
        for shape in shapes:
            if len(shape) != len(operation.dims):
                raise InputError(f"a shape is a list of {len(operation.dims)} dims, got {shape!r}")
            dims = dict(zip(operation.dims, shape, strict=True))
            problems.append(operation.problem(dims, self._plan.dtype, self._plan.layout))
        return tuple(problems)

    def _kernel(self, name: str, config: Mapping[str, Value]) -> Kernel:
        """The kernel of a name, which has the values of a config."""
        if name not in self._kernels:
            raise UnknownName("kernel", name, self._kernels)
        known = {parameter.name: parameter.values for parameter in self._kernels[name].parameters}
        for parameter, value in config.items():
            if value not in known.get(parameter, ()):
                raise InputError(
                    f"step {name}: a config names a parameter and one of its values, got {parameter} = "
                    f"{value!r}; choose among {known.get(parameter, tuple(known))}"
                )
        return self._kernels[name]

    def _step(self, table: _Step) -> LadderStep:
        kernel, layouts = self._kernel(table.kernel, table.config), self._operation.layouts
        if table.layout and table.layout not in layouts:
            raise UnknownName(f"layout of {self._operation.name}", table.layout, layouts)
        self._problems(figures.shape for figures in table.published)
        report = {"hardware": self._plan.hardware, "source": self._plan.source}
        published = tuple(report | figures.model_dump(exclude_unset=True) for figures in table.published)
        return LadderStep(kernel, table.label or kernel.name, table.config, table.layout, published)

    def _sweep(self, table: _Sweep) -> Sweep:
        kernel = self._kernel(table.kernel, table.config)
        for value in table.values:
            self._kernel(table.kernel, dict.fromkeys(table.parameter.split(), value))
        widths = [len(row) for row in table.published_ms]
        if widths and widths != [len(table.values)] * len(table.shapes):
            raise InputError(
                f"sweep of {kernel.name}: published_ms has a row for each shape, with a figure for each value, "
                f"got {widths} for {len(table.shapes)} x {len(table.values)}"
            )
        published_ms = {
            (tuple(shape), value): ms
            for shape, row in zip(table.shapes, table.published_ms, strict=False)
            for value, ms in zip(table.values, row, strict=True)
        }
        label, problems = table.label or kernel.name, self._problems(table.shapes)
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
    operation = problem.operation
    kernels = _kernels(catalogue, problem, target, tuple(only))
    if not kernels:
        raise InputError(f"{operation.name} has no kernel for {target}; choose another --device")
    published: dict[str, list[Mapping[str, Any]]] = {}
    for path in [] if operation.origin else sorted(configs_folder().glob("ladder-*.toml")):
        for step in read_ladder_plan(path, catalogue).steps:
            if (step.kernel.operation, step.kernel.kind) == (operation.name, target):
                published.setdefault(step.kernel.name, []).extend(step.published)
    steps = [
        LadderStep(kernel, kernel.name, published=tuple(published.get(kernel.name, ()))) for kernel in kernels
    ]
    swept = [_lesson_sweep(kernel, problem) for kernel in kernels] if sweeps else []
    return LadderPlan(f"The ladder of {problem}", (problem,), tuple(steps), tuple(filter(None, swept)), target)


def _kernels(catalogue: Catalogue, problem: Problem, target: str, only: tuple[str, ...]) -> list[Kernel]:
    """The kernels of a ladder; beyond ``ieee``, those of the precision, after what only ladders show."""
    name, precision = problem.operation.name, problem.precision
    shown = [
        kernel
        for kernel in catalogue.shown
        if (kernel.operation, kernel.kind) == (name, target)
        and kernel.serves(precision)
        and (not only or kernel.name in only)
    ]
    usual = tuple(kernel for kernel in only if kernel not in {each.name for each in shown})
    if only and not usual:
        return shown
    kernels = catalogue.serving(problem, target, usual)
    return [*shown, *(kernel for kernel in kernels if only or precision == IEEE or not kernel.serves(IEEE))]


def _lesson_sweep(kernel: Kernel, problem: Problem) -> Sweep | None:
    """Returns the sweep that a kernel's lesson names, over problems up to this one."""
    names = lesson_of(kernel, "sweep").split()
    values_of = {parameter.name: parameter.values for parameter in kernel.parameters}
    if not names or not values_of.keys() >= set(names):
        return None
    values = tuple(value for value in values_of[names[0]] if all(value in values_of[name] for name in names))
    shapes = [{dim: max(1, size >> halvings) for dim, size in problem.shape} for halvings in (3, 2, 1, 0)]
    problems = tuple(dict.fromkeys(problem.at(shape) for shape in shapes))
    return Sweep(kernel, kernel.name, " ".join(names), values, problems)
