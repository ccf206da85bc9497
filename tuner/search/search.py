"""A study's search: ask for configs, tell what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import TrialState

from tuner.errors import UnknownName
from tuner.measurement import Outcome
from tuner.search.history import History, Observation
from tuner.search.sampler import KERNEL, OUTCOME, SpaceSampler, config_of, parameter_name
from tuner.search.strategy import RandomStrategy, Strategy
from tuner.search.tile import TileStrategy
from tuner.space import Config, Space

SAMPLERS = ("tile", "random")


@dataclass(frozen=True)
class Candidate:
    """A config to try.

    Attributes:
        kernel: Name of the kernel.
        config: Legal, and never asked before in this study.
        number: Of the trial.
    """

    kernel: str
    config: Config
    number: int


class Search:
    """Asks for legal configs that were never tried, the most promising first.

    Attributes:
        study: The Optuna study, in memory.
    """

    def __init__(
        self,
        spaces: Mapping[str, Space],
        *,
        sampler: str = "tile",
        seed: int,
        study_name: str,
        storage_url: str | None = None,
        starts: Sequence[tuple[str, Config]] = (),
        past: Sequence[Observation] = (),
        budget: int | None = None,
    ) -> None:
        """Opens a search.

        Args:
            spaces: The legal configs of each kernel that competes.
            sampler: ``tile``, or the name of one of Optuna's.
            seed: The same seed and tells give the same configs.
            study_name: Name of the study in the storage.
            storage_url: Database where finished trials are copied to for optuna-dashboard.
            starts: Configs to try first; those that are not legal here are left out.
            past: Trials of this study from before; never asked again.
            budget: Trials that the study may take in all, past ones included; None where time decides.

        Raises:
            UnknownName: No such sampler.
        """
        if sampler not in SAMPLERS:
            raise UnknownName("sampler", sampler, SAMPLERS)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spaces = dict(spaces)
        self._history = History(spaces)
        for each in past:
            tried = self._history.kernels.get(each.kernel)
            if tried is not None and each.config in tried.space:
                tried.learn(tried.space.index_of(each.config), each.outcome, each.time_s)
        first = [
            (kernel, spaces[kernel].index_of(config))
            for kernel, config in starts
            if kernel in spaces and config in spaces[kernel]
        ]
        self._strategy: Strategy = (
            RandomStrategy(self._history, seed)
            if sampler == "random"
            else TileStrategy(self._history, seed, first, budget)
        )
        self._sampler = SpaceSampler(self._history, self._strategy)
        self.study = optuna.create_study(study_name=study_name, sampler=self._sampler, direction="minimize")
        self._trials: dict[int, optuna.Trial] = {}

    @property
    def stopped(self) -> str:
        """Why nothing more is asked; empty while there is something."""
        return self._strategy.stopped

    def ask(self, count: int = 1) -> list[Candidate]:
        """Configs to try next, all legal and new; fewer than `count` (or none) where no more are left."""
        found: list[Candidate] = []
        while len(found) < count and self._sampler.prepare():
            trial = self.study.ask()
            params = {name: trial.suggest_categorical(name, choices) for name, choices in self._choices(trial)}
            kernel, config = config_of(params, self._spaces)
            self._trials[trial.number] = trial
            found.append(Candidate(kernel, config, trial.number))
        return found

    def _choices(self, trial: optuna.Trial) -> Iterator[tuple[str, tuple[Any, ...]]]:
        yield KERNEL, tuple(self._spaces)
        for each in self._spaces[trial.params[KERNEL]].parameters:
            yield parameter_name(trial.params[KERNEL], each.name), each.values

    def tell(self, candidate: Candidate, outcome: Outcome, time_s: float | None) -> None:
        """Takes in what came of a candidate.

        Args:
            candidate: From `ask`.
            outcome: How its measurement ended.
            time_s: Seconds; a lower bound of them when PRUNED; None for a failure.
        """
        trial = self._trials.pop(candidate.number)
        trial.set_user_attr(OUTCOME, outcome.value)
        if outcome.failed or time_s is None:
            self.study.tell(trial, state=TrialState.FAIL)
        elif outcome is Outcome.PRUNED:
            trial.report(time_s, 0)
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, time_s)

    def close(self) -> None:
        """Writes what is not yet in the storage."""
