"""Parts of a ladder: steps and sweeps of kernels, with lessons and published figures."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Value
from tuner.errors import UnknownName


@dataclass(frozen=True)
class Published:
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
class Step:
    """One kernel of a ladder.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        pins: Parameters that are fixed; the others are tuned, or take their defaults.
        layout: Its layout, if not the ladder's.
        lesson: The point of the step, in words.
        slower: Why it may be slower than the previous step, in words.
        published: Figures of reports.
    """

    kernel: Kernel
    label: str
    pins: Mapping[str, Value] = field(default_factory=dict)
    layout: str = ""
    lesson: str = ""
    slower: str = ""
    published: tuple[Published, ...] = ()

    def published_near(self, shape: Sequence[int]) -> Published | None:
        """Returns the report's figures for the nearest shape."""
        return min(self.published, key=lambda each: _distance(each.shape, shape), default=None)


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
    steps: tuple[Step, ...]
    sweeps: tuple[Sweep, ...] = ()
    target: str = ""
    classic: bool = False
    source: str = ""
    hardware: str = ""
    notes: tuple[str, ...] = ()


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(abs(x - y) / max(x, y) for x, y in zip(one, other, strict=True))


def configs_folder() -> Path:
    """Returns the folder of the project's plans: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``, ``sweep``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel) -> Mapping[str, Any]:
    """Returns the lesson of a kernel; empty if there is none."""
    found: Mapping[str, Any] = lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {})
    return found


def with_layout(problem: Problem, layout: str) -> Problem:
    """Returns the problem in another layout; unchanged if the layout is empty.

    Raises:
        UnknownName: The operation has no such layout.
    """
    if layout and layout not in problem.operation.layouts:
        raise UnknownName(f"layout of {problem.operation.name}", layout, problem.operation.layouts)
    return replace(problem, layout=layout) if layout else problem
