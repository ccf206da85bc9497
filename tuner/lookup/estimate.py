"""What is expected of configs at a place: how much slower than the best, how surely, and what that loses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tuner.lookup.features import Floats

_ERFC = np.frompyfunc(math.erfc, 1, 1)


def _normal(values: Floats) -> Floats:
    """Distribution function of the standard normal distribution."""
    found: Floats = 0.5 * np.asarray(_ERFC(-values / math.sqrt(2.0)), float)
    return found


def likely_loss(slower: Floats, variance: Floats) -> Floats:
    """Fraction of speed that is lost on average by what is slower than the best by an uncertain factor.

    Nothing is faster than the best, so that an estimate below it loses nothing; an uncertain one may turn out
    to be far slower, and then loses no more than all.

    Args:
        slower: Expected log of time over the best.
        variance: Of that.
    """
    spread = np.sqrt(variance) + 1e-9
    worse = _normal(slower / spread)
    share = np.exp(variance / 2 - slower) * _normal((slower - variance) / spread)
    found: Floats = np.clip(worse - share, 0.0, 1.0)
    return found


@dataclass(frozen=True)
class Estimate:
    """What is expected at a place, relative to the best config there.

    Attributes:
        slower: Per column: log of time over the best, its whole blocks left aside; infinite where nothing is
            known of it elsewhere.
        variance: Of that.
        costs: Per column: log of time that its whole blocks cost at the place.
        library: Fraction of speed that the library is expected to lose; NaN where no place knows it.
        weights: Per place of the matrix: how much it counts, 0 for those that were left out.
    """

    slower: Floats
    variance: Floats
    costs: Floats
    library: float
    weights: Floats

    @property
    def order(self) -> Floats:
        """Per column: the loss that is expected, whole blocks included; what to rank by."""
        return likely_loss(self.slower + self.costs, self.variance)

    def loss(self, more: float = 0.0) -> Floats:
        """Per column: the loss that is expected, whole blocks left aside.

        Args:
            more: Log of time that is added to each.
        """
        return likely_loss(self.slower + more, self.variance)
