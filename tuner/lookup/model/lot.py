"""Configs that a model is asked about, with what their own features leave of its trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.lookup.features import Floats, Numbers
from tuner.lookup.model.adapted import Adapted
from tuner.lookup.model.forest import Bits, Forest
from tuner.lookup.model.physics import Traits, fixed_features, traits
from tuner.lookup.model.table import Columns, parameter_table

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
