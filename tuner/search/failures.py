"""Predicts which untried configs will fail, from earlier successes and failures, without times."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.search.strategy import Observations
from tuner.search.surrogate import Hyperparameters, Posterior

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

#: The hyperparameters are fitted anew whenever the number of outcomes has grown by this factor.
REFIT_GROWTH = 1.15
#: Largest number of outcomes used for fitting and for conditioning: the latest.
MOST_FITTED = 200
MOST_CONDITIONED = 400
#: Variance of the threshold between what works (1) and what fails (-1).
THRESHOLD_VARIANCE = 0.1


class Failures:
    """A separate Gaussian process over the outcomes: 1 if a config worked, -1 if it failed."""

    def __init__(self, observations: Observations) -> None:
        """Begins to follow a kernel."""
        self._observations = observations
        self._hyper = Hyperparameters(observations.space)
        self._posterior: Posterior | None = None
        self._followed: set[int] = set()
        self._fit_at = 0

    def log_chance(self, candidates: Rows) -> Floats:
        """Returns the log of the probability that each candidate works.

        Args:
            candidates: Positions; the same array as last time unless it changed.
        """
        from scipy.special import log_ndtr  # type: ignore[import-untyped]

        in_flight = self._observations.in_flight
        told = [row for row in self._observations.asked if row not in in_flight]
        if len(told) >= self._fit_at:
            self._fit_at = math.ceil(len(told) * REFIT_GROWTH) + 1
            self._fit(told[-MOST_FITTED:])
            self._posterior = None
        if self._posterior is None or self._posterior.candidates is not candidates:
            self._posterior = Posterior(self._observations.space, self._hyper, candidates, self._level(told))
            self._followed = set(told[:-MOST_CONDITIONED])
        fresh = [row for row in told if row not in self._followed]
        self._posterior.add(np.array(fresh, np.intp), self._labels(fresh))
        self._followed.update(fresh)
        spread = np.sqrt(self._posterior.variance + THRESHOLD_VARIANCE)

        found: Floats = log_ndtr(self._posterior.mean / spread)
        return found

    def _fit(self, told: list[int]) -> None:
        labels = self._labels(told)
        self._hyper.fit(self._observations.space.codes[np.array(told, np.intp)], labels - self._level(told))

    def _labels(self, rows: list[int]) -> Floats:
        return np.array([-1.0 if row in self._observations.failed else 1.0 for row in rows])

    def _level(self, told: list[int]) -> float:
        """Expected outcome of an unknown config, from the study's share of failures."""
        failed = len(self._observations.failed)
        return 1 - 2 * (failed + 1) / (len(told) + 2)
