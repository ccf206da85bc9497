"""Answers of a fitted model, by NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup.features import Floats
from tuner.lookup.legality import Points
from tuner.lookup.model.calibrate import FIRST, Calibration
from tuner.lookup.model.forest import Bits, Forest
from tuner.lookup.model.physics import (
    Limits,
    Traits,
    config_features,
    library_features,
    problem_features,
    resident_blocks,
)

#: Trees that tell which configs are worth the others, and configs that are. At 400 drawn shapes these kept what
#: all trees would have chosen.
SCREEN_TREES, SCREENED = 50, 48
#: Configs of a kernel that are checked one by one; if more are needed, all of the kernel at once.
ONE_BY_ONE = 5
#: Answers that a predictor keeps.
KEPT = 4096


@dataclass(frozen=True)
class Candidate:
    """A config with its predicted time."""

    kernel: str
    config: Config
    time_s: float


@dataclass(frozen=True)
class Prediction:
    """What a model answers.

    Attributes:
        best: The legal config that is predicted to be the fastest; None if none is legal.
        library_s: Predicted time of the library; infinite where there is none.
        by_library: Whether the library is answered: no kernel's gain outweighs the uncertainty.
        expected_loss: Fraction of speed that the answer loses, 1 - best / answered, as measured at problems
            like this one that the model was not fitted to.
        loss_interval: Its 80 % interval.
        time_interval_s: The 80 % interval of the answer's time.
    """

    best: Candidate | None
    library_s: float
    by_library: bool
    expected_loss: float
    loss_interval: tuple[float, float]
    time_interval_s: tuple[float, float]


@dataclass(frozen=True)
class Model:
    """Predicts times of a shortlist of configs, and of the library, on one device.

    Attributes:
        operation: Name of the operation.
        device: The device.
        limits: What it reached in the survey.
        configs: The shortlist: kernel and config.
        parameters: Their parameters as numbers, shape (parameters, configs).
        traits: Their traits by dtype and layout.
        forest: Log of a config's time over the geometric mean of first estimate and roofline.
        library: Log of the library's time over the roofline.
        calibration: What predictions cost.
        provenance: What the model was fitted to: device, versions, counts, dates, hashes of sources.
    """

    operation: str
    device: DeviceInfo
    limits: Limits
    configs: Sequence[tuple[str, Config]]
    parameters: Floats
    traits: Mapping[tuple[str, str], Traits]
    forest: Forest
    library: Forest
    calibration: Calibration
    provenance: Mapping[str, Any] = field(default_factory=dict)
    _fixed: dict[tuple[str, str, DeviceInfo], Bits] = field(default_factory=dict, compare=False, repr=False)

    def knows(self, problem: Problem) -> bool:
        """Whether such problems were surveyed: operation, dtype and layout; surveys are in full precision."""
        named = problem.operation.name, problem.precision
        return named == (self.operation, IEEE) and (problem.dtype, problem.layout) in self.traits

    @cached_property
    def screen(self) -> Forest:
        """The trees that tell which configs are worth the others."""
        return self.forest.first(SCREEN_TREES)

    def times(self, problem: Problem, device: DeviceInfo | None = None, most: int = 0) -> tuple[Floats, float]:
        """Logs of predicted seconds.

        Args:
            problem: One that the model knows.
            device: Where; that of the survey unless given.
            most: Only of so many configs, those that the first trees take for the fastest; of all when 0.

        Returns:
            Of every config of the shortlist, legal or not (infinite if it is not among the most), and of the
            library (infinite if there is none).

        Raises:
            InputError: The model knows no such problems.
        """
        if not self.knows(problem):
            raise InputError(
                f"a model answers for what was surveyed, {self.operation} of {sorted(self.traits)}, got "
                f"{problem.operation.name} of {(problem.dtype, problem.layout)}; survey that, too"
            )
        device = device or self.device
        key = problem.dtype, problem.layout
        fixed = self._fixed_bits(key, device)
        shared = problem_features(problem, self.limits)
        mixed, estimate = config_features(problem, device, self.traits[key], self.limits)
        reference = (estimate + math.log(self.limits.roofline_s(problem))) / 2
        first = len(self.parameters) + TRAIT_FEATURES
        places = self.forest.places(first + len(shared), mixed)
        left = self.forest.bits_of_one(first, shared)
        found, among = np.full(len(estimate), np.inf), np.arange(len(estimate))
        if 0 < most < len(estimate):
            some = slice(SCREEN_TREES)
            bits = self.screen.bits_at(places)
            coarse = self.screen.sums(bits & fixed[:, some] & left[:, some]) + reference
            among = np.argpartition(coarse, most)[:most]
            places = places[:, among]
        bits = self.forest.bits_at(places)
        bits &= fixed[among]
        bits &= left
        found[among] = self.forest.sums(bits) + reference[among]
        return found, self._library(problem, device, shared)

    def _fixed_bits(self, key: tuple[str, str], device: DeviceInfo) -> Bits:
        at = (*key, device)
        if at not in self._fixed:
            features = fixed_features(self.parameters, device, self.traits[key])
            self._fixed[at] = self.forest.bits(0, features)
        return self._fixed[at]

    def _library(self, problem: Problem, device: DeviceInfo, shared: Floats) -> float:
        if not len(self.library.leaves):
            return math.inf
        row = library_features(problem, device, self.limits, shared)
        return float(self.library.sums(self.library.bits_of_one(0, row))[0]) + math.log(
            self.limits.roofline_s(problem)
        )


#: Features of a config beside its parameters that do not depend on the problem's dims.
TRAIT_FEATURES = 5


def fixed_features(parameters: Floats, device: DeviceInfo, of: Traits) -> Floats:
    """Features of configs that hold at any dims: parameters, threads, shared memory, registers, occupancy."""
    resident = resident_blocks(device, of)
    return np.vstack([parameters, of.row(2), of.row(3), of.row(4), resident, resident * of.row(2)])


class _Point(dict[str, Any]):
    """A config whose parameters are attributes, too: read often, and quicker than a `Config`."""

    __getattr__ = dict.__getitem__


class Predictor:
    """Answers for one model, with the kernels as they are declared now, on one device."""

    def __init__(self, model: Model, kernels: Mapping[str, Kernel], device: DeviceInfo | None = None) -> None:
        """Takes a model.

        Args:
            model: The model.
            kernels: By name. Configs of a kernel that is missing, or that are not points of its parameters
                any more, are never answered.
            device: Where answers are to be legal; the surveyed one unless given.
        """
        self.model, self._device = model, device or model.device
        self._kept: dict[tuple[str, Problem], Prediction] = {}
        self._points: dict[str, tuple[list[int], Points]] = {}
        self._orders = {name: [each.name for each in kernel.parameters] for name, kernel in kernels.items()}
        for name in dict.fromkeys(name for name, _ in model.configs):
            if name in kernels:
                binding = tuple(each for each in kernels[name].constraints if not each.for_speed)
                numbers = [at for at, (of, _) in enumerate(model.configs) if of == name]
                kernel = replace(kernels[name], constraints=binding)
                self._points[name] = numbers, Points(kernel, [model.configs[at][1] for at in numbers])

    def answer(self, problem: Problem) -> Prediction:
        """What to run for a problem; the last few thousand answers are kept.

        Raises:
            InputError: The model does not know such problems.
        """
        key = problem.operation.name, problem
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._answer(problem)
        return kept

    def _answer(self, problem: Problem) -> Prediction:
        times, library = self.model.times(problem, self._device, SCREENED)
        best = self._legal(problem, times, 1)
        if not best:  # none of those is legal here
            times, library = self.model.times(problem, self._device)
            best = self._legal(problem, times, 1)
        found = self._candidate(best[0], times) if best else None
        kernel = float(times[best[0]]) if best else math.inf
        gain = library - kernel if best else -math.inf
        calibration = self.model.calibration
        by_library = not gain > calibration.margin and math.isfinite(library)
        dims = np.log([size for _, size in problem.shape])
        expected, most, spread = calibration.figures(dims, gain)
        answered = library if by_library else kernel
        return Prediction(
            found, math.exp(library), by_library, expected, (0.0, min(most, 1.0)),
            (math.exp(answered + spread[0]), math.exp(answered + spread[1])),
        )  # fmt: skip

    def candidates(self, problem: Problem, count: int = FIRST) -> list[Candidate]:
        """The legal configs that are predicted to be the fastest, the best first: what is worth timing.

        Raises:
            InputError: The model does not know such problems.
        """
        times, _ = self.model.times(problem, self._device)
        return [self._candidate(at, times) for at in self._legal(problem, times, count)]

    def _candidate(self, at: int, times: Floats) -> Candidate:
        """A config with its parameters in its kernel's order, in which a model's text does not keep them."""
        name, config = self.model.configs[at]
        return Candidate(name, Config({each: config[each] for each in self._orders[name]}), math.exp(times[at]))

    def _legal(self, problem: Problem, times: Floats, count: int) -> list[int]:
        """The first legal configs by time. Only what comes up is checked against its kernel's rules."""
        flags: dict[str, Mapping[int, bool]] = {}
        asked: dict[str, int] = {}
        found: list[int] = []
        for at in np.argsort(times, kind="stable").tolist():
            name = self.model.configs[at][0]
            if math.isinf(times[at]):
                break
            if name not in self._points:
                continue
            asked[name] = asked.get(name, 0) + 1
            if asked[name] > ONE_BY_ONE and name not in flags:
                flags[name] = dict(zip(self._points[name][0], self._flags(name, problem), strict=True))
            if flags[name][at] if name in flags else self._obeys(name, at, problem):
                found.append(at)
                if len(found) == count:
                    break
        return found

    def _obeys(self, name: str, at: int, problem: Problem) -> bool:
        """Whether one config obeys; it does not where a rule cannot be asked."""
        numbers, points = self._points[name]
        if not points.fits[numbers.index(at)]:
            return False
        config, device = _Point(self.model.configs[at][1]), self._device
        try:
            return all(each.rule(problem, device, config) for each in points.kernel.constraints)
        except Exception:  # as where all are checked at once
            return False

    def _flags(self, name: str, problem: Problem) -> list[bool]:
        legal: list[bool] = self._points[name][1].flags(problem, self._device)[0].tolist()
        return legal
