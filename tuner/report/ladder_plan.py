"""Makes the ladder of an operation: its kernels in order, with the figures of published reports."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Operation, Problem
from tuner.errors import InputError, PlanError, UnknownName
from tuner.report.rungs import LadderPlan, Published, Step, Sweep, configs_folder, lesson_of

#: Keys of a plan, of its steps, sweeps and published figures, with the type that each must have.
PLAN_KEYS = {
    "title": str, "source": str, "hardware": str, "operation": str, "target": str, "dtype": str, "layout": str,
    "shapes": list, "classic": bool, "steps": list, "sweeps": list, "notes": list,
}  # fmt: skip
STEP_KEYS = {"kernel": str, "label": str, "config": dict, "layout": str, "published": list}
SWEEP_KEYS = {
    "kernel": str, "label": str, "parameter": str, "values": list, "shapes": list, "config": dict,
    "published_ms": list,
}  # fmt: skip
FIGURE_KEYS = {
    "shape": list, "ms": (int, float), "gflops": (int, float), "gbps": (int, float),
    "of_library": (int, float), "max_rel": float, "mean_rel": float, "note": str,
}  # fmt: skip


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
    reader = _Reader(path)
    try:
        return reader.plan(data, catalogue)
    except PlanError:
        raise
    except InputError as error:
        raise PlanError(f"{path}: {error}") from error


class _Reader:
    """Checks the tables of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = self._hardware = ""

    def _checked(
        self, table: Any, keys: Mapping[str, Any], where: str, needed: Sequence[str]
    ) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise PlanError(f"{self._path}: {where} is a table, got {table!r}")
        for key, value in table.items():
            if key not in keys:
                raise PlanError(f"{self._path}: {where}: {UnknownName('key', key, keys)}")
            if not isinstance(value, keys[key]):
                raise PlanError(f"{self._path}: {where}: {key} has the wrong type, got {value!r}")
        for key in needed:
            if key not in table:
                raise PlanError(f"{self._path}: {where} needs {key}; add it")
        return table

    def plan(self, data: dict[str, Any], catalogue: Catalogue) -> LadderPlan:
        self._checked(data, PLAN_KEYS, "the plan", ("operation", "target", "shapes"))
        self._source, self._hardware = data.get("source", ""), data.get("hardware", "")
        operation = catalogue.operation(data["operation"])
        dtype, layout = data.get("dtype", ""), data.get("layout", "")
        problems = tuple(self._problem(operation, shape, dtype, layout) for shape in data["shapes"])
        of = {kernel.name: kernel for kernel in catalogue.of(operation.name, data["target"])}
        steps = tuple(self._step(each, of, operation) for each in data.get("steps", ()))
        sweeps = tuple(self._sweep(each, of, operation, problems[0]) for each in data.get("sweeps", ()))
        if not problems or not (steps or sweeps):
            raise PlanError(f"{self._path}: a ladder has a shape, and a step or a sweep; add them")
        return LadderPlan(
            data.get("title", self._path.stem), problems, steps, sweeps, data["target"],
            data.get("classic", False), self._source, self._hardware, tuple(data.get("notes", ())),
        )  # fmt: skip

    def _problem(self, operation: Operation, shape: Any, dtype: str, layout: str) -> Problem:
        if not isinstance(shape, list) or len(shape) != len(operation.dims):
            raise PlanError(f"{self._path}: a shape is a list of {len(operation.dims)} dims, got {shape!r}")
        return operation.problem(dict(zip(operation.dims, shape, strict=True)), dtype, layout)

    def _kernel(self, table: dict[str, Any], kernels: Mapping[str, Kernel]) -> Kernel:
        if table["kernel"] not in kernels:
            raise UnknownName("kernel", table["kernel"], kernels)
        kernel = kernels[table["kernel"]]
        known = {each.name: each.values for each in kernel.parameters}
        for name, value in table.get("config", {}).items():
            if value not in known.get(name, ()):
                raise PlanError(
                    f"{self._path}: step {kernel.name}: a config names a parameter and one of its values, got "
                    f"{name} = {value!r}; choose among {known.get(name, tuple(known))}"
                )
        return kernel

    def _step(self, table: Any, kernels: Mapping[str, Kernel], operation: Operation) -> Step:
        self._checked(table, STEP_KEYS, "a step", ("kernel",))
        kernel = self._kernel(table, kernels)
        published = []
        for each in table.get("published", ()):
            self._checked(each, FIGURE_KEYS, f"a figure of {kernel.name}", ("shape",))
            figures = {key: value for key, value in each.items() if key != "shape"}
            shape = self._problem(operation, each["shape"], "", "").shape
            published.append(Published(self._hardware, self._source, tuple(size for _, size in shape), figures))
        said = lesson_of(kernel)
        return Step(
            kernel, table.get("label", kernel.name), table.get("config", {}), table.get("layout", ""),
            said.get("lesson", ""), said.get("slower", ""), tuple(published),
        )  # fmt: skip

    def _sweep(self, table: Any, kernels: Mapping[str, Kernel], operation: Operation, like: Problem) -> Sweep:
        self._checked(table, SWEEP_KEYS, "a sweep", ("kernel", "parameter", "values", "shapes"))
        kernel = self._kernel(table, kernels)
        parameter, values = table["parameter"], tuple(table["values"])
        for value in values:
            self._kernel({"kernel": kernel.name, "config": dict.fromkeys(parameter.split(), value)}, kernels)
        problems = tuple(self._problem(operation, each, like.dtype, like.layout) for each in table["shapes"])
        rows = table.get("published_ms", [])
        if rows and [len(row) for row in rows] != [len(values)] * len(problems):
            raise PlanError(
                f"{self._path}: sweep of {kernel.name}: published_ms has a row for each shape, with a figure "
                f"for each value, got {[len(row) for row in rows]} for {len(problems)} x {len(values)}"
            )
        told = {
            (tuple(size for _, size in problem.shape), value): float(figure)
            for problem, row in zip(problems, rows, strict=False)
            for value, figure in zip(values, row, strict=True)
        }
        label = table.get("label", kernel.name)
        return Sweep(kernel, label, parameter, values, problems, table.get("config", {}), told)


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
    kernels = _steps(catalogue, problem, target, tuple(only))
    if not kernels:
        raise InputError(f"{problem.operation.name} has no kernel for {target}; choose another --device")
    known: list[Step] = [] if problem.operation.origin else _reported(catalogue, problem.operation.name, target)
    steps = []
    for kernel in kernels:
        found = tuple(each for step in known if step.kernel.name == kernel.name for each in step.published[:40])
        said = lesson_of(kernel)
        steps.append(Step(kernel, kernel.name, {}, "", said.get("lesson", ""), said.get("slower", ""), found))
    swept = [_sweep_of(step.kernel, problem, known) for step in steps] if sweeps else []
    title = f"The ladder of {problem}"
    return LadderPlan(title, (problem,), tuple(steps), tuple(each for each in swept if each), target)


def _steps(catalogue: Catalogue, problem: Problem, target: str, only: tuple[str, ...]) -> tuple[Kernel, ...]:
    """The kernels of a ladder; beyond ``ieee``, those of the precision, after what only ladders show."""
    name, precision = problem.operation.name, problem.precision
    shown = [
        each
        for each in catalogue.shown
        if (each.operation, each.target) == (name, target) and each.serves(precision)
    ]
    kept = tuple(each for each in only if each not in {kernel.name for kernel in shown})
    usual = (
        catalogue.of(name, target, kept, precision, problem.dtype, problem.epilogue) if kept or not only else ()
    )
    if precision != IEEE and not only:
        usual = tuple(each for each in usual if not each.serves(IEEE))
    return (*(each for each in shown if not only or each.name in only), *usual)


def _reported(catalogue: Catalogue, operation: str, target: str) -> list[Step]:
    """Returns the steps of all published reports for an operation and target."""
    steps: list[Step] = []
    for path in sorted(configs_folder().glob("ladder-*.toml")):
        plan = read_ladder_plan(path, catalogue)
        if plan.target == target and plan.problems[0].operation.name == operation:
            steps += plan.steps
    return steps


def _sweep_of(kernel: Kernel, problem: Problem, known: Sequence[Step]) -> Sweep | None:
    """Returns the sweep that a kernel's lesson names, over problems up to this one."""
    name = lesson_of(kernel).get("sweep", "")
    values_of = {each.name: each.values for each in kernel.parameters}
    if not name or not values_of.keys() >= set(name.split()):
        return None
    varied = [values_of[each] for each in name.split()]
    values = [value for value in varied[0] if all(value in others for others in varied)]
    shapes = [{dim: max(1, size >> halvings) for dim, size in problem.shape} for halvings in (3, 2, 1, 0)]
    problems = tuple(problem.at(shape) for shape in shapes)
    return Sweep(kernel, kernel.name, name, tuple(values), tuple(dict.fromkeys(problems)))
