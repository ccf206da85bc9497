"""What a ladder measures: the kernels of an operation in order, with the figures of published reports."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, ValidationInfo, model_validator

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import configs_folder
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Operation, Problem
from tuner.errors import InputError, PlanError, UnknownName


class _Table(BaseModel):
    """A table of a plan: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


#: Figure of a report -> how it is written.
REPORTED = {
    "ms": "{:g} ms", "gflops": "{:g} GFLOPS", "gbps": "{:g} GB/s", "of_library": "{:.1%} of the library",
    "max_rel": "max error {:.2g}", "mean_rel": "mean error {:.2g}", "note": "{}",
}  # fmt: skip
#: What a public report says of a step: figures, and the ``shape`` that they are of; its ``source`` and
#: ``hardware``, which are the plan's unless given.
Published = dict[str, Any]


class LadderStep(_Table):
    """One kernel of a ladder.

    Attributes:
        kernel: Its name.
        label: Its name on the page; the kernel's, unless given.
        config: Parameters that are fixed; the others are tuned, or take their defaults.
        layout: Its layout, if not the ladder's.
        published: Figures of public reports.
    """

    kernel: str
    label: str = ""
    config: dict[str, Any] = {}
    layout: str = ""
    published: list[Published] = []


class Sweep(_Table):
    """One parameter of a kernel over its values, for several shapes.

    Attributes:
        kernel: Its name.
        label: Its name on the page; the kernel's, unless given.
        parameter: The parameter that varies; several names, separated by spaces, vary together.
        values: Its values.
        shapes: Sizes in the order of the operation's dims.
        config: Fixed parameters; the others take their defaults, or the nearest legal values.
        published_ms: A report's times: a row for each shape, with a figure for each value.
    """

    kernel: str
    label: str = ""
    parameter: str
    values: list[Any]
    shapes: list[list[int]]
    config: dict[str, Any] = {}
    published_ms: list[list[float]] = []

    def steps(self, shape: Sequence[int]) -> list[LadderStep]:
        """A step for each value, at a shape."""
        rows = dict(zip(map(tuple, self.shapes), self.published_ms, strict=False))
        times_ms = rows.get(tuple(shape), [None] * len(self.values))
        if len(times_ms) != len(self.values):
            raise InputError(f"published_ms has for each shape a figure for each value, got {times_ms}")
        return [
            LadderStep(
                kernel=self.kernel, label=f"{self.parameter}={value}",
                config={**self.config, **dict.fromkeys(self.parameter.split(), value)},
                published=[{"shape": list(shape), "ms": ms}] if ms else [],
            )
            for value, ms in zip(self.values, times_ms, strict=True)
        ]  # fmt: skip


class Section(NamedTuple):
    """Steps that are shown and compared together.

    Attributes:
        title: The problem in words; of a sweep, what varies, too.
        problem: The problem.
        steps: The steps.
        is_sweep: True for the values of a sweep, which are not timed in alternation.
    """

    title: str
    problem: Problem
    steps: Sequence[LadderStep]
    is_sweep: bool = False


class LadderPlan(_Table):
    """What to climb: a table for people's eyes, checked against the kernels that it names.

    Attributes:
        title: Title for people; the file's name, unless given.
        source: The public report that it reproduces.
        hardware: What that report measured on.
        target: ``cuda`` or ``cpu``.
        shapes: The problems, each a ladder of its own.
        classic: True if steps use their declared configs instead of being tuned.
        notes: More for the page, line by line.
    """

    title: str = ""
    source: str = ""
    hardware: str = ""
    operation: str
    target: str
    dtype: str = ""
    layout: str = ""
    precision: str = ""
    epilogue: str = ""
    shapes: list[list[int]]
    classic: bool = False
    steps: list[LadderStep] = []
    sweeps: list[Sweep] = []
    notes: list[str] = []
    _operation: Operation = PrivateAttr()
    _kernels: dict[str, Kernel] = PrivateAttr()

    @model_validator(mode="after")
    def _suits_the_kernels(self, info: ValidationInfo) -> LadderPlan:
        """Fills in what follows from the declarations of a catalogue, and checks names and values by them."""
        catalogue = info.context
        assert isinstance(catalogue, Catalogue), "a plan is read beside a catalogue"
        self._operation = catalogue.operation(self.operation)
        kernels = (*_shown(catalogue, self._operation, self.target), *catalogue.of(self.operation, self.target))
        self._kernels = {kernel.name: kernel for kernel in kernels}
        sections = self.sections
        if not self.shapes or not sections:
            raise InputError("a ladder has a shape, and a step or a sweep; add them")
        for step in (step for section in sections for step in section.steps):
            self._check(step)
        return self

    def _check(self, step: LadderStep) -> None:
        """Its kernel has its values, its operation the layout; fills in what a step leaves to the plan."""
        known = {parameter.name: parameter.values for parameter in self.kernel(step.kernel).parameters}
        for parameter, value in step.config.items():
            if value not in known.get(parameter, ()):
                raise InputError(
                    f"step {step.kernel}: a config names a parameter and one of its values, got {parameter} = "
                    f"{value!r}; choose among {known.get(parameter, tuple(known))}"
                )
        step.label = step.label or step.kernel
        for figures in step.published:
            self._problem(figures.get("shape", ()), "")
            for key, value in figures.items():
                if key not in (*REPORTED, "shape", "source", "hardware"):
                    raise UnknownName("figure of a report", key, tuple(REPORTED))
                if key in REPORTED and isinstance(value, str) != (key == "note"):
                    raise InputError(f"figures of a report are numbers, got {key} = {value!r}")
            figures.setdefault("source", self.source)
            figures.setdefault("hardware", self.hardware)

    def kernel(self, name: str) -> Kernel:
        """The kernel of a name.

        Raises:
            UnknownName: The operation has none of that name.
        """
        if name not in self._kernels:
            raise UnknownName("kernel", name, self._kernels)
        return self._kernels[name]

    def _problem(self, shape: Sequence[int], layout: str) -> Problem:
        """The problem of a shape, in the plan's layout if none is given.

        Raises:
            InputError: The shape has not a size for each dim, or there is no such layout.
        """
        options = (self.dtype, layout or self.layout, self.precision, self.epilogue)
        return self._operation.problem(self._operation.named(shape), *options)

    @property
    def sections(self) -> list[Section]:
        """For each shape the steps of each layout; then, for each sweep and shape, its values."""
        sections = []
        for shape, layout in itertools.product(self.shapes, dict.fromkeys(step.layout for step in self.steps)):
            problem = self._problem(shape, layout)
            steps = [step for step in self.steps if step.layout == layout]
            sections.append(Section(str(problem), problem, steps))
        for sweep in self.sweeps:
            for problem in (self._problem(shape, "") for shape in sweep.shapes):
                title = f"{sweep.label or sweep.kernel} over {sweep.parameter}: {problem}"
                steps = sweep.steps([size for _, size in problem.shape])
                sections.append(Section(title, problem, steps, True))
        return sections


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel, key: str) -> str:
    """What is said of a kernel under a key of `lessons`; empty if there is nothing."""
    return str(lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {}).get(key, ""))


def read_ladder_plan(path: Path, catalogue: Catalogue) -> LadderPlan:
    """Reads a plan.

    Args:
        path: A TOML file; ``docs/ladder.md`` describes it.
        catalogue: The catalogue with its kernels.

    Raises:
        PlanError: It cannot be read, or a key or value is wrong; the message names file and key.
    """
    try:
        table = {"title": path.stem} | tomllib.loads(path.read_text(encoding="utf-8"))
        return LadderPlan.model_validate(table, context=catalogue)
    except ValidationError as error:
        mistake = error.errors()[0]
        where = ".".join(map(str, mistake["loc"]))
        text = f"{where}: {mistake['msg'].lower()}; docs/ladder.md lists the keys of a plan"
        raise PlanError(f"{path}: {text}") from None
    except (OSError, ValueError, InputError) as error:
        raise PlanError(f"{path} cannot be read as a ladder plan: {error}") from error


def ladder_of(catalogue: Catalogue, problem: Problem, target: str, only: Sequence[str]) -> LadderPlan:
    """The ladder of an operation's kernels, in order, with the figures of published reports.

    Args:
        catalogue: The catalogue with the kernels.
        problem: The problem.
        target: ``cuda`` or ``cpu``.
        only: Kernel names to keep; all if empty.

    Raises:
        UnknownName: There is no such kernel.
        InputError: The operation has no kernel for the target.
    """
    operation = problem.operation
    kernels = _kernels(catalogue, problem, target, tuple(only))
    if not kernels:
        raise InputError(f"{operation.name} has no kernel for {target}; choose another --device")
    published: dict[str, list[Published]] = {}
    for path in [] if operation.origin else sorted(configs_folder().glob("ladder-*.toml")):
        plan = read_ladder_plan(path, catalogue)
        if (plan.operation, plan.target) == (operation.name, target):
            for step in plan.steps:
                published.setdefault(step.kernel, []).extend(step.published)
    table = {
        "title": f"The ladder of {problem}", "operation": operation.name, "target": target,
        "dtype": problem.dtype, "layout": problem.layout, "precision": problem.precision,
        "epilogue": str(problem.epilogue), "shapes": [[size for _, size in problem.shape]],
        "steps": [{"kernel": own.name, "published": published.get(own.name, [])} for own in kernels],
    }  # fmt: skip
    return LadderPlan.model_validate(table, context=catalogue)


def _kernels(catalogue: Catalogue, problem: Problem, target: str, only: tuple[str, ...]) -> list[Kernel]:
    """The kernels of a ladder; beyond ``ieee``, those of the precision, after what only ladders show."""
    shown = [
        kernel for kernel in _shown(catalogue, problem.operation, target) if kernel.serves(problem.precision)
    ]
    shown = [kernel for kernel in shown if not only or kernel.name in only]
    usual = tuple(set(only) - {kernel.name for kernel in shown})
    if only and not usual:
        return shown
    kernels = catalogue.serving(problem, target, usual)
    if not only:
        kernels = tuple(kernel for kernel in kernels if not kernel.is_library)
    if not only and problem.precision != IEEE:
        kernels = tuple(kernel for kernel in kernels if not kernel.serves(IEEE))
    return [*shown, *kernels]


def _shown(catalogue: Catalogue, operation: Operation, target: str) -> list[Kernel]:
    """Kernels that only ladders show."""
    return [own for own in catalogue.shown if (own.operation, own.kind) == (operation.name, target)]
