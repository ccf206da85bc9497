"""Predictions for one kernel's untried configs: their times, and whether they will fail."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np

from tuner.search.strategy import Observations
from tuner.search.surrogate import Floats, Hyperparameters, Posterior, Rows
from tuner.search.transfer_prior import TransferPrior

#: Number of configs with a time before the model predicts.
FEWEST = 4
#: Spaces up to this size are evaluated completely.
WHOLE = 8000
#: In larger spaces the candidates are a random sample of this size, all neighbours of the best configs, and the
#: legal ones among this many random combinations around each of these that differ in up to this many
#: parameters.
RANDOM = 1500
BEST_ONES = 5
AROUND = 600
RADIUS = 3
#: Number of the fastest configs elsewhere that are evaluated, too.
FAMOUS = 1000
#: The hyperparameters are fitted anew whenever the number of known configs has grown by this factor.
REFIT_GROWTH = 1.15
#: A config is not worth a trial if the log of its probability to work is below this.
DOOMED = math.log(0.05)
#: Probability that a config that failed elsewhere works here.
FAILED_ELSEWHERE = 0.2
#: Largest number of configs for fitting the hyperparameters, and for conditioning the process.
MOST_FITTED = 200
MOST_CONDITIONED = 400
#: Variance of the threshold between what works (1) and what fails (-1).
THRESHOLD_VARIANCE = 0.1


class KernelModel:
    """A surrogate of one kernel, updated with requests and results.

    Attributes:
        candidates: Positions of evaluated configs; callers must skip requested ones among them.
    """

    def __init__(
        self, observations: Observations, rng: np.random.Generator, transfer_prior: TransferPrior | None = None
    ) -> None:
        """Begins to follow a kernel.

        Args:
            observations: Requests and results.
            rng: Source of chance.
            transfer_prior: Knowledge of the kernel from elsewhere.
        """
        self._observations = observations
        self._transfer_prior = transfer_prior
        self._slope = 0.0
        self._expected: dict[int, float] = {}
        self._expected_of_candidates: Floats = np.zeros(0)
        self._rng = rng
        self._hyper = Hyperparameters(observations.space)
        self._posterior: Posterior | None = None
        self._failures = Failures(observations)
        self._order: list[int] = []
        self._waiting: set[int] = set()
        self._fit_at = FEWEST
        self._middle, self._width = 0.0, 1.0
        self._centre, self._followed = -1, 0
        self.candidates: Rows = np.zeros(0, np.intp)

    @property
    def ready(self) -> bool:
        """True if enough is known to predict."""
        return len(self._observations.known) >= FEWEST

    def update(self) -> None:
        """Processes requests and results since the last update; refits if enough of them are new."""
        known = len(self._observations.known)
        if self._posterior is None or known >= self._fit_at:
            self._fit_at = math.ceil(known * REFIT_GROWTH) + 1
            self._refit()
            return
        if self._fastest() != self._centre and len(self._observations.space) > WHOLE:
            self._look_around()
            return
        for row in sorted(self._waiting):
            target = self._target(row)
            if not math.isnan(target):
                self._waiting.discard(row)
                self._posterior.tell(row, target)
        fresh = list(islice(self._observations.requested, self._followed, None))
        self._followed += len(fresh)
        self._follow(fresh)

    def predicted(self) -> tuple[Floats, Floats]:
        """Expected log time of each candidate, and its standard deviation."""
        assert self._posterior is not None
        mean = self._middle + self._width * self._posterior.mean + self._expected_of_candidates
        return mean, self._width * np.sqrt(self._posterior.variance)

    def leaderboard(self) -> dict[int, float]:
        """Expected log time of each contender: observations with their noise removed."""
        assert self._posterior is not None
        means = self._middle + self._width * self._posterior.mean_of_requested()
        contenders = self._observations.contenders
        return {
            row: float(mean) + self._expectation(row)
            for row, mean in zip(self._order, means, strict=True)
            if row in contenders
        }

    def log_chance(self) -> Floats:
        """Log of the probability that a candidate does not fail, from results here and elsewhere."""
        chance = np.zeros(len(self.candidates))
        if self._transfer_prior and self._transfer_prior.failed:
            chance[np.isin(self.candidates, list(self._transfer_prior.failed))] = math.log(FAILED_ELSEWHERE)
        if self._observations.failed:
            chance = chance + self._failures.log_chance(self.candidates)
        return chance

    def doomed(self) -> set[int]:
        """Candidates that are almost certain to fail."""
        return set(self.candidates[self.log_chance() < DOOMED].tolist())

    def _target(self, row: int) -> float:
        """Standardised value of a config; NaN if it has none yet."""
        value = self._observations.log_times.get(row, self._observations.log_pruned.get(row, math.nan))
        return (value - self._expectation(row) - self._middle) / self._width

    def _expectation(self, row: int) -> float:
        """The transfer prior's log time of a config, up to a constant."""
        if not self._transfer_prior:
            return 0.0
        if row not in self._expected:
            self._expected[row] = self._slope * float(self._transfer_prior.at(np.array([row]))[0])
        return self._expected[row]

    def _follow(self, rows: list[int]) -> None:
        assert self._posterior is not None
        targets = [self._target(row) for row in rows]
        self._posterior.add(np.array(rows, dtype=np.intp), np.array(targets, dtype=float))
        self._order += rows
        self._waiting |= {row for row, target in zip(rows, targets, strict=True) if math.isnan(target)}

    def _refit(self) -> None:
        known = self._observations.known
        rows = self._representative(list(known), MOST_FITTED)
        values = np.array([known[row] for row in rows])
        if self._transfer_prior:
            elsewhere = self._transfer_prior.at(np.array(rows))
            self._slope = self._transfer_prior.slope(values, elsewhere)
            self._expected = {}
            values = values - self._slope * elsewhere
        self._middle, self._width = float(values.mean()), float(values.std()) or 1.0
        self._hyper.fit(self._observations.space.codes[rows], (values - self._middle) / self._width)
        self._look_around()

    def _look_around(self) -> None:
        """Chooses new candidates around the currently fastest configs, and conditions on all observations."""
        known, requested = self._observations.known, self._observations.requested
        self._centre = self._fastest()
        self.candidates = self._nearby()
        self._expected_of_candidates = (
            self._slope * self._transfer_prior.at(self.candidates)
            if self._transfer_prior
            else np.zeros(len(self.candidates))
        )
        self._posterior = Posterior(self._observations.space, self._hyper, self.candidates, 0.0)
        self._order, self._waiting, self._followed = [], set(), len(requested)
        kept = set(self._representative(list(known), MOST_CONDITIONED))
        others = [row for row in requested if row not in known]
        self._follow([row for row in requested if row in kept] + others[-MOST_FITTED:])

    def _representative(self, rows: list[int], most: int) -> list[int]:
        """Returns at most this many of the known configs: half of them the fastest, the rest random."""
        if len(rows) <= most:
            return rows
        known = self._observations.known
        ranked = sorted(rows, key=lambda row: (known[row], row))
        rest = self._rng.choice(np.array(ranked[most // 2 :]), most - most // 2, replace=False)
        return ranked[: most // 2] + [int(row) for row in rest]

    def _fastest(self) -> int:
        contenders = self._observations.contenders
        return min(contenders, key=lambda row: (contenders[row], row))

    def _nearby(self) -> Rows:
        """Returns the whole space if it is small; else a random sample, and configs near the fastest."""
        space, prior = self._observations.space, self._transfer_prior
        size = len(space)
        if size <= WHOLE:
            return np.arange(size)
        known = self._observations.known
        fastest = sorted(known, key=lambda row: known[row])[:BEST_ONES]
        near = [space.neighbours(row) for row in fastest]
        near += [space.around(row, RADIUS, AROUND, self._rng) for row in fastest]
        famous = [np.array(prior.fastest(FAMOUS), dtype=np.intp)] if prior else []
        return np.unique(np.concatenate([self._rng.integers(0, size, RANDOM), *near, *famous]))


class Failures:
    """A separate Gaussian process over the outcomes: 1 if a config worked, -1 if it failed; without times."""

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

        space, in_flight = self._observations.space, self._observations.in_flight
        finished = [row for row in self._observations.requested if row not in in_flight]
        # Expected outcome of an unknown config, from the study's share of failures.
        level = 1 - 2 * (len(self._observations.failed) + 1) / (len(finished) + 2)
        if len(finished) >= self._fit_at:
            self._fit_at = math.ceil(len(finished) * REFIT_GROWTH) + 1
            latest = finished[-MOST_FITTED:]
            latest_level = 1 - 2 * (len(self._observations.failed) + 1) / (len(latest) + 2)
            self._hyper.fit(space.codes[np.array(latest, np.intp)], self._labels(latest) - latest_level)
            self._posterior = None
        if self._posterior is None or self._posterior.candidates is not candidates:
            self._posterior = Posterior(space, self._hyper, candidates, level)
            self._followed = set(finished[:-MOST_CONDITIONED])
        fresh = [row for row in finished if row not in self._followed]
        self._posterior.add(np.array(fresh, np.intp), self._labels(fresh))
        self._followed.update(fresh)
        log_chances: Floats = log_ndtr(
            self._posterior.mean / np.sqrt(self._posterior.variance + THRESHOLD_VARIANCE)
        )
        return log_chances

    def _labels(self, rows: list[int]) -> Floats:
        return np.array([-1.0 if row in self._observations.failed else 1.0 for row in rows])
