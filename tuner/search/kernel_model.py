"""What is predicted of one kernel's untried configs: their times, and whether they will fail.

Observations of the kernel on another device, or at the nearest shape, are prior knowledge.
"""

import math
from collections.abc import Callable, Collection, Iterable
from itertools import islice

import numpy as np

from tuner.declare.space import Space
from tuner.search.strategy import Observation, Observations
from tuner.search.surrogate import Floats, Hyperparameters, Posterior, Rows

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
#: Random configs among which the design is chosen.
POOL = 600
#: Largest number of configs to fit the surrogate for configs not measured elsewhere.
MOST_FITTED_ELSEWHERE = 150
#: Normal prior of the slope: log times elsewhere carry over roughly one to one.
SLOPE = (1.0, 0.3)
#: A study begins from this fastest share of the configs known elsewhere.
GOOD_SHARE, GOOD_AT_LEAST = 0.1, 30


def spread(space: Space, count: int, taken: Collection[int], rng: np.random.Generator) -> list[int]:
    """Returns positions of legal configs, each as far as possible from the earlier and the taken ones.

    Args:
        space: The legal configs.
        count: Number of configs.
        taken: Positions that were requested before.
        rng: Random number generator.
    """
    size = len(space)
    pool = rng.choice(size, min(POOL, size), replace=False)
    pool = np.array([row for row in pool if int(row) not in taken], dtype=np.intp)
    points = unit_points(space, pool)
    nearest = np.full(len(pool), np.inf)
    for point in unit_points(space, np.array(sorted(taken), dtype=np.intp)):
        nearest = np.minimum(nearest, np.abs(points - point).sum(axis=1))
    chosen = _far_apart(points, count, nearest, lambda: int(rng.integers(len(pool))))
    return [int(pool[at]) for at in chosen]


def _far_apart(points: Floats, count: int, nearest: Floats, first: Callable[[], int]) -> list[int]:
    """Chooses points, each as far as possible from those chosen before.

    Args:
        points: Shape (points, dimensions).
        count: Number of points.
        nearest: Distance of each point to the nearest that is taken; infinite if none is.
        first: Chooses the first point if none is taken.
    """
    chosen: list[int] = []
    while len(chosen) < min(count, len(points)):
        at = int(np.argmax(nearest)) if np.isfinite(nearest[0]) else first()
        chosen.append(at)
        nearest = np.minimum(nearest, np.abs(points - points[at]).sum(axis=1))
    return chosen


def unit_points(space: Space, rows: Rows) -> Floats:
    """Returns configs as points: ordered parameters between 0 and 1, the others one-hot with halves.

    The distance of two points is the sum of their absolute differences.
    """
    codes = space.codes[rows]
    parts = []
    for column, (parameter, positions) in enumerate(zip(space.parameters, space.positions, strict=True)):
        if len(parameter.values) < 2:
            continue
        if positions is None:
            parts.append(np.eye(len(parameter.values))[codes[:, column]] / 2)
        else:
            parts.append(positions[codes[:, column]][:, None])
    return np.concatenate(parts or [np.zeros((len(rows), 0))], axis=1)


class TransferPrior:
    """Log times elsewhere, at any position of a space.

    Attributes:
        failed: Positions that failed elsewhere.
    """

    def __init__(self, space: Space, past: Iterable[Observation], rng: np.random.Generator) -> None:
        """Reads the results of legal configs elsewhere."""
        self._space, self._rng = space, rng
        self._known: dict[int, float] = {}
        self.failed: set[int] = set()
        results = list(past)
        rows = space.find([result.config for result in results]).tolist()
        for result, row in zip(results, rows, strict=True):
            if row >= 0 and result.outcome.failed:
                self.failed.add(row)
            elif row >= 0 and result.time_s is not None and result.time_s > 0:
                self._known[row] = math.log(result.time_s)
        values = list(self._known.values()) or [0.0]
        self._middle, self._width = float(np.mean(values)), float(np.std(values)) or 1.0
        # Log times minus the middle; predictions are kept as they are made.
        self._at = np.full(len(space), np.nan)
        self._at[list(self._known)] = np.array(list(self._known.values())) - self._middle
        self._hyper: Hyperparameters | None = None

    def __bool__(self) -> bool:
        return len(self._known) > 1

    def fastest(self, count: int) -> list[int]:
        """Positions of the fastest configs elsewhere."""
        return sorted(self._known, key=lambda row: (self._known[row], row))[:count]

    def starts(self, count: int) -> list[int]:
        """Returns initial configs: the fastest, then good ones far apart, because the best may differ here."""
        good = self.fastest(max(GOOD_AT_LEAST, math.ceil(GOOD_SHARE * len(self._known))))
        points = unit_points(self._space, np.array(good, dtype=np.intp))
        return [good[at] for at in _far_apart(points, count, np.full(len(good), np.inf), lambda: 0)]

    def at(self, rows: Rows) -> Floats:
        """Log time elsewhere of each position, minus the mean; predicted if it was not measured."""
        if len(self._at) < len(self._space):  # a sampled space grows
            self._at = np.append(self._at, np.full(len(self._space) - len(self._at), np.nan))
        unknown = rows[np.isnan(self._at[rows])]
        if len(unknown):
            self._at[unknown] = self._predicted(unknown)
        return self._at[rows]

    def _predicted(self, rows: Rows) -> Floats:
        known = np.array(list(self._known))
        if self._hyper is None:
            self._hyper = Hyperparameters(self._space)
            some = self._rng.permutation(known)[:MOST_FITTED_ELSEWHERE]
            self._hyper.fit(self._space.codes[some], self._at[some] / self._width)
            self._conditioned = self._rng.permutation(known)[:MOST_CONDITIONED]
        posterior = Posterior(self._space, self._hyper, rows, 0.0)
        posterior.add(self._conditioned, self._at[self._conditioned] / self._width)
        return self._width * posterior.mean

    def slope(self, here: Floats, elsewhere: Floats) -> float:
        """Estimates how closely log times here follow those elsewhere, from configs measured in both places.

        Args:
            here: Log times, up to a constant.
            elsewhere: `at` of the same configs.
        """
        x, y = elsewhere - elsewhere.mean(), here - here.mean()
        precision = (float(here.std()) / SLOPE[1]) ** 2
        return float((x @ y + precision * SLOPE[0]) / (x @ x + precision))


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
        self._prior = transfer_prior
        self._slope = 0.0
        self._rng = rng
        self._hyper = Hyperparameters(observations.space)
        self._posterior: Posterior | None = None
        self._failures = Failures(observations)
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
        self._posterior.tell(self._targets(self._posterior.in_flight))
        fresh = np.array(list(islice(self._observations.requested, self._followed, None)), np.intp)
        self._followed += len(fresh)
        self._posterior.add(fresh, self._targets(fresh))

    def predicted(self) -> tuple[Floats, Floats]:
        """Expected log time of each candidate, and its standard deviation."""
        assert self._posterior is not None
        mean = self._middle + self._width * self._posterior.mean + self._expected(self.candidates)
        return mean, self._width * np.sqrt(self._posterior.variance)

    def leaderboard(self) -> dict[int, float]:
        """Expected log time of each contender: observations with their noise removed."""
        assert self._posterior is not None
        rows, contenders = self._posterior.rows, self._observations.contenders
        means = self._middle + self._width * self._posterior.mean_of_rows() + self._expected(rows)
        return {row: mean for row, mean in zip(rows.tolist(), means.tolist(), strict=True) if row in contenders}

    def log_chance(self) -> Floats:
        """Log of the probability that a candidate does not fail, from results here and elsewhere."""
        chance = np.zeros(len(self.candidates))
        if self._prior and self._prior.failed:
            chance[np.isin(self.candidates, list(self._prior.failed))] = math.log(FAILED_ELSEWHERE)
        if self._observations.failed:
            chance = chance + self._failures.log_chance(self.candidates)
        return chance

    def doomed(self) -> set[int]:
        """Candidates that are almost certain to fail."""
        return set(self.candidates[self.log_chance() < DOOMED].tolist())

    def _targets(self, rows: Rows) -> Floats:
        """Standardised values of configs; NaN where there is none yet."""
        known = self._observations.known
        values = np.array([known.get(row, math.nan) for row in rows.tolist()], dtype=float)
        return (values - self._expected(rows) - self._middle) / self._width

    def _expected(self, rows: Rows) -> Floats:
        """The transfer prior's log times, up to a constant."""
        return self._slope * self._prior.at(rows) if self._prior else np.zeros(len(rows))

    def _refit(self) -> None:
        known = self._observations.known
        rows = self._representative(list(known), MOST_FITTED)
        values = np.array([known[row] for row in rows])
        if self._prior:
            elsewhere = self._prior.at(np.array(rows))
            self._slope = self._prior.slope(values, elsewhere)
            values = values - self._slope * elsewhere
        self._middle, self._width = float(values.mean()), float(values.std()) or 1.0
        self._hyper.fit(self._observations.space.codes[rows], (values - self._middle) / self._width)
        self._look_around()

    def _look_around(self) -> None:
        """Chooses new candidates around the currently fastest configs, and conditions on all observations."""
        known, requested = self._observations.known, self._observations.requested
        self._centre = self._fastest()
        self.candidates = self._nearby()
        self._posterior = Posterior(self._observations.space, self._hyper, self.candidates, 0.0)
        self._followed = len(requested)
        kept = set(self._representative(list(known), MOST_CONDITIONED))
        others = [row for row in requested if row not in known]
        rows = np.array([row for row in requested if row in kept] + others[-MOST_FITTED:], np.intp)
        self._posterior.add(rows, self._targets(rows))

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
        space, prior = self._observations.space, self._prior
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
        posterior = self._posterior
        log_chances: Floats = log_ndtr(posterior.mean / np.sqrt(posterior.variance + THRESHOLD_VARIANCE))
        return log_chances

    def _labels(self, rows: list[int]) -> Floats:
        return np.array([-1.0 if row in self._observations.failed else 1.0 for row in rows])
