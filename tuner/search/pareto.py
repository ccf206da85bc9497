"""Several objectives: one search for each of a few weightings, with a shared history of requests.

A weighting's value is the weighted geometric mean of the objectives, so that one per cent of an objective is
worth a fixed number of per cents of another. The weightings take turns, and all learn from every result.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

from tuner.results.measurement import Outcome
from tuner.search.strategy import History, Strategy
from tuner.search.tile import TileStrategy

#: Weights are multiples of 1 over this number.
STEPS = 3
#: An objective of 0, such as the error of an exact result, counts as this.
LEAST = 1e-30


def weightings(objectives: int) -> list[tuple[float, ...]]:
    """Weights of the objectives that sum to 1, from one alone to even shares."""
    weights = [
        tuple(part / STEPS for part in parts)
        for parts in itertools.product(range(STEPS + 1), repeat=objectives)
        if sum(parts) == STEPS
    ]
    return sorted(weights, key=max, reverse=True)


class ParetoStrategy(Strategy):
    """Takes turns between weightings; see the module."""

    def __init__(
        self,
        history: History,
        seed: int,
        starts: Sequence[tuple[str, int]] = (),
        budget: int | None = None,
        *,
        objectives: int,
    ) -> None:
        """Takes the arguments of `TileStrategy` and the number of objectives."""
        super().__init__(history)
        self._views: list[tuple[tuple[float, ...], History, TileStrategy]] = []
        for number, weights in enumerate(weightings(objectives)):
            view = history.view()
            strategy = TileStrategy(view, seed + number, starts, budget)
            self._views.append((weights, view, strategy))
        self._turn = 0

    def choose(self) -> tuple[str, int] | None:
        """See `Strategy`."""
        for _ in self._views:
            _, _, strategy = self._views[self._turn % len(self._views)]
            self._turn += 1
            chosen = strategy.choose()
            if chosen is not None:
                self.stopped = ""
                return chosen
            self.stopped = strategy.stopped
        if self.stopped.startswith("converged"):
            self.stopped = "converged: no weighting of the objectives expects a config that is worth a trial"
        return None

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Reports a result to every weighting; a config that was stopped early has only a time."""
        if outcome is Outcome.PRUNED:
            return
        logs = [math.log(max(value, LEAST)) for value in values]
        for weights, view, strategy in self._views:
            value = math.exp(sum(map(operator.mul, weights, logs))) if logs else None
            view.kernels[kernel].learn(index, outcome, value)
            strategy.learn(kernel, index, outcome, values)


def front(values: Sequence[Sequence[float]]) -> list[int]:
    """Positions of the points that no other point beats in one objective while equalling it in the rest."""
    on_front: list[int] = []
    # Points that beat another come before it in this order, so comparing with the points kept so far is enough.
    for at in sorted(range(len(values)), key=lambda place: tuple(values[place])):
        if not any(_beats(values[other], values[at]) for other in on_front):
            on_front.append(at)
    return sorted(on_front)


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front_value(values: Sequence[Sequence[float]]) -> float:
    """Rates a front by one number: the mean over the weightings of its best value for each.

    With one objective it is the best value. It falls by a per cent when all objectives of all points do.

    Args:
        values: Values of the points, at least one.
    """
    logs = [[math.log(max(value, LEAST)) for value in point] for point in values]
    every = weightings(len(logs[0]))
    best = [min(sum(map(operator.mul, weights, point)) for point in logs) for weights in every]
    return math.exp(sum(best) / len(best))
