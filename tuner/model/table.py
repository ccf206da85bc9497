"""A survey's timings, rows of features for learners, what was timed near a problem, and which of it is legal.

Trees extrapolate. Of two thousand configs that they have never seen at a problem some look faster than any is.
So an answer is a config that was good at one of the surveyed problems nearest to the one that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.legality import Flags, Points
from tuner.model import physics
from tuner.results.distance import OTHER_LAYOUT, Floats, Numbers, distances, log_dims
from tuner.results.measurement import FALLS_BEHIND
from tuner.results.survey import LIBRARY


@dataclass(frozen=True)
class Timings:
    """Times of configs and of the library at drawn problems of one operation on one device.

    Attributes:
        problems: The problems.
        configs: Kernel and config.
        times_s: Per problem the seconds by number of the config, or `LIBRARY`, in the order timed.
        registers: Per config: 32-bit registers of a thread by the compiler's report, 0 if it is unknown.
        provenance: Where the times come from: versions, dates; JSON.
    """

    problems: Sequence[Problem]
    configs: Sequence[tuple[str, Config]]
    times_s: Sequence[Mapping[int, float]]
    registers: Floats | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


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


class FeatureRows:
    """A survey as rows of features. Rows are sorted by problem, and within one in the order timed.

    Attributes:
        timings: The survey.
        kernels: By name, as declared when it was made.
        device: Where it was made, with its limits.
        problem: Per time of a config: number of its problem.
        config: Per time of a config: its number.
        time_s: Per time of a config: seconds.
        fastest_s: Least seconds of a config, shape (problems,); infinite where none was timed.
        library_s: Seconds of the library, shape (problems,); NaN where it was not timed.
        limits: What the device reached.
        order: What the numbers of parameters stand for.
        parameters: Of all configs, as numbers, shape (parameters, configs).
        traits: Of all configs, by dtype and layout.
        rows: Per time of a config: features, shape (times, features).
        targets: log(time / first estimate) and log(time / roofline), shape (2, times).
        weight: How much each counts.
        library_rows: Shape (problems, features).
        library_target: log(library / roofline), shape (problems,).
    """

    def __init__(self, timings: Timings, kernels: Mapping[str, Kernel], device: DeviceInfo) -> None:
        """Computes features.

        Args:
            timings: The survey.
            kernels: By name, as declared when it was made.
            device: Where it was made.
        """
        self.timings, self.kernels, self.device, problems = timings, kernels, device, timings.problems
        by_problem = [{at: s for at, s in times.items() if at != LIBRARY} for times in timings.times_s]
        self.problem = np.repeat(np.arange(len(problems)), [len(times) for times in by_problem])
        self.config = np.array([at for times in by_problem for at in times], np.int64)
        self.time_s = np.array([time_s for times in by_problem for time_s in times.values()])
        self.fastest_s = np.array([min(times.values(), default=np.inf) for times in by_problem])
        self.library_s = np.array([times.get(LIBRARY, np.nan) for times in timings.times_s])
        best_s = np.fmin(self.fastest_s, self.library_s)
        self.limits, self.order = physics.limits(problems, best_s), ParameterOrder.of(timings.configs)
        self.parameters = parameter_table(kernels, timings.configs, self.order)
        like = {(problem.dtype, problem.layout): problem for problem in problems}
        self.traits = {
            key: physics.traits(kernels, timings.configs, of, timings.registers) for key, of in like.items()
        }
        parts = [self._rows_at(of, list(times)) for of, times in zip(problems, by_problem, strict=True)]
        self.rows, estimate = (np.concatenate(of) for of in zip(*parts, strict=True))
        roofline = np.log([self.limits.roofline_s(of) for of in problems])
        self.targets = np.log(self.time_s) - np.array([estimate, roofline[self.problem]])
        self.weight = 1 / np.minimum(self.time_s / best_s[self.problem], SLOW) ** 2
        self.library_rows = np.array([physics.library_features(of, device, self.limits) for of in problems])
        self.library_target = np.log(self.library_s) - roofline

    def _rows_at(self, problem: Problem, timed: list[int]) -> tuple[Floats, Floats]:
        """Features of configs at a problem, shape (configs, features), and logs of first estimates."""
        of = self.traits[problem.dtype, problem.layout].some(timed)
        fixed = physics.fixed_features(self.parameters[:, timed], self.device, of)
        mixed, estimate = physics.config_features(problem, self.device, of, self.limits)
        shared = np.repeat(physics.problem_features(problem, self.limits)[:, None], len(timed), axis=1)
        return np.vstack([fixed, shared, mixed]).T, estimate


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


#: Surveyed problems that speak for a config.
NEAREST = 32
#: A config this much slower than the best at a problem, as a log of time, does not recommend itself there.
GOOD = 0.5
#: Log of time to which it is rounded, up to `GOOD` and beyond: finer differences are noise, and take space. No
#: config counts as further behind than the last.
STEP, COARSE_STEP, FURTHEST = 1 / 32, 1 / 8, 1.5
#: What is added to a distance, in doublings, before a near problem counts its inverse square.
SOFTLY = 0.3
#: Weight of how a config stood near by beside the time that trees predict. At problems left out of 54,313
#: timings of gemm on an H200 answers lost 7.5 %, with a weight of 0.5 and trees grown faster 9.3 % (three draws
#: of 134 problems).
WEIGHT = 1.0


@dataclass(frozen=True)
class Evidence:
    """How configs of the shortlist stood at the surveyed problems.

    Attributes:
        places: log2 of the problems' dims, shape (problems, dims).
        kinds: Number of each problem's dtype and layout among the model's.
        library: Per problem: log(library / fastest config); NaN where either was not timed.
        starts: Where each problem's configs begin, shape (problems + 1,).
        configs: Numbers of configs in the shortlist, one problem after the other.
        behind: Log of their time over that of the fastest one there.
        weight: Of how a config stood near by, beside the time that trees predict.
    """

    places: Floats
    kinds: Numbers
    library: Floats
    starts: Numbers
    configs: Numbers
    behind: Floats
    weight: float = WEIGHT

    def around(self, problem: Problem, kind: int, count: int) -> tuple[Floats, Floats]:
        """How configs stood near a problem.

        Args:
            problem: The problem.
            kind: Number of its dtype and layout.
            count: Configs of the shortlist.

        Returns:
            Per config: how far it is expected to be behind the fastest, a log, infinite if it was not good near
            by; and the mean log(library / config) near by, minus infinity if it is not known.
        """
        unlike = OTHER_LAYOUT * (self.kinds != kind)
        apart = distances(self.places, log_dims(problem.shape), unlike)
        near = np.argpartition(apart, NEAREST)[:NEAREST] if len(apart) > NEAREST else np.arange(len(apart))
        first, counts = self.starts[near], self.starts[near + 1] - self.starts[near]
        # Row by row: the near problem that it is of, and its place among all rows.
        of = np.repeat(np.arange(len(near)), counts)
        rows = np.arange(len(of)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        configs, lost, apart = self.configs[rows], self.behind[rows], apart[near]
        behind, good = np.full(count, np.inf), lost <= GOOD
        np.minimum.at(behind, configs[good], lost[good] + FALLS_BEHIND * apart[of[good]])
        library = self.library[near]
        weight = np.where(np.isfinite(library), 1 / (SOFTLY + apart) ** 2, 0.0)[of]
        gain = np.nan_to_num(library, posinf=0.0, neginf=0.0)[of] - lost
        weights = np.bincount(configs, weight, count)
        gains = np.bincount(configs, weight * gain, count)
        return behind, np.divide(gains, weights, out=np.full(count, -np.inf), where=weights > 0)


def evidence(data: FeatureRows, numbers: Numbers, shortlist: Numbers) -> Evidence:
    """The evidence of some problems.

    Args:
        data: A survey.
        numbers: Of the problems that may speak, ascending.
        shortlist: Numbers of the configs that may be answered, in order.
    """
    places = np.full(len(data.timings.configs), -1)
    places[shortlist] = np.arange(len(shortlist))
    place, timed = places[data.config], numbers[np.isfinite(data.fastest_s[numbers])]
    rows = np.flatnonzero(np.isin(data.problem, timed) & (place >= 0))
    # In a row, numbers take less space in a file.
    rows = rows[np.lexsort((place[rows], data.problem[rows]))]
    problem, kinds = data.problem[rows], list(data.traits)
    lost = np.log(data.time_s[rows] / data.fastest_s[problem])
    step = np.where(lost > GOOD, COARSE_STEP, STEP)
    problems = [data.timings.problems[number] for number in timed]
    return Evidence(
        np.array([log_dims(of.shape) for of in problems]),
        np.array([kinds.index((of.dtype, of.layout)) for of in problems], np.int32),
        np.log(data.library_s[timed] / data.fastest_s[timed]),
        np.append(np.searchsorted(problem, timed), len(rows)).astype(np.int32),
        place[rows].astype(np.int32), np.minimum(np.round(lost / step) * step, FURTHEST),
    )  # fmt: skip


class Choices:
    """Configs of several kernels to choose from, as their kernels are declared now."""

    def __init__(self, configs: Sequence[tuple[str, Mapping[str, Any]]], kernels: Iterable[Kernel]) -> None:
        """Takes configs.

        Args:
            configs: Kernel and config.
            kernels: Configs of a kernel that is missing, or that are not points of its parameters any more, are
                never legal.
        """
        self._configs = configs
        self._kernels = {each.name: each for each in kernels}
        self._points: list[tuple[NDArray[np.int64], Points]] = []
        for name, kernel in self._kernels.items():
            numbers = np.array([at for at, (of, _) in enumerate(configs) if of == name], np.int64)
            if len(numbers):
                self._points.append((numbers, Points(kernel, [configs[at][1] for at in numbers])))

    def legal(self, problem: Problem, device: DeviceInfo, among: Flags | None = None) -> NDArray[np.int64]:
        """Numbers of the configs that obey all constraints; where none does, of those that are legal.

        Args:
            problem: What is to be computed.
            device: Where.
            among: Per config: whether it is asked about; all when None.
        """
        asked = np.ones(len(self._configs), bool) if among is None else among

        def flags(*for_speed: bool) -> Flags:
            legal = np.zeros(len(self._configs), bool)
            for numbers, points in self._points:
                some = asked[numbers]
                for speed in for_speed:
                    some = points.obeying(speed, problem, device, some)
                legal[numbers] = some
            return legal

        fast = flags(True, False)
        return np.flatnonzero(fast if fast.any() else flags(False))

    @cached_property
    def points(self) -> Mapping[str, NDArray[np.int64]]:
        """By kernel the numbers of its configs that are points of its parameters as they are now."""
        return {points.kernel.name: numbers[points.fits] for numbers, points in self._points}
