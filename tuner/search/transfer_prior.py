"""Knowledge of the same kernel from elsewhere: from another device, or the nearest shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from tuner.declare.space import Space
from tuner.search.strategy import Observation
from tuner.search.surrogate import Floats, Hyperparameters, Posterior, Rows

#: Random configs among which the design is chosen.
POOL = 600
#: Largest numbers of configs to fit and condition the surrogate for configs not measured elsewhere.
MOST_FITTED = 150
MOST_CONDITIONED = 400
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


def unit_points(space: Space, rows: NDArray[np.intp]) -> NDArray[np.float64]:
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
        self._space = space
        self._known: dict[int, float] = {}
        self.failed: set[int] = set()
        results = list(past)
        rows = space.find([result.config for result in results]).tolist()
        for result, row in zip(results, rows, strict=True):
            if row < 0:
                continue
            if result.outcome.failed:
                self.failed.add(row)
            elif result.time_s is not None and result.time_s > 0:
                self._known[row] = math.log(result.time_s)
        self._rng = rng
        values = list(self._known.values()) or [0.0]
        self._middle, self._width = float(np.mean(values)), float(np.std(values)) or 1.0
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
        times = np.array([self._known.get(int(row), np.nan) for row in rows]) - self._middle
        unknown = np.flatnonzero(np.isnan(times))
        if len(unknown):
            times[unknown] = self._predicted(rows[unknown])
        return times

    def _predicted(self, rows: Rows) -> Floats:
        known = np.array(list(self._known))
        if self._hyper is None:
            self._hyper = Hyperparameters(self._space)
            some = self._rng.permutation(known)[:MOST_FITTED]
            self._hyper.fit(self._space.codes[some], self._standard(some))
            self._conditioned = self._rng.permutation(known)[:MOST_CONDITIONED]
        posterior = Posterior(self._space, self._hyper, rows, 0.0)
        posterior.add(self._conditioned, self._standard(self._conditioned))
        return self._width * posterior.mean

    def _standard(self, rows: Rows) -> Floats:
        return (np.array([self._known[int(row)] for row in rows]) - self._middle) / self._width

    def slope(self, here: Floats, elsewhere: Floats) -> float:
        """Estimates how closely log times here follow those elsewhere, from configs measured in both places.

        Args:
            here: Log times, up to a constant.
            elsewhere: `at` of the same configs.
        """
        x, y = elsewhere - elsewhere.mean(), here - here.mean()
        precision = (float(here.std()) / SLOPE[1]) ** 2
        return float((x @ y + precision * SLOPE[0]) / (x @ x + precision))
