"""What a study believes of one kernel's untried configs."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.search.history import Tried
from tuner.search.surrogate import Hyperparameters, Posterior

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

#: Configs with a time before anything is believed.
FEWEST = 4
#: Untried configs that are weighed: a random sample of this size and all neighbours of the best ones.
CANDIDATES = 4000
BEST_ONES = 5
#: The hyperparameters are fitted anew when this many times the configs are known.
REFIT_GROWTH = 1.15
#: Configs that hyperparameters are fitted to, and that the process is conditioned on, at most.
MOST_FITTED = 200
MOST_CONDITIONED = 400
#: Weight of the study's share of failures, in configs, against the outcomes of similar configs.
FAILURE_PRIOR = 1.0


class Beliefs:
    """A surrogate of one kernel, kept current with what is asked and told.

    Attributes:
        candidates: Positions of configs that are weighed; asked ones among them are to be passed over.
    """

    def __init__(self, tried: Tried, rng: np.random.Generator) -> None:
        """Begins to follow a kernel."""
        self._tried = tried
        self._rng = rng
        self._hyper = Hyperparameters(tried.space)
        self._posterior: Posterior | None = None
        self._order: list[int] = []
        self._waiting: set[int] = set()
        self._fit_at = FEWEST
        self._middle, self._width = 0.0, 1.0
        self.candidates: Rows = np.zeros(0, np.intp)

    @property
    def ready(self) -> bool:
        """True where enough is known to believe anything."""
        return len(self._tried.log_times) >= FEWEST

    def update(self) -> None:
        """Takes in what was asked and told since the last time; refits when enough is new."""
        known = len(self._tried.log_times) + len(self._tried.log_bounds)
        if self._posterior is None or known >= self._fit_at:
            self._fit_at = math.ceil(known * REFIT_GROWTH) + 1
            self._refit()
            return
        for row in sorted(self._waiting):
            target, is_bound = self._target(row)
            if not math.isnan(target):
                self._waiting.discard(row)
                self._posterior.tell(row, target, is_bound)
        followed = set(self._order)
        self._follow([row for row in self._tried.asked if row not in followed])

    def predicted(self) -> tuple[Floats, Floats]:
        """Expected log time of each candidate, and its standard deviation."""
        assert self._posterior is not None
        mean = self._middle + self._width * self._posterior.mean
        return mean, self._width * np.sqrt(self._posterior.variance)

    def best(self) -> float:
        """Lowest expected log time of what was measured: the best, without its luck."""
        assert self._posterior is not None
        means = self._middle + self._width * self._posterior.mean_of_asked()
        measured = [at for at, row in enumerate(self._order) if row in self._tried.log_times]
        return float(means[measured].min())

    def log_chance(self) -> Floats:
        """Log of the chance that a candidate does not fail, from the outcomes of similar configs."""
        assert self._posterior is not None
        failed = len(self._tried.failed)
        if not failed:
            return np.zeros(len(self.candidates))
        told = len(self._tried.log_times) + len(self._tried.log_bounds)
        share = (told + 1) / (told + failed + 2)
        ended = np.array([row not in self._waiting or row in self._tried.failed for row in self._order])
        worked = ended & np.array([row not in self._tried.failed for row in self._order])
        similarity = self._posterior.similarity
        good = worked.astype(np.float32) @ similarity + FAILURE_PRIOR * share
        chance: Floats = np.log(good / (ended.astype(np.float32) @ similarity + FAILURE_PRIOR))
        return chance

    def _target(self, row: int) -> tuple[float, bool]:
        if row in self._tried.log_times:
            return (self._tried.log_times[row] - self._middle) / self._width, False
        if row in self._tried.log_bounds:
            return (self._tried.log_bounds[row] - self._middle) / self._width, True
        return math.nan, False

    def _follow(self, rows: list[int]) -> None:
        assert self._posterior is not None
        targets = [self._target(row) for row in rows]
        self._posterior.add(
            np.array(rows, dtype=np.intp),
            np.array([target for target, _ in targets]),
            np.array([is_bound for _, is_bound in targets], dtype=bool),
        )
        self._order += rows
        self._waiting |= {row for row, (target, _) in zip(rows, targets, strict=True) if math.isnan(target)}

    def _refit(self) -> None:
        known = self._tried.log_times | self._tried.log_bounds
        rows = self._representative(list(known), MOST_FITTED)
        values = np.array([known[row] for row in rows])
        self._middle, self._width = float(values.mean()), float(values.std()) or 1.0
        self._hyper.fit(self._tried.space.codes[rows], (values - self._middle) / self._width)
        self.candidates = self._weighed()
        self._posterior = Posterior(self._tried.space, self._hyper, self.candidates, 0.0)
        self._order, self._waiting = [], set()
        kept = set(self._representative(list(known), MOST_CONDITIONED))
        others = [row for row in self._tried.asked if row not in known]
        self._follow([row for row in self._tried.asked if row in kept] + others[-MOST_FITTED:])

    def _representative(self, rows: list[int], most: int) -> list[int]:
        """At most so many of the known configs: the fastest half of that, and a random rest."""
        if len(rows) <= most:
            return rows
        known = self._tried.log_times | self._tried.log_bounds
        ranked = sorted(rows, key=lambda row: (known[row], row))
        rest = self._rng.choice(np.array(ranked[most // 2 :]), most - most // 2, replace=False)
        return ranked[: most // 2] + [int(row) for row in rest]

    def _weighed(self) -> Rows:
        """A random sample of the space, and all neighbours of the fastest configs."""
        space = self._tried.space
        size = len(space)
        if size <= CANDIDATES:
            return np.arange(size)
        fastest = sorted(self._tried.log_times, key=lambda row: self._tried.log_times[row])[:BEST_ONES]
        near = [space.neighbours(row) for row in fastest]
        return np.unique(np.concatenate([self._rng.integers(0, size, CANDIDATES), *near]))
