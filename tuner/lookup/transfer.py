"""What times at known places say of a config at another: the ranking that lookups use, learnt from records.

Written down as logarithms of time. A config's standing at a place is how much slower than the best it is
there. From one place to another it changes by what its whole blocks cost (waves over the multiprocessors,
padding at the edges), times a factor that is learnt, and by an unknown part whose variance grows with how far
the places lie apart. How much each respect counts for "apart" (dims, work, flops per byte, alignment,
layout, sizes of the device) is learnt from configs that were timed at both of two places: so nearness is
what records show, not a formula. Between the known places is interpolated: first how the best config of each
kernel stands, then how much slower than that each of its configs is, with a prior for a config of which
nothing is known nearby.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.lookup.estimate import Estimate, likely_loss
from tuner.lookup.features import (
    ARCHITECTURE_WEIGHT,
    DEVICE_WEIGHTS,
    Floats,
    apart,
    device_features,
    prior_weights,
    shape_features,
)
from tuner.lookup.geometry import COSTS, KernelConfigs
from tuner.lookup.interpolation import Kriging
from tuner.lookup.legality import Flags
from tuner.lookup.matrix import Matrix

Numbers = NDArray[np.intp]

#: Variance of log(time) between two timings of one config at one place: 1 %, squared.
NOISE = 1e-4
#: Of what a block model predicts, this much is believed before records say better...
TRUST = 0.7
#: ...as strongly as if so many pairs of places had said so.
TRUST_PAIRS = 6.0
#: The same for the prior weights of nearness.
WEIGHT_PAIRS = 10.0
#: How much slower than the best config of its kernel one is of which nothing is known nearby.
UNKNOWN_OF_KERNEL = 0.3
#: Variance of log(time ratio) of configs of one kernel, of a library, and of kernels, at places far apart.
SPREAD, SPREAD_OF_KERNELS = 0.12, 0.15
#: Of one standing, when others near it are known, too.
INTERPOLATION_NOISE = 3e-4
#: Places that a model is fitted to, spread over all, and places that an answer is taken from.
FIT_PLACES, NEAR_PLACES = 48, 64
#: Rounds of the fit of weights that may not be negative.
ROUNDS = 12


@dataclass(frozen=True)
class Model:
    """What was learnt.

    Attributes:
        trust: How much of (waves, padding) shows in time.
        weights: Variance that each unit of being apart brings to how configs stand.
        library: The same for how the library stands.
    """

    trust: Floats
    weights: Floats
    library: Floats


class Landscape:
    """A matrix with all that is computed from it once."""

    def __init__(self, matrix: Matrix) -> None:
        """Computes features and pairs.

        Args:
            matrix: What is known; at least one place.
        """
        self.matrix = matrix
        self._kernel_configs = _kernel_configs(matrix)
        first = matrix.places[0].problem
        self._dims, letters = len(first.shape), len(first.layout)
        self._shapes = np.stack([shape_features(place.problem) for place in matrix.places])
        self._devices = np.stack([device_features(place.device) for place in matrix.places])
        self._architectures = np.array([place.device.architecture for place in matrix.places])
        self._known = ~np.isnan(matrix.slower)
        self._slower = np.where(self._known, matrix.slower, 0.0)
        self._costs: dict[int, Floats] = {}
        self.prior_weights = np.concatenate(
            [prior_weights(self._dims, letters), DEVICE_WEIGHTS, [ARCHITECTURE_WEIGHT]]
        )
        count = len(matrix.places)
        self._sample = np.unique(np.linspace(0, count - 1, min(count, FIT_PLACES)).astype(int))
        sampled = [matrix.places[number] for number in self._sample]
        self._apart = np.stack(
            [self.apart_from(place.problem, place.device)[self._sample] for place in sampled]
        )
        self._pairs = self._summed_pairs()

    def learns_from(self, place: int) -> bool:
        """Whether a place is among those that a model is fitted to."""
        return bool((self._sample == place).any())

    def known_at(self, places: Floats) -> Flags:
        """Per column: whether any of these places knows it."""
        return np.asarray(self._known[np.flatnonzero(places)].any(axis=0))

    def of(self, kernel: str) -> Flags:
        """Per column: whether it is of this kernel; of any when empty."""
        return np.array([kernel in ("", name) for name, _ in self.matrix.columns], bool)

    def nearest(self, model: Model, problem: Problem, device: DeviceInfo, places: Floats) -> Floats:
        """Of some places those that count: the nearest.

        Args:
            model: What was learnt.
            problem: Problem.
            device: Device.
            places: Per place: 1 for those to choose from.
        """
        if np.count_nonzero(places) <= NEAR_PLACES:
            return places
        variances = np.where(places > 0, self.variances(model, problem, device), np.inf)
        near = np.zeros_like(places)
        near[np.argpartition(variances, NEAR_PLACES)[:NEAR_PLACES]] = 1.0
        return near

    def apart_from(self, problem: Problem, device: DeviceInfo) -> Floats:
        """How far every place lies from a problem on a device; shape (places, respects)."""
        shapes = apart(shape_features(problem), self._shapes, self._dims)
        devices = np.abs(self._devices - device_features(device))
        other = (self._architectures != device.architecture).astype(float)
        return np.concatenate([shapes, devices, other[:, None]], axis=1)

    def legal(
        self, problem: Problem, device: DeviceInfo, kernel: str = "", among: Flags | None = None
    ) -> tuple[Flags, Flags]:
        """Per column: legal for a problem on a device; and worth trying, too.

        Args:
            problem: What is to be computed.
            device: Where.
            kernel: Only this kernel; any when empty.
            among: Only these columns; all when None.
        """
        right = np.zeros(len(self.matrix.columns), bool)
        fast = right.copy()
        for numbers, kernel_configs in self._kernel_configs:
            some = None if among is None else among[numbers]
            if kernel in ("", kernel_configs.kernel.name) and (some is None or some.any()):
                right[numbers], fast[numbers] = kernel_configs.points.flags(problem, device, some)
        return right, fast

    def costs(self, problem: Problem, device: DeviceInfo) -> Floats:
        """Per column what whole blocks cost: (waves, padding)."""
        costs = np.zeros((COSTS, len(self.matrix.columns)))
        for numbers, kernel_configs in self._kernel_configs:
            costs[:, numbers] = kernel_configs.costs(problem, device)
        return costs

    def _known_costs(self, rows: Numbers) -> Floats:
        """Costs of whole blocks where a time is known, less those of the best config there.

        Args:
            rows: Numbers of places.

        Returns:
            Shape (2, rows, columns); 0 where no time is known.
        """
        for row in rows:
            if row not in self._costs:
                place, known = self.matrix.places[row], np.flatnonzero(self._known[row])
                costs = self.costs(place.problem, place.device)[:, known]
                best = int(np.argmin(self._slower[row, known]))
                self._costs[row] = costs - costs[:, best : best + 1]
        found = np.zeros((COSTS, len(rows), len(self.matrix.columns)))
        for at, row in enumerate(rows):
            found[:, at, self._known[row]] = self._costs[row]
        return found

    def _summed_pairs(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Per pair of places, over the configs known at both: count, and sums of products of differences.

        The differences are those in standing and in costs.
        """
        # Not by BLAS: its threads cost more than they gain here.
        shared = np.count_nonzero(self._known[self._sample], axis=0) > 1
        known = self._known[self._sample][:, shared].astype(float)
        slower = self._slower[self._sample][:, shared]
        costs = self._known_costs(self._sample)[:, :, shared]
        values = [slower, *costs]
        count = np.einsum("ac,bc->ab", known, known)
        products = np.zeros((len(values), len(values), *count.shape))
        for i, left in enumerate(values):
            for j, right in enumerate(values[: i + 1]):
                both = np.einsum("ac,bc->ab", left * right, known)
                cross = np.einsum("ac,bc->ab", left, right)
                products[i, j] = products[j, i] = both + both.T - cross - cross.T
        return count, products[0, 0], products[0, 1:], products[1:, 1:]

    def fit(self, places: Floats) -> Model:
        """Learns from some of the places.

        Args:
            places: Per place: 1 to learn from it, 0 to leave it out.
        """
        count, squares, mixed, costs = self._pairs
        places = places[self._sample]
        use = np.triu(np.outer(places, places), 1) * (count > 0)
        safe = np.maximum(count, 1.0)
        expected = self._apart @ self.prior_weights + 2 * NOISE
        weight = use * count / (count + 5.0) / expected
        scale = TRUST_PAIRS * 0.01
        left = np.tensordot(costs / safe, weight, ([2, 3], [0, 1])) + scale * np.eye(COSTS)
        right = np.tensordot(mixed / safe, weight, ([1, 2], [0, 1])) + scale * TRUST
        trust = np.clip(np.linalg.solve(left, right), 0.0, 1.5)
        residual = squares - 2 * np.tensordot(trust, mixed, 1)
        residual = (residual + np.einsum("i,ijst,j->st", trust, costs, trust)) / safe
        rows = np.nonzero(use)
        weights = self._weights(self._apart[rows], residual[rows] - 2 * NOISE, expected[rows])
        return Model(trust, weights, self._library_weights(places))

    def _library_weights(self, places: Floats) -> Floats:
        """Weights of nearness for the library, which has limits of its own: from its own times.

        Args:
            places: Per place of the sample: 1 to learn from it.
        """
        values = self.matrix.library[self._sample]
        told = np.flatnonzero((places > 0) & ~np.isnan(values))
        one, other = (told[each] for each in np.triu_indices(len(told), 1))
        steps = self._apart[one, other]
        squares = (values[one] - values[other]) ** 2 - 2 * NOISE
        return self._weights(steps, squares, steps @ self.prior_weights + 2 * NOISE)

    def _weights(self, steps: Floats, squares: Floats, expected: Floats) -> Floats:
        """Weights of nearness that explain the squared differences, none below 0, drawn to the prior's."""
        prior = self.prior_weights
        if not len(steps):
            return prior
        shares = steps * prior / expected[:, None]
        gram = np.einsum("ri,rj->ij", shares, shares) + WEIGHT_PAIRS / len(prior) * np.eye(len(prior))
        target = shares.T @ (np.minimum(squares, 0.25) / expected) + WEIGHT_PAIRS / len(prior)
        factors = np.ones(len(prior))
        for _ in range(ROUNDS):
            for i in range(len(prior)):
                rest = target[i] - gram[i] @ factors + gram[i, i] * factors[i]
                factors[i] = max(0.05, rest / gram[i, i])
        return prior * factors

    def variances(self, model: Model, problem: Problem, device: DeviceInfo) -> Floats:
        """Per place: variance of log(time ratio) between it and a problem on a device."""
        found: Floats = self.apart_from(problem, device) @ model.weights + NOISE
        return found

    def estimate(
        self, model: Model, problem: Problem, device: DeviceInfo, places: Floats, columns: Numbers
    ) -> Estimate:
        """What is to be expected of some columns for a problem on a device.

        Args:
            model: What was learnt.
            problem: Problem.
            device: Device.
            places: Per place: 1 to ask it, 0 to leave it out.
            columns: Numbers of the columns asked about.
        """
        rows = np.flatnonzero(places)
        learnt = self._kriging(problem, device, rows, model.weights)
        known = self._known[rows]
        costs = np.einsum("i,isc->sc", model.trust, self._known_costs(rows))
        own = np.where(known, self._slower[rows] - costs, np.inf)
        expected, unsure = np.zeros((2, own.shape[1]))
        for numbers, _ in self._kernel_configs:
            least = own[:, numbers].min(axis=1)
            told = np.isfinite(least)
            best = np.where(told, least, 0.0)
            usual = float(best[told].mean()) if told.any() else 0.0
            expected[numbers], unsure[numbers] = learnt.at(best[None], told[None], usual, SPREAD_OF_KERNELS)
            own[:, numbers] -= best[:, None]
        known, own = known[:, columns].T, own[:, columns].T
        mean, variance = learnt.at(np.where(known, own, 0.0), known, UNKNOWN_OF_KERNEL, SPREAD)
        slower = expected[columns] + np.maximum(mean, 0.0)
        here = model.trust @ self.costs(problem, device)[:, columns]
        weights = places / self.variances(model, problem, device)
        library = self._library(model, problem, device, rows)
        return Estimate(slower, unsure[columns] + variance, here, library, weights)

    def _kriging(self, problem: Problem, device: DeviceInfo, rows: Numbers, weights: Floats) -> Kriging:
        """How some places lie, by weights of nearness."""
        shapes, devices, named = self._shapes[rows], self._devices[rows], self._architectures[rows]
        respects = np.concatenate(
            [
                apart(shapes[:, None], shapes[None], self._dims),
                np.abs(devices[:, None] - devices[None]),
                np.not_equal.outer(named, named)[:, :, None],
            ],
            axis=2,
        )
        here = self.apart_from(problem, device)[rows] @ weights
        return Kriging(respects @ weights, here, INTERPOLATION_NOISE)

    def _library(self, model: Model, problem: Problem, device: DeviceInfo, rows: Numbers) -> float:
        """The loss that is expected of the library; what configs show of nearness is no matter to it."""
        values = self.matrix.library[rows]
        told = ~np.isnan(values)
        if not told.any():
            return float("nan")
        kriging = self._kriging(problem, device, rows, model.library)
        usual = float(values[told].mean())
        mean, variance = kriging.at(np.where(told, values, 0.0)[None], told[None], usual, SPREAD)
        return float(likely_loss(mean, variance)[0])


def _kernel_configs(matrix: Matrix) -> list[tuple[Numbers, KernelConfigs]]:
    """Numbers of the columns of each kernel."""
    by_kernel: dict[str, list[int]] = {}
    for number, (kernel, _) in enumerate(matrix.columns):
        by_kernel.setdefault(kernel, []).append(number)
    return [
        (
            np.array(numbers),
            KernelConfigs(matrix.kernels[kernel], [matrix.columns[number][1] for number in numbers]),
        )
        for kernel, numbers in by_kernel.items()
    ]
