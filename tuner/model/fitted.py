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
from tuner.model.evidence import BESIDE_NETWORKS, WEIGHT, Adapted, Evidence
from tuner.model.forest import Bits, Forest
from tuner.model.network import Network
from tuner.model.physics import (
    TRAIT_FEATURES,
    Limits,
    Traits,
    config_features,
    fixed_features,
    library_features,
    problem_features,
    traits,
)
from tuner.model.table import Columns, parameter_table
from tuner.results.distance import Floats, Numbers

#: Trees that tell which configs are worth the others.
SCREEN_TREES = 60


@dataclass(frozen=True)
class Lot:
    """Configs that a model is asked about.

    Attributes:
        traits: Their traits.
        screen: What their own features leave of the first trees, shape (configs, trees).
        whole: The same of all trees, for these and other configs.
        features: Features of their own, of the same configs, shape (features, configs).
        rows: Theirs among those.
    """

    traits: Traits
    screen: Bits
    whole: Bits
    features: Floats
    rows: Numbers

    @classmethod
    def of(cls, traits: Traits, whole: Bits, features: Floats) -> Lot:
        """All that `whole` and `features` are of."""
        screen = np.ascontiguousarray(whole[:, :SCREEN_TREES])
        return cls(traits, screen, whole, features, np.arange(len(whole)))

    @classmethod
    def with_features(cls, forest: Forest, parameters: Floats, traits: Traits, device: DeviceInfo) -> Lot:
        """Configs with some parameters, as numbers, and traits."""
        features = fixed_features(parameters, device, traits)
        return cls.of(traits, forest.bits(0, features), features)

    def some(self, numbers: Numbers) -> Lot:
        """Those with some numbers."""
        return replace(
            self, traits=self.traits.some(numbers), screen=self.screen[numbers], rows=self.rows[numbers]
        )

    def and_(self, more: Lot) -> Lot:
        """These, and more of them."""
        values = np.hstack([self.traits.values, more.traits.values])
        whole = np.vstack([self.whole[self.rows], more.whole[more.rows]])
        features = np.hstack([self.features[:, self.rows], more.features[:, more.rows]])
        return Lot.of(replace(self.traits, values=values), whole, features)


def lot_of(
    made: Adapted,
    kernels: Mapping[str, Kernel],
    problem: Problem,
    device: DeviceInfo,
    known: tuple[Forest, Columns, Traits],
) -> Lot:
    """Configs that are not of a model's shortlist; registers, which nobody counted, are those of their origins.

    Args:
        made: The configs.
        kernels: By name.
        problem: What they compute.
        device: Where.
        known: Of the model: its trees, what its numbers stand for, and its shortlist's traits.
    """
    forest, columns, of_shortlist = known
    of = traits(kernels, made.configs, problem, of_shortlist.row(4)[made.origins])
    return Lot.with_features(forest, parameter_table(kernels, made.configs, columns), of, device)


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
        network: Says the same as the forest; None for models of earlier versions.
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
    network: Network | None = None
    _lots: dict[tuple[str, str, DeviceInfo], Lot] = field(default_factory=dict, compare=False, repr=False)

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
            self._lots[at] = Lot.with_features(self.forest, self.parameters, of, device)
        return self._lots[at]

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
        self._mixed = mixed
        first = len(model.parameters) + TRAIT_FEATURES
        after = first + len(self._shared)
        # A model of an earlier version knows fewer.
        self._places = model.forest.places(after, mixed[: model.forest.features - after])
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
        found = self._model.forest.sums(bits)
        if self._model.network is not None:
            found = self._model.network.joined(found, self._features(some))
        return found + self._reference[some]

    def _features(self, some: slice | Numbers) -> Floats:
        """Features of some of the configs, shape (configs, features)."""
        own = self._lot.features[:, self._lot.rows[some]]
        shared = np.broadcast_to(self._shared[:, None], (len(self._shared), own.shape[1]))
        return np.vstack([own, shared, self._mixed[:, some]]).T

    def library_log_s(self) -> float:
        """Log of predicted seconds of the library; infinite where there is none."""
        model = self._model
        if not len(model.library.leaves):
            return math.inf
        row = library_features(self._problem, self._device, model.limits, self._shared)
        return float(model.library.sums(model.library.bits_of_one(0, row))[0]) + self._roofline
