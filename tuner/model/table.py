"""A survey's timings, and the rows of features that learners are fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.model.physics import (
    DeviceRates,
    Traits,
    config_features,
    fixed_features,
    library_features,
    limits,
    problem_features,
    traits,
)
from tuner.results.distance import Floats, Numbers
from tuner.results.survey import LIBRARY


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

    def by_problem(self) -> list[dict[int, float]]:
        """Per problem the times of configs, and of the library, by their numbers in the order timed."""
        times: list[dict[int, float]] = [{} for _ in self.problems]
        for problem, config, time_s in zip(self.problem, self.config, self.time_s.tolist(), strict=True):
            times[problem][int(config)] = time_s
        return times


#: A config that is n times slower than the best counts 1/n^2; n is this at the most.
SLOW = 10.0


class ParameterOrder(NamedTuple):
    """What the numbers of kernels, and the rows of parameters, stand for.

    Attributes:
        kernels: Names, sorted.
        parameters: Names, sorted.
    """

    kernels: Sequence[str]
    parameters: Sequence[str]

    @classmethod
    def of(cls, configs: Sequence[tuple[str, Config]]) -> ParameterOrder:
        """Those of some configs."""
        names = {name for _, config in configs for name in config}
        return cls(sorted({kernel for kernel, _ in configs}), sorted(names))


@dataclass(frozen=True)
class FeatureRows:
    """A survey as rows of features. Rows are sorted by problem, and within one in the order timed.

    Attributes:
        timings: The survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        limits: What the device reached.
        order: What the numbers of parameters stand for.
        parameters: Of all configs, as numbers, shape (parameters, configs).
        traits: Of all configs, by dtype and layout.
        problem: Per time of a config: number of its problem.
        config: Per time of a config: its number.
        time_s: Per time of a config: seconds.
        rows: Per time of a config: features, shape (times, features).
        targets: log(time / first estimate) and log(time / roofline), shape (2, times).
        weight: How much each counts.
        fastest_s: Least seconds of a config, shape (problems,); infinite where none was timed.
        library_s: Seconds of the library, shape (problems,); NaN where it was not timed.
        library_rows: Shape (problems, features).
        library_target: log(library / roofline), shape (problems,).
    """

    timings: Timings
    kernels: Mapping[str, Kernel]
    device: DeviceInfo
    limits: DeviceRates
    order: ParameterOrder
    parameters: Floats
    traits: Mapping[tuple[str, str], Traits]
    problem: Numbers
    config: Numbers
    time_s: Floats
    rows: Floats
    targets: Floats
    weight: Floats
    fastest_s: Floats
    library_s: Floats
    library_rows: Floats
    library_target: Floats


def table(timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> FeatureRows:
    """The rows of a survey.

    Args:
        timings: The survey.
        kernels: By name, as declared when it was made.
        device: Where it was made.
    """
    problems = timings.problems
    order = np.argsort(timings.problem, kind="stable")
    order = order[timings.config[order] != LIBRARY]
    problem, config, time_s = timings.problem[order], timings.config[order], timings.time_s[order]
    library_s, fastest_s = np.full(len(problems), np.nan), np.full(len(problems), np.inf)
    np.minimum.at(fastest_s, problem, time_s)
    of_library = timings.config == LIBRARY
    library_s[timings.problem[of_library]] = timings.time_s[of_library]
    best_s = np.fmin(fastest_s, library_s)
    known, columns = limits(problems, best_s), ParameterOrder.of(timings.configs)
    parameters = parameter_table(kernels, timings.configs, columns)
    like = {(problem.dtype, problem.layout): problem for problem in problems}
    by_layout = {key: traits(kernels, timings.configs, of, timings.registers) for key, of in like.items()}
    fixed = {key: fixed_features(parameters, device, of) for key, of in by_layout.items()}
    ends = np.searchsorted(problem, np.arange(len(problems) + 1))
    rows, estimates = [], []
    for number, of in enumerate(problems):
        key, timed = (of.dtype, of.layout), config[ends[number] : ends[number + 1]]
        mixed, estimate = config_features(of, device, by_layout[key].some(timed), known)
        shared = np.repeat(problem_features(of, known)[:, None], len(timed), axis=1)
        rows.append(np.vstack([fixed[key][:, timed], shared, mixed]).T)
        estimates.append(estimate)
    roofline = np.log([known.roofline_s(of) for of in problems])
    return FeatureRows(
        timings, kernels, device, known, columns, parameters, by_layout, problem, config, time_s,
        np.concatenate(rows), np.log(time_s) - np.array([np.concatenate(estimates), roofline[problem]]),
        1 / np.minimum(time_s / best_s[problem], SLOW) ** 2, fastest_s, library_s,
        np.array([library_features(of, device, known) for of in problems]), np.log(library_s) - roofline,
    )  # fmt: skip


def parameter_table(
    kernels: Mapping[str, Kernel], configs: Sequence[tuple[str, Config]], order: ParameterOrder
) -> Floats:
    """Kernels and parameters as numbers, shape (1 + names, configs); -1 for what a kernel does not have.

    A parameter's value is a number itself, or else its place among the declared values.

    Args:
        kernels: By name.
        configs: Kernel and config.
        order: What numbers stand for.
    """
    numbers = np.full((1 + len(order.parameters), len(configs)), -1.0)
    for at, (kernel, config) in enumerate(configs):
        numbers[0, at] = order.kernels.index(kernel)
        parameters = kernels[kernel].parameters if kernel in kernels else ()
        declared = {parameter.name: parameter.values for parameter in parameters}
        for name, value in config.items():
            values = declared.get(name, ())
            number = values.index(value) if isinstance(value, str) and value in values else value
            numbers[1 + order.parameters.index(name), at] = -2.0 if isinstance(number, str) else float(number)
    return numbers
