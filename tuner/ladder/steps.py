"""What a ladder is made of: steps and sweeps of kernels, and what is said and was published of them."""

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
    """What a public report says of a step, on its own hardware.

    Attributes:
        hardware: Where.
        source: Which report.
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
        layout: Where it differs from the ladder's.
        lesson: What the step is about, for people.
        slower: Why it may be slower than the step before, for people.
        published: What reports say of it.
    """

    kernel: Kernel
    label: str
    pins: Mapping[str, Value] = field(default_factory=dict)
    layout: str = ""
    lesson: str = ""
    slower: str = ""
    published: tuple[Published, ...] = ()

    def published_near(self, shape: Sequence[int]) -> Published | None:
        """The report's figure for the shape nearest to one."""
        return min(self.published, key=lambda each: _distance(each.shape, shape), default=None)


@dataclass(frozen=True)
class Sweep:
    """One parameter of a kernel over its values, for several shapes.

    Attributes:
        kernel: Which.
        label: Its name on the page.
        parameter: What varies; several names, between blanks, vary together.
        values: Over what.
        problems: For which.
        pins: What is fixed; other parameters take their defaults, or what is legal and nearest to them.
        published_ms: By (shape, value), what a report says, in milliseconds.
    """

    kernel: Kernel
    label: str
    parameter: str
    values: tuple[Value, ...]
    problems: tuple[Problem, ...]
    pins: Mapping[str, Value] = field(default_factory=dict)
    published_ms: Mapping[tuple[tuple[int, ...], Value], float] = field(default_factory=dict)

    def pinned(self, value: Value) -> dict[str, Value]:
        """What is fixed for one value."""
        return {**self.pins, **dict.fromkeys(self.parameter.split(), value)}


@dataclass(frozen=True)
class LadderPlan:
    """What to climb.

    Attributes:
        title: For people.
        problems: The shapes, each a ladder of its own.
        steps: In order.
        sweeps: Beside them.
        target: ``cuda`` or ``cpu``.
        classic: True where steps take their declared configs rather than being tuned.
        source: Which report it reproduces, if one.
        hardware: What that report was measured on.
        notes: What else the report says, line by line.
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
    """Where shipped plans are: inside an installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def lessons() -> dict[str, Any]:
    """``configs/lessons.toml``: operation -> target -> kernel -> ``lesson``, ``slower``, ``sweep``."""
    path = configs_folder() / "lessons.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lesson_of(kernel: Kernel) -> Mapping[str, Any]:
    """What is said of a kernel; empty where nothing is."""
    found: Mapping[str, Any] = lessons().get(kernel.operation, {}).get(kernel.target, {}).get(kernel.name, {})
    return found


def with_layout(problem: Problem, layout: str) -> Problem:
    """The same problem in another layout; itself where that is empty.

    Raises:
        UnknownName: The operation has no such layout.
    """
    if layout and layout not in problem.operation.layouts:
        raise UnknownName(f"layout of {problem.operation.name}", layout, problem.operation.layouts)
    return replace(problem, layout=layout) if layout else problem
