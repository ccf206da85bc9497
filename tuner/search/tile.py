"""Our strategy: starts, a design, then the most promising config of any kernel, then a local search.

Once starts and design suffice for a model, trials alternate between the config of highest expected improvement
anywhere and a neighbour of the fastest config, also by expected improvement: the neighbours show what the model
misses where it matters most. If no config is expected to gain enough for a trial, the untried neighbours of the
fastest config are tried; if none is left, the search has converged. A study with a budget of trials then
continues by expected improvement until the budget is spent.

Several objectives have one such search for each of a few weightings, with a shared history of requests. A
weighting's value is the weighted geometric mean of the objectives, so that one per cent of an objective is
worth a fixed number of per cents of another. The weightings take turns, and all learn from every result.
"""

import itertools
import math
import operator
from collections.abc import Iterator, Sequence

import numpy as np

from tuner.results.measurement import Outcome
from tuner.search.kernel_model import KernelModel, TransferPrior, spread
from tuner.search.strategy import NOTHING, History, Known, Observation, Place, RandomStrategy, Strategy
from tuner.search.surrogate import Floats, Rows

#: Configs of the design for all kernels together, and at least for each kernel.
DESIGN = 8
DESIGN_OF_KERNEL = 6
#: Log of time by which a kernel is predicted to be behind if the design has one config of it alone.
FAR_BEHIND = math.log(1.5)
#: One in this many trials chosen by the model is a neighbour of the fastest config.
LOCAL_TURN = 2
#: Log of the least expected improvement, as a share of the time, that is worth a trial.
LEAST_IMPROVEMENT = math.log(1e-4)
#: Weights are multiples of 1 over this number.
STEPS = 3
#: An objective of 0, such as the error of an exact result, counts as this.
LEAST = 1e-30


def log_expected_improvement(mean: Floats, deviation: Floats, level: float) -> Floats:
    """Log of E[max(0, level - X)] for normal X, without underflow.

    Args:
        mean: Mean of X.
        deviation: Standard deviation of X.
        level: Value to improve on.
    """
    from scipy.special import log_ndtr  # type: ignore[import-untyped]

    z = (level - mean) / deviation
    log_density = -0.5 * z * z - 0.5 * math.log(2 * math.pi)
    # E = deviation * density(z) * (1 + z * cdf(z) / density(z)). Far below 0 the bracket cancels and tends
    # to 1 / z**2; far above, E tends to deviation * z.

    ratio = np.exp(np.minimum(log_ndtr(z) - log_density, 50.0))
    bracket = np.where(z < -30, 1 / np.maximum(z * z, 1.0), np.maximum(1 + z * ratio, 1e-300))
    inside = np.where(z > 8, np.log(np.maximum(z, 1.0)), log_density + np.log(bracket))
    improvement: Floats = np.log(deviation) + inside
    return improvement


class TileStrategy(Strategy):
    """Minimises one objective; see the module."""

    def __init__(
        self, history: History, seed: int, starts: Sequence[Place], budget: int | None, known: Known = NOTHING
    ) -> None:
        """Begins.

        Args:
            history: Everything known so far; others write to it.
            seed: Seed of all random choices.
            starts: What to try first.
            budget: Total number of trials, if limited.
            known: Results elsewhere. If they are predictions for this very problem, kernels that they put far
                behind are hardly tried.
        """
        super().__init__(history, itertools.chain(starts, self._design()))
        self._budget = budget
        self._rng = np.random.default_rng(seed)
        self._random = RandomStrategy(history, seed + 1)
        self._behind = _behind(known.elsewhere) if known.foretold else {}
        self._turn = 0
        self._trends: dict[str, TransferPrior] = {}
        self._models: dict[str, KernelModel] = {}
        for name, observations in history.kernels.items():
            past = [result for result in known.elsewhere if result.kernel == name]
            if past:
                self._trends[name] = TransferPrior(observations.space, past, self._rng)
            self._models[name] = KernelModel(observations, self._rng, self._trends.get(name))

    def choose(self) -> Place | None:
        """See `Strategy`."""
        self.stopped = "" if self._history.left else "space covered"
        if self.stopped:
            return None
        if (queued := self._queued()) is not None:
            return queued
        kernels = self._history.kernels
        ready = {
            name: model for name, model in self._models.items() if model.ready and not kernels[name].dropped
        }
        return self._promising(ready) if ready else self._random.choose()

    def _design(self) -> Iterator[Place]:
        """Configs of all kernels in turn; chosen once the starts were tried, when the first is asked for."""
        kernels = {name: one for name, one in self._history.kernels.items() if one.left}
        of_kernel = max(DESIGN_OF_KERNEL, DESIGN // max(len(kernels), 1))
        by_kernel = []
        for name, observations in kernels.items():
            far = self._behind.get(name, 0.0) > FAR_BEHIND
            wanted = max(0, (1 if far else of_kernel) - len(observations.requested))
            rows = self._trends[name].starts(wanted) if name in self._trends else []
            rows = rows or spread(observations.space, wanted, observations.requested, self._rng)
            by_kernel.append([(name, row) for row in rows])
        for turn in itertools.zip_longest(*by_kernel):
            yield from filter(None, turn)

    def _promising(self, ready: dict[str, KernelModel]) -> Place | None:
        for model in ready.values():
            model.update()
        level, fastest, centre = min(
            (log_s, name, row) for name, model in ready.items() for row, log_s in model.leaderboard().items()
        )
        choices = []
        scores = {}
        for name, model in ready.items():
            mean, deviation = model.predicted()
            score = log_expected_improvement(mean, deviation, level) + model.log_chance()
            requested = self._history.kernels[name].requested
            score[np.isin(model.candidates, np.fromiter(requested, np.intp, len(requested)))] = -np.inf
            scores[name] = score
            choices.append(_highest(score, name, model.candidates))
        score_of_best, kernel, index = max(choices)
        self._turn += 1
        if score_of_best < LEAST_IMPROVEMENT:
            return self._last_steps(fastest, centre, (kernel, index) if score_of_best > -np.inf else None)
        if self._turn % LOCAL_TURN == 0:
            candidates = ready[fastest].candidates
            around = np.isin(candidates, self._history.kernels[fastest].space.neighbours(centre))
            near = _highest(np.where(around, scores[fastest], -np.inf), fastest, candidates)
            if near[0] > -np.inf:
                return near[1:]
        return kernel, index

    def _last_steps(self, fastest: str, centre: int, promising: Place | None) -> Place | None:
        """Tries the nearest untried neighbour of the fastest config; then uses up a budget; then ends."""
        observations = self._history.kernels[fastest]
        doomed = self._models[fastest].doomed()
        for row in observations.space.neighbours(centre).tolist():
            if row not in observations.requested and row not in doomed:
                return fastest, row
        trials = sum(len(observations.requested) for observations in self._history.kernels.values())
        if self._budget is not None and trials < self._budget:
            return promising or self._random.choose()
        self.stopped = (
            "converged: every neighbour of the fastest config was tried or would fail, "
            f"and no config is expected to gain {math.exp(LEAST_IMPROVEMENT):.2%}"
        )
        return None


def _behind(elsewhere: Sequence[Observation]) -> dict[str, float]:
    """By kernel, how far its fastest config is behind the fastest of all, a log of time."""
    fastest: dict[str, float] = {}
    for result in elsewhere:
        if result.time_s is not None and result.time_s > 0:
            fastest[result.kernel] = min(fastest.get(result.kernel, math.inf), math.log(result.time_s))
    return {name: log_s - min(fastest.values()) for name, log_s in fastest.items()}


def _highest(score: Floats, kernel: str, candidates: Rows) -> tuple[float, str, int]:
    if not len(score):
        return -math.inf, kernel, -1
    at = int(np.argmax(score))
    return float(score[at]), kernel, int(candidates[at])


def weightings(objectives: int) -> list[tuple[float, ...]]:
    """Weights of the objectives that sum to 1, from one alone to even shares."""
    weights = [
        tuple(part / STEPS for part in parts)
        for parts in itertools.product(range(STEPS + 1), repeat=objectives)
        if sum(parts) == STEPS
    ]
    return sorted(weights, key=max, reverse=True)


class ParetoStrategy(Strategy):
    """Takes turns between weightings of several objectives; see the module."""

    def __init__(
        self, history: History, seed: int, starts: Sequence[Place], budget: int | None, objectives: int
    ) -> None:
        """Takes the arguments of `TileStrategy` and the number of objectives."""
        super().__init__(history)
        self._views: list[tuple[tuple[float, ...], History, TileStrategy]] = []
        for number, weights in enumerate(weightings(objectives)):
            view = history.view()
            strategy = TileStrategy(view, seed + number, starts, budget)
            self._views.append((weights, view, strategy))
        self._turn = 0

    def choose(self) -> Place | None:
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
    points = np.array(values)
    beaten = ((points <= point).all(axis=1) & (points < point).any(axis=1) for point in points)
    return [at for at, by in enumerate(beaten) if not by.any()]


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
