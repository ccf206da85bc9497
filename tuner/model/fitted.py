"""A fitted model: times of a shortlist of configs, and of the library, at any problem."""

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
from tuner.model.calibrate import Calibration
from tuner.model.evidence import BESIDE_NETWORKS, WEIGHT, AdaptedConfigs, Evidence
from tuner.model.forest import Bits, Forest
from tuner.model.network import Network
from tuner.model.physics import (
    TRAIT_FEATURES,
    DeviceRates,
    Traits,
    config_features,
    fixed_features,
    library_features,
    problem_features,
    traits,
)
from tuner.model.table import ParameterOrder, parameter_table
from tuner.results.distance import Floats, Numbers

#: Trees that tell which configs are worth the others.
SCREEN_TREES = 60


@dataclass(frozen=True)
class Lot:
    """Configs that a model is asked about.

    Attributes:
        traits: Their traits.
        bits: What their own features leave of all trees, shape (configs, trees).
        features: Features of their own, shape (features, configs).
    """

    traits: Traits
    bits: Bits
    features: Floats

    @classmethod
    def of(cls, forest: Forest, parameters: Floats, traits: Traits, device: DeviceInfo) -> Lot:
        """Configs with some parameters, as numbers, and traits."""
        features = fixed_features(parameters, device, traits)
        return cls(traits, forest.bits(0, features), features)

    def some(self, numbers: Numbers) -> Lot:
        """Those with some numbers."""
        return Lot(self.traits.some(numbers), self.bits[numbers], self.features[:, numbers])

    def and_(self, more: Lot) -> Lot:
        """These, and more of them."""
        values = np.hstack([self.traits.values, more.traits.values])
        return Lot(
            replace(self.traits, values=values),
            np.vstack([self.bits, more.bits]),
            np.hstack([self.features, more.features]),
        )


@dataclass(frozen=True, eq=False)
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
        evidence: How configs stood at the surveyed problems.
        network: Says the same as the forest; None for a model of few timings.
        kept: What was worked out from it, by what it is of.
    """

    operation: str
    device: DeviceInfo
    limits: DeviceRates
    configs: Sequence[tuple[str, Config]]
    parameters: Floats
    traits: Mapping[tuple[str, str], Traits]
    forest: Forest
    library: Forest
    calibration: Calibration
    evidence: Evidence
    provenance: Mapping[str, Any] = field(default_factory=dict)
    network: Network | None = None
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def knows(self, problem: Problem) -> bool:
        """Whether such problems were surveyed: dtype and layout; surveys have full precision, no epilogues."""
        named = problem.operation.name, problem.precision, problem.epilogue
        return named == (self.operation, IEEE, "") and (problem.dtype, problem.layout) in self.traits

    @property
    def weight(self) -> float:
        """Of how a config stood near by, beside the time that is predicted."""
        return WEIGHT if self.network is None else BESIDE_NETWORKS

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
        here = ModelAt(self, problem, device or self.device, self.lot(problem, device or self.device))
        return here.log_s(), here.library_log_s()

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
        if at not in self.kept:
            self.kept[at] = Lot.of(self.forest, self.parameters, self.traits[at[:2]], device)
        found: Lot = self.kept[at]
        return found

    def made(
        self, configs: AdaptedConfigs, kernels: Mapping[str, Kernel], problem: Problem, device: DeviceInfo
    ) -> Lot:
        """Configs that are not of the shortlist; registers, which are not known, are those of their origins."""
        assert self.columns is not None, "asked only of models whose shortlist tells its columns"
        registers = self.traits[problem.dtype, problem.layout].row(4)[configs.origins]
        of = traits(kernels, configs.configs, problem, registers)
        return Lot.of(self.forest, parameter_table(kernels, configs.configs, self.columns), of, device)

    @cached_property
    def columns(self) -> ParameterOrder | None:
        """What the numbers of parameters stand for; None where the shortlist does not tell."""
        found = ParameterOrder.of(self.configs)
        places = [found.kernels.index(kernel) for kernel, _ in self.configs]
        told = len(self.parameters) == 1 + len(found.parameters) and np.array_equal(self.parameters[0], places)
        return found if told else None


class ModelAt:
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
        self._mixed = mixed
        first = len(model.parameters) + TRAIT_FEATURES
        after = first + len(self._shared)
        # A model of an earlier version knows fewer.
        self._places = model.forest.places(after, mixed[: model.forest.features - after])
        self._left = model.forest.bits_of_one(first, self._shared)

    def coarse(self) -> Floats:
        """Logs of seconds of the configs by the first trees."""
        screen = self._model.screen
        bits = screen.bits_at(self._places) & self._left[:, :SCREEN_TREES] & self._lot.bits[:, :SCREEN_TREES]
        found: Floats = screen.sums(bits) + self._reference
        return found

    def log_s(self, places: Numbers | slice = slice(None)) -> Floats:
        """Logs of predicted seconds of the configs, or of those at some places among them."""
        model = self._model
        bits = model.forest.bits_at(self._places[:, places]) & self._left & self._lot.bits[places]
        found = model.forest.sums(bits)
        if model.network is not None:
            own = self._lot.features[:, places]
            shared = np.broadcast_to(self._shared[:, None], (len(self._shared), own.shape[1]))
            found = model.network.joined(found, np.vstack([own, shared, self._mixed[:, places]]).T)
        return found + self._reference[places]

    def library_log_s(self) -> float:
        """Log of predicted seconds of the library; infinite where there is none."""
        model = self._model
        if not len(model.library.leaves):
            return math.inf
        row = library_features(self._problem, self._device, model.limits, self._shared)
        return float(model.library.sums(model.library.bits_of_one(0, row))[0]) + self._roofline
