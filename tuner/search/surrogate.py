"""A Gaussian process over a space that predicts the log time of untried configs.

The covariance of two configs is a product over parameters of ``(1 - r) + r * exp(-w * d**GAMMA)``, with d
the distance of the two values (0 to 1 by their order; 0 or 1 if they have none). Multiplied out, this is a sum
over all subsets of parameters of their joint effects: r is how much a parameter matters, and 1 - r lets the
others' effects carry over from one of its values to another. So an effect that holds everywhere (a wider load
is faster) is learnt from few configs, and a cliff at the meeting of several parameters still fits. r, w, the
scale and the noise are those of highest posterior density.

SciPy is imported where it is used: that takes a third of the time in which a study starts, and the first
trials do not need it.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tuner.declare.space import Space, Value

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

#: Exponent of the distance: between rough (1) and smooth (2).
GAMMA = 1.5
#: Normal priors of log w, logit r, log scale and log noise (over the variance of the log times).
PRIORS = {"w": (-0.5, 0.7), "r": (0.0, 1.5), "scale": (0.0, 1.0), "noise": (-6.0, 1.5)}
BOUNDS = {"w": (-4.0, 5.0), "r": (-6.0, 6.0), "scale": (-3.0, 4.0), "noise": (-11.0, 0.0)}
#: The prior expects products of parameters to matter less: their logit r is lower by this.
PAIR_R = -2.5
#: Optimiser steps in one fit; a fit starts from the result of the last one.
FIT_STEPS = 25
JITTER = 1e-7
#: Twos that divide a value, counted up to this; a warp is 2**5.
MOST_TWOS = 6
#: Levels into which the range of a product's log is divided.
PAIR_LEVELS = 24


class SpaceFeatures:
    """Features of a space's configs.

    Each parameter is a feature: the distance of two values is between 0 and 1 by their order, or 0 or 1 if they
    have none. A parameter of whole numbers that are not all powers of two has a second feature, how often 2
    divides the value: for hardware it matters whether 48, 56 or 64 threads are a whole number of warps. Each
    pair of ordered parameters has a feature for the product of their values, because threads, tiles and bytes
    are products.

    Attributes:
        tables: For each feature, the distances between its levels.
        is_pair: True for products.
    """

    def __init__(self, space: Space) -> None:
        self._lookups: list[tuple[tuple[int, ...], NDArray[np.intp]]] = []
        self.tables: list[Floats] = []
        self.is_pair: list[bool] = []
        logs: list[tuple[int, Floats]] = []
        for column, (parameter, positions) in enumerate(zip(space.parameters, space.positions, strict=True)):
            size = len(parameter.values)
            if size < 2:
                continue
            own = np.arange(size)
            if positions is None:
                self._add((column,), own, 1.0 - np.eye(size))
                continue
            self._add((column,), own, np.abs(positions[:, None] - positions[None]))
            values = np.array(parameter.values, dtype=float)
            if size > 2 and values.min() > 0:
                logs.append((column, np.log2(values)))
            whole = all(isinstance(value, int) for value in parameter.values)
            if parameter.scale == "linear" and size > 3 and whole:
                twos = np.array([_twos(value) for value in parameter.values], dtype=float)
                if np.ptp(twos) > 0:
                    twos /= np.ptp(twos)
                    self._add((column,), own, np.abs(twos[:, None] - twos[None]))
        for at, (first, one) in enumerate(logs):
            for second, other in logs[:at]:
                self._add_pair((first, second), one[:, None] + other[None])

    def _add_pair(self, columns: tuple[int, int], logs: Floats) -> None:
        scaled = (logs - logs.min()) / np.ptp(logs)
        levels, lookup = np.unique(np.round(scaled * PAIR_LEVELS) / PAIR_LEVELS, return_inverse=True)
        table = np.abs(levels[:, None] - levels[None])
        self._add(columns, lookup.reshape(logs.shape), table, is_pair=True)

    def _add(
        self, columns: tuple[int, ...], lookup: NDArray[np.intp], table: Floats, is_pair: bool = False
    ) -> None:
        self._lookups.append((columns, lookup))
        self.tables.append(table)
        self.is_pair.append(is_pair)

    def levels(self, codes: NDArray[Any]) -> Rows:
        """Level of each config in each feature: shape (configs, features)."""
        levels = [lookup[tuple(codes[:, column] for column in columns)] for columns, lookup in self._lookups]
        return np.stack(levels, axis=1) if levels else np.zeros((len(codes), 0), np.intp)


def _twos(value: Value) -> int:
    number = int(value)
    return min(MOST_TWOS, (number & -number).bit_length() - 1) if number else MOST_TWOS


def gathered(tables: Sequence[NDArray[Any]], levels: Rows) -> NDArray[Any]:
    """Each config's rows of all tables side by side.

    Args:
        tables: For each feature a matrix of its levels.
        levels: Shape (configs, features), as `SpaceFeatures.levels` gives it.
    """
    parts = [table[level] for table, level in zip(tables, levels.T, strict=True)]
    return np.concatenate(parts or [np.zeros((len(levels), 0))], axis=1)


class Hyperparameters:
    """Chooses w, r, scale and noise for observed configs."""

    def __init__(self, space: Space) -> None:
        self.features = SpaceFeatures(space)
        self._tables = [table**GAMMA for table in self.features.tables]
        count = len(self._tables)
        # Side by side in one array, because a fit computes all factors some hundred times.
        self._flat = np.concatenate([*(table.ravel() for table in self._tables), np.zeros(0)])
        self._sizes = [table.size for table in self._tables]
        self._ends = np.cumsum(self._sizes)[:-1]
        kinds = ["w"] * count + ["r"] * count + ["scale", "noise"]
        self._means = np.array([PRIORS[kind][0] for kind in kinds])
        self._precisions = np.array([PRIORS[kind][1] ** -2 for kind in kinds])
        self._bounds = [BOUNDS[kind] for kind in kinds]
        self._means[count : 2 * count] += np.where(self.features.is_pair, PAIR_R, 0.0)
        self.theta = self._means.copy()

    @property
    def scale(self) -> float:
        """Variance of a config's value."""
        return math.exp(self.theta[-2])

    @property
    def noise(self) -> float:
        """Variance of observations around it."""
        return math.exp(self.theta[-1]) + JITTER

    def log_tables(self) -> list[Floats]:
        """For each feature the log of its factor, by pair of values."""
        return self._factors(self.theta)[0]

    def _factors(self, theta: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """For each feature the log of its factor, and its derivatives by log w and logit r."""
        count, table = len(self._tables), self._flat
        w = np.repeat(np.exp(theta[:count]), self._sizes)
        r = np.repeat(1 / (1 + np.exp(-theta[count : 2 * count])), self._sizes)
        decay = np.exp(-w * table)
        factor = (1 - r) + r * decay + 1e-12
        by_w, by_r = -r * w * table * decay / factor, (decay - 1) * r * (1 - r) / factor
        return self._apart(np.log(factor)), self._apart(by_w), self._apart(by_r)

    def _apart(self, flat: Floats) -> list[Floats]:
        """Splits the side-by-side tables by feature."""
        pieces = np.split(flat, self._ends) if self._tables else []
        return [piece.reshape(table.shape) for piece, table in zip(pieces, self._tables, strict=True)]

    def fit(self, codes: NDArray[Any], values: Floats) -> None:
        """Moves to the mode of the posterior.

        Args:
            codes: Shape (n, parameters).
            values: Shape (n,), standardised.
        """
        from scipy.optimize import minimize  # type: ignore[import-untyped]

        levels = self.features.levels(codes)
        one_hot = gathered([np.eye(len(table)) for table in self._tables], levels)
        self.theta = minimize(
            self._loss, self.theta, (levels, one_hot, values), jac=True, method="L-BFGS-B", bounds=self._bounds,
            options={"maxiter": FIT_STEPS},
        ).x  # fmt: skip

    def _loss(self, theta: Floats, levels: Rows, one_hot: Floats, values: Floats) -> tuple[float, Floats]:
        """Negative log posterior density and its gradient.

        Args:
            theta: The point.
            levels: Shape (n, features).
            one_hot: The same as one-hot codes side by side, so that sums over pairs of configs become products.
            values: Shape (n,).
        """
        from scipy.linalg import lapack  # type: ignore[import-untyped]

        size, count = levels.shape
        tables, slopes_w, slopes_r = self._factors(theta)
        covariance = math.exp(theta[-2]) * np.exp(gathered(tables, levels) @ one_hot.T)
        noise = math.exp(theta[-1])
        factor, info = lapack.dpotrf(covariance + (noise + JITTER) * np.eye(size), lower=1)
        if info:
            return 1e10, np.zeros_like(theta)
        root = np.tril(lapack.dtrtri(factor, lower=1)[0])
        inverse = root.T @ root
        ones = inverse.sum(axis=1)
        residual = values - (ones @ values) / ones.sum()
        weights = inverse @ residual
        loss = 0.5 * float(residual @ weights) + float(np.log(np.diag(factor)).sum())
        slope = np.outer(weights, weights) - inverse
        weighted = slope * covariance
        sums = weighted @ one_hot
        gradient = np.empty_like(theta)
        start = 0
        for at, (slope_w, slope_r) in enumerate(zip(slopes_w, slopes_r, strict=True)):
            columns = slice(start, start := start + len(slope_w))
            by_levels = one_hot[:, columns].T @ sums[:, columns]
            gradient[at] = -0.5 * np.vdot(by_levels, slope_w)
            gradient[count + at] = -0.5 * np.vdot(by_levels, slope_r)
        gradient[-2] = -0.5 * weighted.sum()
        gradient[-1] = -0.5 * noise * np.trace(slope)
        away = theta - self._means
        loss += 0.5 * float((away * away) @ self._precisions)
        return loss, gradient + away * self._precisions


class Posterior:
    """The process conditioned on requested configs, evaluated at a fixed set of candidates.

    Adding a config costs O(requested * candidates). A config in flight lowers the variance around it and does
    not change the mean.

    Attributes:
        candidates: Positions in the space.
        rows: Positions of the configs that it is conditioned on.
        mean: Expected value of each candidate.
        variance: Variance of the value, without noise.
    """

    def __init__(self, space: Space, hyper: Hyperparameters, candidates: Rows, level: float) -> None:
        """Starts without observations.

        Args:
            space: The configs.
            hyper: w, r, scale and noise.
            candidates: Positions to predict.
            level: Expected value of an unknown config.
        """
        self.candidates = candidates
        self._space = space
        self._scale, self._noise, self._features = hyper.scale, hyper.noise, hyper.features
        self._log_tables = hyper.log_tables()
        self._one_hot = self._one_hots(space.codes[candidates])
        self._level = level
        self.rows = np.zeros(0, np.intp)
        self._lower = np.zeros((0, 0))
        self._targets = np.zeros(0)
        self._whitened = np.zeros(0)
        self._projected = np.zeros((0, len(candidates)), np.float32)
        self.variance = np.full(len(candidates), self._scale)
        self.mean = np.full(len(candidates), level)

    def _one_hots(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        tables = [np.eye(len(table), dtype=np.float32) for table in self._log_tables]
        return gathered(tables, self._features.levels(codes)).astype(np.float32, copy=False)

    def _correlation(self, rows: Rows, one_hot: NDArray[Any]) -> NDArray[Any]:
        """Shape (rows, one_hot rows), precise as one_hot is: sums of table entries as a product with codes."""
        logs = gathered(self._log_tables, self._features.levels(self._space.codes[rows]))
        return cast(NDArray[Any], np.exp(logs.astype(one_hot.dtype) @ one_hot.T))

    def add(self, rows: Rows, targets: Floats) -> None:
        """Conditions on more configs.

        Args:
            rows: Positions in the space.
            targets: Observed values; NaN for configs in flight.
        """
        from scipy.linalg import solve_triangular

        if not len(rows):
            return
        before, more = len(self.rows), len(rows)
        one_hot = self._one_hots(self._space.codes[rows]).astype(float)
        own = self._scale * self._correlation(rows, one_hot) + self._noise * np.eye(more)
        lower = np.zeros((before + more, before + more))
        lower[:before, :before] = self._lower
        if before:
            cross = self._scale * self._correlation(self.rows, one_hot)
            side = solve_triangular(self._lower, cross, lower=True).T
            lower[before:, :before] = side
            own -= side @ side.T
        corner = np.linalg.cholesky(own + JITTER * np.eye(more))
        lower[before:, before:] = corner
        similarity = self._correlation(rows, self._one_hot)
        rest = self._scale * similarity - lower[before:, :before].astype(np.float32) @ self._projected
        projected = solve_triangular(corner.astype(np.float32), rest, lower=True)
        self.variance = np.maximum(self.variance - (projected**2).sum(axis=0), 1e-10)
        self._projected = np.concatenate([self._projected, projected])
        self._lower, self.rows = lower, np.concatenate([self.rows, rows])
        self._targets = np.concatenate([self._targets, targets])
        if np.isnan(targets).all():
            self._whitened = np.concatenate([self._whitened, np.zeros(more)])
        else:
            self._update()

    @property
    def in_flight(self) -> Rows:
        """Positions of the configs without a value."""
        return self.rows[np.isnan(self._targets)]

    def tell(self, targets: Floats) -> None:
        """Adds values of the configs `in_flight`; NaN for those that still are."""
        if not np.isnan(targets).all():
            self._targets[np.isnan(self._targets)] = targets
            self._update()

    def _update(self) -> None:
        """Solves for the mean. Configs in flight take their expected value, given the configs before them."""
        whitened = np.zeros(len(self.rows))
        for at, target in enumerate(self._targets):
            expected = self._level + self._lower[at, :at] @ whitened[:at]
            if not np.isnan(target):
                whitened[at] = (target - expected) / self._lower[at, at]
        self._whitened = whitened
        self.mean = self._level + self._projected.T @ whitened.astype(np.float32)

    def mean_of_rows(self) -> Floats:
        """Expected value of each config that it is conditioned on, with noise removed."""
        from scipy.linalg import solve_triangular

        weights = solve_triangular(self._lower, self._whitened, lower=True, trans="T")
        targets = self._level + self._lower @ self._whitened
        return cast(Floats, targets - self._noise * weights)
