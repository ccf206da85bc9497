"""Timings that a model is fitted to, as plain arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup.features import Floats, Numbers

#: Number of the library among configs.
LIBRARY = -1


@dataclass(frozen=True)
class Timings:
    """Times of configs and of the library at drawn problems of one operation on one device.

    Attributes:
        problems: The problems.
        configs: Kernel and config.
        problem: Per time: number of its problem, shape (times,).
        config: Per time: number of its config, or `LIBRARY`.
        time_s: The times in seconds.
        registers: Per config: 32-bit registers of a thread by the compiler's report, 0 if it is unknown.
        provenance: Where the times come from: device, versions, dates; JSON.
    """

    problems: Sequence[Problem]
    configs: Sequence[tuple[str, Config]]
    problem: Numbers
    config: Numbers
    time_s: Floats
    registers: Floats | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {len(self.problem), len(self.config), len(self.time_s)}
        if len(sizes) > 1 or not all(sizes):
            raise InputError(
                f"a survey has a problem, a config and a time for each timing, got {sorted(sizes)} of these; "
                "run the survey again"
            )
        if not (np.isfinite(self.time_s) & (np.asarray(self.time_s) > 0)).all():
            raise InputError("times are finite and above 0 s, got others; leave failed runs out")

    def matrix(self) -> tuple[Floats, Floats]:
        """Times by problem.

        Returns:
            Of configs, shape (problems, configs), and of the library, shape (problems,); NaN if not timed.
        """
        times = np.full((len(self.problems), len(self.configs) + 1), np.nan)
        times[self.problem, self.config] = self.time_s  # the library's number is that of the last column
        return times[:, :-1], times[:, -1]

    def of(self, problems: Numbers) -> Timings:
        """The timings at some of the problems."""
        place = np.full(len(self.problems), -1)
        place[problems] = np.arange(len(problems))
        kept = place[self.problem] >= 0
        return Timings(
            [self.problems[number] for number in problems], self.configs, place[self.problem[kept]],
            self.config[kept], self.time_s[kept], self.registers, self.provenance,
        )  # fmt: skip


def from_arrays(data: Mapping[str, Any], operation: Operation, dtype: str = "") -> Timings:
    """Reads a survey kept as arrays.

    Args:
        data: ``shape``, ``config`` and ``time_s``, shape (times,); the JSON texts ``shapes``, lists of dims and
            then the layout, and ``configs``, pairs of kernel and config.
        operation: What was timed.
        dtype: Of all problems; the operation's first when empty.
    """
    problems = []
    for *sizes, layout in json.loads(str(data["shapes"])):
        problems.append(operation.problem(dict(zip(operation.dims, sizes, strict=True)), dtype, layout))
    configs = [(kernel, Config(config)) for kernel, config in json.loads(str(data["configs"]))]
    problem, config = (np.asarray(data[name], dtype=np.int64) for name in ("shape", "config"))
    return Timings(problems, configs, problem, config, np.asarray(data["time_s"], dtype=np.float64))
