"""Our strategy: starts, a design, then the most promising config of any kernel, then a local search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr  # type: ignore[import-untyped]

from tuner.measurement import Outcome
from tuner.search.beliefs import Beliefs
from tuner.search.design import spread
from tuner.search.history import History, Observation
from tuner.search.strategy import RandomStrategy
from tuner.search.trend import Trend

Floats = NDArray[np.float64]

#: Configs of the design, of all kernels together, and of one kernel at least.
DESIGN = 8
DESIGN_OF_KERNEL = 6
SD = 1.0
FAMOUS_STARTS = 8


def log_expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Log of E[max(0, best - X)] for normal X, without underflow.

    Args:
        mean: Of X.
        deviation: Standard deviation of X.
        best: What is to be improved on.
    """
    z = (best - mean) / deviation
    log_density = -0.5 * z * z - 0.5 * np.log(2 * np.pi)
    ratio = np.exp(np.minimum(log_ndtr(z) - log_density, 50.0))  # Phi / phi; grows beyond use for z > 8
    inside = 1 + z * ratio
    # For very negative z, 1 + z * Phi / phi cancels; it tends to 1 / z**2.
    far = z < -30
    inside = np.where(far, 1 / np.maximum(z * z, 1.0), np.maximum(inside, 1e-300))
    found: Floats = np.log(deviation) + np.where(
        z > 8, np.log(np.maximum(z, 1.0)), log_density + np.log(inside)
    )
    return found


class TileStrategy:
    """See the module."""

    def __init__(
        self,
        history: History,
        seed: int,
        starts: Sequence[tuple[str, int]] = (),
        budget: int | None = None,
        elsewhere: Sequence[Observation] = (),
    ) -> None:
        """Begins.

        Args:
            history: What is known; others write to it.
            seed: Of all chance.
            starts: (kernel, position) pairs to try first.
            budget: Trials in all, where there is a limit.
            elsewhere: What the same kernels did on another device, or for the nearest shape.
        """
        self.stopped = ""
        self._history = history
        self._rng = np.random.default_rng(seed)
        self._random = RandomStrategy(history, seed + 1)
        self._queue = list(starts)
        self._beliefs: dict[str, Beliefs] = {}
        self._famous: dict[str, list[int]] = {}
        for name, tried in history.kernels.items():
            past = [each for each in elsewhere if each.kernel == name]
            trend = Trend(tried.space, past, self._rng) if past else None
            self._beliefs[name] = Beliefs(tried, self._rng, trend)
            self._famous[name] = trend.starts(FAMOUS_STARTS) if trend else []
        self._designed = False

    def choose(self) -> tuple[str, int] | None:
        """See `Strategy`."""
        if self._history.covered:
            self.stopped = "space covered"
            return None
        queued = self._from_queue()
        if queued is None and not self._designed:
            self._design()
            queued = self._from_queue()
        return queued or self._promising() or self._random.choose()

    def _from_queue(self) -> tuple[str, int] | None:
        while self._queue:
            kernel, index = self._queue.pop(0)
            if index not in self._history.kernels[kernel].asked:
                return kernel, index
        return None

    def _design(self) -> None:
        self._designed = True
        kernels = {name: each for name, each in self._history.kernels.items() if len(each.space)}
        each_count = max(DESIGN_OF_KERNEL, DESIGN // len(kernels))
        by_kernel = []
        for name, tried in kernels.items():
            wanted = max(0, each_count - len(tried.asked))
            famous = [row for row in self._famous[name] if row not in tried.asked][:wanted]
            rows = famous or spread(tried.space, wanted, tried.asked, self._rng)
            by_kernel.append([(name, row) for row in rows])
        while any(by_kernel):
            self._queue += [rows.pop(0) for rows in by_kernel if rows]

    def _promising(self) -> tuple[str, int] | None:
        """The config of highest expected improvement over the best of all kernels."""
        ready = {name: each for name, each in self._beliefs.items() if each.ready}
        if not ready:
            return None
        for each in ready.values():
            each.update()
        best = min(each.best() for each in ready.values())
        found: list[tuple[float, str, int]] = []
        for name, each in ready.items():
            mean, deviation = each.predicted()
            score = log_expected_improvement(mean, deviation * SD, best) + each.log_chance()
            asked = self._history.kernels[name].asked
            score[np.fromiter((row in asked for row in each.candidates.tolist()), bool, len(score))] = -np.inf
            at = int(np.argmax(score))
            if score[at] > -np.inf:
                found.append((float(score[at]), name, int(each.candidates[at])))
        return max(found)[1:] if found else None

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Nothing to do: the history was told."""
