"""A study's search: ask for configs, tell their results."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.declare.space import Config, Space
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Outcome
from tuner.search.optuna_bridge import OPTUNA_SAMPLERS, OptunaStrategy
from tuner.search.strategy import NOTHING, History, Known, Observation, RandomStrategy, Strategy
from tuner.search.tile import ParetoStrategy, TileStrategy

#: Names of samplers: ours, plain ones, and Optuna's.
SAMPLERS = ("tile", "random", "bruteforce", *OPTUNA_SAMPLERS)


@dataclass(frozen=True)
class Candidate:
    """A config to try.

    Attributes:
        kernel: Name of the kernel.
        config: A legal config, never requested before in this study.
        number: Number of the trial.
    """

    kernel: str
    config: Config
    number: int


@dataclass(frozen=True)
class SearchOptions:
    """Options of a search.

    Attributes:
        seed: The same seed and results give the same configs.
        sampler: One of `SAMPLERS`.
        budget: Total number of trials of the study, including past ones; None if only time limits it.
        objectives: Objectives to minimise; the first is time. Several need ``tile``, ``random`` or
            ``bruteforce``.
    """

    seed: int
    sampler: str = "tile"
    budget: int | None = None
    objectives: tuple[str, ...] = ("time",)

    def __post_init__(self) -> None:
        """Checks the sampler.

        Raises:
            UnknownName: There is no such sampler.
            InputError: The sampler supports one objective, and there are several.
        """
        if self.sampler not in SAMPLERS:
            raise UnknownName("sampler", self.sampler, SAMPLERS)
        if self.sampler in OPTUNA_SAMPLERS and len(self.objectives) > 1:
            raise InputError(
                f"the sampler {self.sampler} minimises one objective, got {', '.join(self.objectives)}; "
                "choose tile"
            )


class Search:
    """Suggests legal configs that were never tried, the most promising first."""

    def __init__(self, spaces: Mapping[str, Space], options: SearchOptions, known: Known = NOTHING) -> None:
        """Opens a search.

        Args:
            spaces: The legal configs of each kernel that competes.
            options: Options of the search.
            known: Knowledge from before.
        """
        self._spaces = dict(spaces)
        self._objectives = len(options.objectives)
        self._history = History(spaces)
        self._strategy = self._make_strategy(options, known)
        self._numbers = itertools.count()
        self._in_flight: dict[int, int] = {}
        for past in known.past:
            if past.kernel in spaces and past.config in spaces[past.kernel]:
                self._learn(spaces[past.kernel].index_of(past.config), past)

    def _make_strategy(self, options: SearchOptions, known: Known) -> Strategy:
        starts = [
            (kernel, self._spaces[kernel].index_of(config))
            for kernel, config in known.starts
            if kernel in self._spaces and config in self._spaces[kernel]
        ]
        history, seed = self._history, options.seed
        if options.sampler == "random":
            return RandomStrategy(history, seed)
        if options.sampler == "bruteforce":
            every = ((name, row) for name, space in self._spaces.items() for row in range(len(space)))
            return Strategy(history, every)
        if options.sampler in OPTUNA_SAMPLERS:
            return OptunaStrategy(history, options.sampler, seed, starts)
        if self._objectives > 1:
            return ParetoStrategy(history, seed, starts, options.budget, self._objectives)
        return TileStrategy(history, seed, starts, options.budget, known)

    def _learn(self, index: int, result: Observation) -> None:
        """Gives a result to the history, then to the strategy."""
        self._history.kernels[result.kernel].learn(index, result.outcome, result.time_s)
        values: tuple[float, ...] = ()
        if not result.outcome.failed and result.time_s is not None:
            values = result.time_s, *result.others
        # An earlier trial may lack an objective, and a trial that was stopped early has only a time.
        if len(values) in (0, self._objectives):
            self._strategy.learn(result.kernel, index, result.outcome, values)

    def drop(self, kernel: str) -> None:
        """Suggests no more configs of a kernel."""
        self._history.kernels[kernel].dropped = True

    @property
    def stopped(self) -> str:
        """Reason why the search has ended; empty if it has not."""
        return self._strategy.stopped

    def ask(self, count: int = 1) -> list[Candidate]:
        """Returns configs to try next, all legal and new; fewer than `count`, or none, if no more are left."""
        candidates: list[Candidate] = []
        while len(candidates) < count and (chosen := self._strategy.choose()) is not None:
            kernel, index = chosen
            self._history.kernels[kernel].requested[index] = None
            candidate = Candidate(kernel, self._spaces[kernel][index], next(self._numbers))
            self._in_flight[candidate.number] = index
            candidates.append(candidate)
        return candidates

    def tell(
        self, candidate: Candidate, outcome: Outcome, time_s: float | None, others: Sequence[float] = ()
    ) -> None:
        """Reports the result of a candidate.

        Args:
            candidate: A candidate from `ask`.
            outcome: How its measurement ended.
            time_s: Seconds; of the few samples that were taken when PRUNED; None for a failure.
            others: Values of the objectives after the first, if there are several.
        """
        result = Observation(candidate.kernel, candidate.config, outcome, time_s, tuple(others))
        self._learn(self._in_flight.pop(candidate.number), result)
