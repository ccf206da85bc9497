"""Answers of a fitted model, by NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import IEEE, Problem
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.lookup.features import Floats
from tuner.lookup.legality import Choices
from tuner.lookup.model.calibrate import FIRST, Calibration
from tuner.lookup.model.data import Numbers
from tuner.lookup.model.evidence import WEIGHT, Evidence
from tuner.lookup.model.forest import Bits, Forest
from tuner.lookup.model.physics import (
    TRAIT_FEATURES,
    Limits,
    Traits,
    config_features,
    fixed_features,
    library_features,
    problem_features,
)

#: Trees that tell which configs are worth the others, and configs that are.
SCREEN_TREES, SCREENED = 60, 64
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
        best: The config that is predicted to be the fastest of those that obey all constraints, or else
            of those that are legal; None if none is.
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
class _Fixed:
    """What configs' own features leave of all trees, and of the first, shape (configs, trees)."""

    whole: Bits
    screen: Bits


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
        evidence: How configs stood at the surveyed problems; None for models of earlier versions.
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
    evidence: Evidence | None = None
    _fixed: dict[tuple[str, str, DeviceInfo], _Fixed] = field(default_factory=dict, compare=False, repr=False)

    def knows(self, problem: Problem) -> bool:
        """Whether such problems were surveyed: dtype and layout; surveys have full precision, no epilogues."""
        named = problem.operation.name, problem.precision, problem.epilogue
        return named == (self.operation, IEEE, "") and (problem.dtype, problem.layout) in self.traits

    @cached_property
    def screen(self) -> Forest:
        """The trees that tell which configs are worth the others."""
        return self.forest.first(SCREEN_TREES)

    def times(self, problem: Problem, device: DeviceInfo | None = None) -> tuple[Floats, float]:
        """Logs of predicted seconds of every config of the shortlist, legal or not, and of the library.

        Args:
            problem: One that the model knows.
            device: Where; that of the survey unless given.

        Raises:
            InputError: The model knows no such problems.
        """
        here = self.at(problem, device)
        return here.log_s(), here.library_log_s()

    def at(
        self, problem: Problem, device: DeviceInfo | None = None, among: Sequence[int] | Numbers | None = None
    ) -> There:
        """What the model says of a problem.

        Args:
            problem: One that the model knows.
            device: Where; that of the survey unless given.
            among: Numbers of configs; all when None.

        Raises:
            InputError: The model knows no such problems.
        """
        if not self.knows(problem):
            raise InputError(
                f"a model answers for what was surveyed, {self.operation} of {sorted(self.traits)}, got "
                f"{problem.operation.name} of {(problem.dtype, problem.layout)}; survey that, too"
            )
        numbers = np.arange(len(self.configs)) if among is None else np.asarray(among, dtype=np.int64)
        return There(self, problem, device or self.device, numbers)

    def fixed_bits(self, key: tuple[str, str], device: DeviceInfo) -> _Fixed:
        """What the configs' own features leave of the trees, for a dtype and layout."""
        at = (*key, device)
        if at not in self._fixed:
            features = fixed_features(self.parameters, device, self.traits[key])
            whole = self.forest.bits(0, features)
            self._fixed[at] = _Fixed(whole, np.ascontiguousarray(whole[:, :SCREEN_TREES]))
        return self._fixed[at]


class There:
    """A model at one problem."""

    def __init__(self, model: Model, problem: Problem, device: DeviceInfo, among: Numbers) -> None:
        """Computes the features.

        Args:
            model: One that knows the problem.
            problem: The problem.
            device: Where.
            among: Numbers of the configs that are asked about.
        """
        self._model, self._problem, self._device = model, problem, device
        key = problem.dtype, problem.layout
        self._roofline = math.log(model.limits.roofline_s(problem))
        self._fixed, self._among = model.fixed_bits(key, device), among
        self._shared = problem_features(problem, model.limits)
        mixed, estimate = config_features(problem, device, model.traits[key].some(among), model.limits)
        self._reference = (estimate + self._roofline) / 2
        first = len(model.parameters) + TRAIT_FEATURES
        self._places = model.forest.places(first + len(self._shared), mixed)
        self._left = model.forest.bits_of_one(first, self._shared)

    def coarse(self) -> Floats:
        """Logs of seconds of the configs by the first trees."""
        screen = self._model.screen
        bits = screen.bits_at(self._places) & self._left[:, :SCREEN_TREES]
        bits &= self._fixed.screen[self._among]
        found: Floats = screen.sums(bits) + self._reference
        return found

    def log_s(self, places: Numbers | None = None) -> Floats:
        """Logs of predicted seconds of the configs, or of those at some places among them."""
        some = slice(None) if places is None else places
        bits = self._model.forest.bits_at(self._places[:, some]) & self._left
        bits &= self._fixed.whole[self._among[some]]
        found: Floats = self._model.forest.sums(bits) + self._reference[some]
        return found

    def library_log_s(self) -> float:
        """Log of predicted seconds of the library; infinite where there is none."""
        model = self._model
        if not len(model.library.leaves):
            return math.inf
        row = library_features(self._problem, self._device, model.limits, self._shared)
        return float(model.library.sums(model.library.bits_of_one(0, row))[0]) + self._roofline


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
        self._choices = Choices(model.configs, kernels.values())

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
        legal, behind, known_gain = self._known(problem)
        there = self.model.at(problem, self._device, legal)
        fastest = self._fastest(there, legal, behind, 1)
        found = self._candidate(*fastest[0]) if fastest else None
        library = there.library_log_s()
        kernel = math.log(found.time_s) if found else math.inf
        # A kernel is faster than the library if trees and what was timed near by both say so.
        gain = min(library - kernel, float(known_gain[fastest[0][0]])) if fastest else -math.inf
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
        """The configs worth trying that are predicted to be the fastest, the best first: what is worth timing.

        Raises:
            InputError: The model does not know such problems.
        """
        legal, behind, _ = self._known(problem)
        there = self.model.at(problem, self._device, legal)
        return [self._candidate(*each) for each in self._fastest(there, legal, behind, count)]

    def out_of_place(self, problem: Problem, count: int = 1) -> list[tuple[str, Config]]:
        """Configs that were good near by, of kernels none of whose good ones is legal here; the best first.

        What is legal and most like them may be worth timing. It was never timed, so it is no answer.

        Args:
            problem: One that the model knows.
            count: Of each kernel.
        """
        if self.model.evidence is None:
            return []
        legal, _, _ = self._known(problem)
        at_hand = {self.model.configs[at][0] for at in legal}
        kind = list(self.model.traits).index((problem.dtype, problem.layout))
        behind, _ = self.model.evidence.around(problem, kind, len(self.model.configs))
        found: dict[str, list[Config]] = {}
        for at in np.argsort(behind, kind="stable")[: int(np.isfinite(behind).sum())].tolist():
            mine = found.setdefault(self.model.configs[at][0], [])
            if self.model.configs[at][0] not in at_hand and len(mine) < count and self._choices.is_point(at):
                mine.append(self._choices.named(at)[1])
        return [(kernel, config) for kernel, configs in found.items() for config in configs]

    def _known(self, problem: Problem) -> tuple[Numbers, Floats, Floats]:
        """Numbers of the configs to choose among: legal ones that were good near by, or else all legal ones.

        Returns:
            The numbers; how far behind the fastest each is expected to be by what was timed near by; and, of
            all configs, log(library / config) near by.
        """
        evidence, count = self.model.evidence, len(self.model.configs)
        if evidence is None:
            legal = self._choices.legal(problem, self._device)
            return legal, np.zeros(len(legal)), np.full(count, np.inf)
        kind = list(self.model.traits).index((problem.dtype, problem.layout))
        behind, gains = evidence.around(problem, kind, count)
        if not np.isfinite(evidence.library).any():  # there is no library
            gains = np.full(count, np.inf)
        good = self._choices.legal(problem, self._device, np.isfinite(behind))
        if len(good):
            return good, behind[good], gains
        legal = self._choices.legal(problem, self._device)
        return legal, np.zeros(len(legal)), gains

    def _fastest(self, there: There, legal: Numbers, behind: Floats, count: int) -> list[tuple[int, float]]:
        """Number and log of seconds of the most promising configs, the best first."""
        coarse, most = there.coarse() + WEIGHT * behind, max(SCREENED, count)
        screened = np.argpartition(coarse, most)[:most] if most < len(coarse) else np.arange(len(coarse))
        log_s = there.log_s(screened)
        best = np.argsort(log_s + WEIGHT * behind[screened], kind="stable")[:count]
        return [(int(legal[screened[at]]), float(log_s[at])) for at in best]

    def _candidate(self, at: int, log_s: float) -> Candidate:
        return Candidate(*self._choices.named(at), math.exp(log_s))
