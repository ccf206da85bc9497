"""Makes the ladder of an operation: its kernels in order, with the figures of published reports."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Problem
from tuner.errors import InputError
from tuner.ladder.reading import read_ladder_plan
from tuner.results.steps import LadderPlan, Step, Sweep, configs_folder, lesson_of


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
