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
from tuner.lookup.legality import Choices, Flags
from tuner.lookup.model.adapted import CHANGED, Adapted, adapted
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
    traits,
)
from tuner.lookup.model.table import Columns, parameter_table

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
class Lot:
    """Configs that a model is asked about.

    Attributes:
        traits: Their traits.
        screen: What their own features leave of the first trees, shape (configs, trees).
        whole: The same of all trees, for these and other configs.
        rows: Theirs among those.
    """

    traits: Traits
    screen: Bits
    whole: Bits
    rows: Numbers

    @classmethod
    def of(cls, traits: Traits, whole: Bits) -> Lot:
        """All that `whole` is of."""
        return cls(traits, np.ascontiguousarray(whole[:, :SCREEN_TREES]), whole, np.arange(len(whole)))

    def some(self, numbers: Numbers) -> Lot:
        """Those with some numbers."""
        return Lot(self.traits.some(numbers), self.screen[numbers], self.whole, self.rows[numbers])

    def and_(self, more: Lot) -> Lot:
        """These, and more of them."""
        values = np.hstack([self.traits.values, more.traits.values])
        whole = np.vstack([self.whole[self.rows], more.whole[more.rows]])
        return Lot.of(replace(self.traits, values=values), whole)


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
    _lots: dict[tuple[str, str, DeviceInfo], Lot] = field(default_factory=dict, compare=False, repr=False)

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
        lot = self.lot(problem, device or self.device)
        some = lot if among is None else lot.some(np.asarray(among, dtype=np.int64))
        return There(self, problem, device or self.device, some)

    def lot(self, problem: Problem, device: DeviceInfo) -> Lot:
        """All configs of the shortlist.

        Raises:
            InputError: The model knows no such problems.
        """
        if not self.knows(problem):
            raise InputError(
                f"a model answers for what was surveyed, {self.operation} of {sorted(self.traits)}, got "
                f"{problem.operation.name} of {(problem.dtype, problem.layout)}; survey that, too"
            )
        at = problem.dtype, problem.layout, device
        if at not in self._lots:
            of = self.traits[at[:2]]
            self._lots[at] = Lot.of(of, self.forest.bits(0, fixed_features(self.parameters, device, of)))
        return self._lots[at]

    def lot_of(self, made: Adapted, kernels: Mapping[str, Kernel], problem: Problem, device: DeviceInfo) -> Lot:
        """Configs that are not of the shortlist; registers, which nobody counted, are those of their origins.

        Args:
            made: The configs.
            kernels: By name.
            problem: One that the model knows.
            device: Where.
        """
        registers = self.traits[problem.dtype, problem.layout].row(4)[made.origins]
        of = traits(kernels, made.configs, problem, registers)
        parameters = parameter_table(kernels, made.configs, self.columns)
        return Lot.of(of, self.forest.bits(0, fixed_features(parameters, device, of)))

    @cached_property
    def columns(self) -> Columns | None:
        """What the numbers of parameters stand for; None where the shortlist does not tell."""
        found = Columns.of(self.configs)
        places = [found.kernels.index(kernel) for kernel, _ in self.configs]
        told = len(self.parameters) == 1 + len(found.parameters) and np.array_equal(self.parameters[0], places)
        return found if told else None


class There:
    """A model at one problem."""

    def __init__(self, model: Model, problem: Problem, device: DeviceInfo, lot: Lot) -> None:
        """Computes the features.

        Args:
            model: One that knows the problem.
            problem: The problem.
            device: Where.
            lot: The configs that are asked about.
        """
        self._model, self._problem, self._device, self._lot = model, problem, device, lot
        self._roofline = math.log(model.limits.roofline_s(problem))
        self._shared = problem_features(problem, model.limits)
        mixed, estimate = config_features(problem, device, lot.traits, model.limits)
        self._reference = (estimate + self._roofline) / 2
        first = len(model.parameters) + TRAIT_FEATURES
        self._places = model.forest.places(first + len(self._shared), mixed)
        self._left = model.forest.bits_of_one(first, self._shared)

    def coarse(self) -> Floats:
        """Logs of seconds of the configs by the first trees."""
        screen = self._model.screen
        bits = screen.bits_at(self._places) & self._left[:, :SCREEN_TREES]
        bits &= self._lot.screen
        found: Floats = screen.sums(bits) + self._reference
        return found

    def log_s(self, places: Numbers | None = None) -> Floats:
        """Logs of predicted seconds of the configs, or of those at some places among them."""
        some = slice(None) if places is None else places
        bits = self._model.forest.bits_at(self._places[:, some]) & self._left
        bits &= self._lot.whole[self._lot.rows[some]]
        found: Floats = self._model.forest.sums(bits) + self._reference[some]
        return found

    def library_log_s(self) -> float:
        """Log of predicted seconds of the library; infinite where there is none."""
        model = self._model
        if not len(model.library.leaves):
            return math.inf
        row = library_features(self._problem, self._device, model.limits, self._shared)
        return float(model.library.sums(model.library.bits_of_one(0, row))[0]) + self._roofline


@dataclass(frozen=True)
class _Known:
    """The configs that an answer is chosen among.

    Attributes:
        numbers: Of those of the shortlist.
        made: Those that are not of it, which follow.
        behind: How far behind the fastest each is expected to be by what was timed near by.
        gain: log(library / config) near by.
    """

    numbers: Numbers
    made: Adapted
    behind: Floats
    gain: Floats


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
        self.model, self._device, self._kernels = model, device or model.device, kernels
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
        there, known = self._known(problem)
        fastest = self._fastest(there, known, 1)
        found = self._candidate(known, *fastest[0]) if fastest else None
        library = there.library_log_s()
        kernel = math.log(found.time_s) if found else math.inf
        # A kernel is faster than the library if trees and what was timed near by both say so.
        gain = min(library - kernel, float(known.gain[fastest[0][0]])) if fastest else -math.inf
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
        there, known = self._known(problem)
        return [self._candidate(known, *each) for each in self._fastest(there, known, count)]

    def _known(self, problem: Problem) -> tuple[There, _Known]:
        """What to choose among: legal configs that were good near by, or are like these, else all."""
        model = self.model
        evidence, count = model.evidence, len(model.configs)
        lot = model.lot(problem, self._device)
        if evidence is None:
            behind, gains = np.zeros(count), np.full(count, np.inf)
        else:
            kind = list(model.traits).index((problem.dtype, problem.layout))
            behind, gains = evidence.around(problem, kind, count)
            if not np.isfinite(evidence.library).any():  # there is no library
                gains = np.full(count, np.inf)
        good = self._choices.legal(problem, self._device, np.isfinite(behind))
        made = self._adapted(problem, behind, good)
        if not len(good) and not made.configs:
            good, behind = self._choices.legal(problem, self._device), np.zeros(count)
        some = lot.some(good)
        if made.configs:
            some = some.and_(model.lot_of(made, self._kernels, problem, self._device))
        known = _Known(
            good, made, np.append(behind[good], behind[made.origins] + CHANGED),
            np.append(gains[good], gains[made.origins]),
        )  # fmt: skip
        return There(model, problem, self._device, some), known

    def _adapted(self, problem: Problem, behind: Floats, good: Numbers) -> Adapted:
        """Good configs that are not legal here, made legal, of the kernels that have few good ones."""
        if self.model.evidence is None or self.model.columns is None:
            return Adapted([], np.zeros(0, np.int64))
        legal = np.zeros(len(behind), bool)
        legal[good] = True
        return adapted(
            problem, self._device, self._kernels, self.model.configs, behind, (self._is_point, legal)
        )

    @cached_property
    def _is_point(self) -> Flags:
        return np.array([self._choices.is_point(at) for at in range(len(self.model.configs))], bool)

    def _fastest(self, there: There, known: _Known, count: int) -> list[tuple[int, float]]:
        """Place among the known and log of seconds of the most promising configs, the best first."""
        coarse, most = there.coarse() + WEIGHT * known.behind, max(SCREENED, count)
        screened = np.argpartition(coarse, most)[:most] if most < len(coarse) else np.arange(len(coarse))
        log_s = there.log_s(screened)
        best = np.argsort(log_s + WEIGHT * known.behind[screened], kind="stable")[:count]
        return [(int(screened[at]), float(log_s[at])) for at in best]

    def _candidate(self, known: _Known, at: int, log_s: float) -> Candidate:
        made = at - len(known.numbers)
        named = self._choices.named(int(known.numbers[at])) if made < 0 else known.made.configs[made]
        return Candidate(*named, math.exp(log_s))
