"""A study's search: ask for configs, tell their results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import TrialState

from tuner.declare.space import Config, Space
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Outcome
from tuner.search.foreign import FOREIGN, ForeignStrategy
from tuner.search.optuna_study import Mirror
from tuner.search.pareto import ParetoStrategy, front
from tuner.search.sampler import (
    FEW_SAMPLES_S,
    KERNEL,
    OUTCOME,
    SpaceSampler,
    config_of,
    finished_trial,
    parameter_name,
)
from tuner.search.strategy import History, Observation, RandomStrategy, SequenceStrategy, Strategy
from tuner.search.tile import TileStrategy

#: Names of samplers: ours, plain ones, and Optuna's.
SAMPLERS = ("tile", "random", "bruteforce", *FOREIGN)
#: Variable that has trials copied into Optuna's own tables if it is 1: three times what they take themselves.
COPY_VARIABLE = "TUNER_DASHBOARD"


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
        study_name: Name of the study in the storage.
        sampler: One of `SAMPLERS`.
        budget: Total number of trials of the study, including past ones; None if only time limits it.
        objectives: Objectives to minimise; the first is time. Several need ``tile``, ``random`` or
            ``bruteforce``.
        storage_url: Database to which finished trials are copied for optuna-dashboard, if `COPY_VARIABLE` is 1.
    """

    seed: int
    study_name: str
    sampler: str = "tile"
    budget: int | None = None
    objectives: tuple[str, ...] = ("time",)
    storage_url: str | None = None

    def __post_init__(self) -> None:
        """Checks the sampler.

        Raises:
            UnknownName: There is no such sampler.
            InputError: The sampler supports one objective, and there are several.
        """
        if self.sampler not in SAMPLERS:
            raise UnknownName("sampler", self.sampler, SAMPLERS)
        if self.sampler in FOREIGN and len(self.objectives) > 1:
            raise InputError(
                f"the sampler {self.sampler} minimises one objective, got {', '.join(self.objectives)}; "
                "choose tile"
            )


@dataclass(frozen=True)
class Known:
    """Knowledge from before a search begins.

    Attributes:
        starts: Configs to try first; illegal ones are left out.
        past: Earlier trials of this study; never requested again.
        elsewhere: Results of the same kernels on another device or for the nearest shape; used by ``tile``
            only.
        foretold: Whether these are predictions for this very problem.
    """

    starts: Sequence[tuple[str, Config]] = ()
    past: Sequence[Observation] = ()
    elsewhere: Sequence[Observation] = ()
    foretold: bool = False


class Search:
    """Suggests legal configs that were never tried, the most promising first.

    Attributes:
        study: The Optuna study, in memory.
    """

    def __init__(self, spaces: Mapping[str, Space], options: SearchOptions, known: Known = Known()) -> None:
        """Opens a search.

        Args:
            spaces: The legal configs of each kernel that competes.
            options: Options of the search.
            known: Knowledge from before.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spaces = dict(spaces)
        self._objectives = options.objectives
        self._history = History(spaces)
        first = [
            (kernel, spaces[kernel].index_of(config))
            for kernel, config in known.starts
            if kernel in spaces and config in spaces[kernel]
        ]
        self._strategy = self._make_strategy(options, first, known)
        self._sampler = SpaceSampler(self._history, self._strategy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study = optuna.create_study(
                study_name=options.study_name,
                sampler=self._sampler,
                directions=["minimize"] * len(options.objectives),
            )
        self._trials: dict[int, tuple[optuna.Trial, datetime]] = {}
        url = options.storage_url if os.environ.get(COPY_VARIABLE, "") == "1" else ""
        self._mirror = Mirror(url, options.study_name, options.objectives) if url else None
        for each in known.past:
            self._remember(each)

    def _make_strategy(
        self, options: SearchOptions, starts: Sequence[tuple[str, int]], known: Known
    ) -> Strategy:
        seed, budget = options.seed, options.budget
        if options.sampler == "random":
            return RandomStrategy(self._history, seed)
        if options.sampler == "bruteforce":
            return SequenceStrategy(self._history)
        if options.sampler in FOREIGN:
            return ForeignStrategy(self._history, options.sampler, seed, starts)
        count = len(options.objectives)
        if count > 1:
            return ParetoStrategy(self._history, seed, starts, budget, objectives=count)
        return TileStrategy(self._history, seed, starts, budget, known.elsewhere, known.foretold)

    def _remember(self, past: Observation) -> None:
        observations = self._history.kernels.get(past.kernel)
        if observations is None or past.config not in observations.space:
            return
        index = observations.space.index_of(past.config)
        observations.learn(index, past.outcome, past.time_s)
        told = not past.outcome.failed and past.time_s is not None
        values = (past.time_s, *past.others) if told and past.time_s is not None else ()
        if len(values) in (0, len(self._objectives)):
            self._strategy.learn(past.kernel, index, past.outcome, values)
        if self._mirror is not None:  # an interrupted run may not have copied it
            self._mirror.add(finished_trial(self._spaces, past, self._objectives))

    def drop(self, kernel: str) -> None:
        """Suggests no more configs of a kernel."""
        self._history.kernels[kernel].dropped = True

    @property
    def stopped(self) -> str:
        """Reason why the search has ended; empty if it has not."""
        return self._strategy.stopped

    def ask(self, count: int = 1) -> list[Candidate]:
        """Returns configs to try next, all legal and new; fewer than `count`, or none, if no more are left."""
        found: list[Candidate] = []
        while len(found) < count and self._sampler.prepare():
            trial = self.study.ask()
            params = {name: trial.suggest_categorical(name, choices) for name, choices in self._choices(trial)}
            kernel, config = config_of(params, self._spaces)
            self._sampler.taken()
            self._trials[trial.number] = trial, datetime.now()
            found.append(Candidate(kernel, config, trial.number))
        return found

    def _choices(self, trial: optuna.Trial) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield KERNEL, tuple(self._spaces)
        for each in self._spaces[trial.params[KERNEL]].parameters:
            yield parameter_name(trial.params[KERNEL], each.name), each.values

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
        trial, asked_at = self._trials.pop(candidate.number)
        trial.set_user_attr(OUTCOME, outcome.value)
        if outcome.failed or time_s is None:
            self.study.tell(trial, state=TrialState.FAIL)
        elif outcome is Outcome.PRUNED:
            trial.set_user_attr(FEW_SAMPLES_S, time_s)
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, (time_s, *others))
        if self._mirror is not None:
            seen = Observation(candidate.kernel, candidate.config, outcome, time_s, tuple(others))
            self._mirror.add(finished_trial(self._spaces, seen, self._objectives, asked_at))

    def leaderboard(self) -> dict[tuple[str, Config], float]:
        """Estimated seconds of each measured config: the model's view, which removes noise."""
        return {
            (kernel, self._spaces[kernel][row]): time_s
            for (kernel, row), time_s in self._strategy.leaderboard().items()
        }

    def front(self) -> list[tuple[str, Config, tuple[float, ...]]]:
        """Kernel, config and objectives of each trial of this run on the Pareto front."""
        done = [each for each in self.study.get_trials(deepcopy=False) if each.state is TrialState.COMPLETE]
        best = [done[at] for at in front([each.values for each in done])]
        return [
            (*config_of(each.params, self._spaces), tuple(each.values))
            for each in sorted(best, key=lambda each: each.values)
        ]

    def close(self) -> str:
        """Waits until all finished trials are copied to the storage.

        Returns:
            Reason why they could not be copied; empty if they were. Our own records do not depend on it.
        """
        if self._mirror is None:
            return ""
        mirror, self._mirror = self._mirror, None
        return mirror.close()
