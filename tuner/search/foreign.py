"""Optuna's own samplers as strategies: each suggestion becomes the nearest legal, untried config."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tuner.errors import InputError
from tuner.results.measurement import Outcome
from tuner.search.strategy import History, RandomStrategy, observed

Make = Callable[[int], optuna.samplers.BaseSampler]

#: Samplers by the names that users give.
FOREIGN: dict[str, Make] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=True),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "qmc": lambda seed: optuna.samplers.QMCSampler(seed=seed, warn_independent_sampling=False),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}
KERNEL = "kernel"
#: Number of legal configs among which the nearest is searched.
NEAREST_AMONG = 100_000


class ForeignStrategy:
    """Uses one of Optuna's samplers, in a study of its own that receives the configs really tried."""

    def __init__(self, history: History, name: str, seed: int, starts: Sequence[tuple[str, int]] = ()) -> None:
        """Begins.

        Args:
            history: Everything known so far.
            name: One of `FOREIGN`.
            seed: Seed of the sampler.
            starts: Kernels and positions to try first.
        """
        self.stopped = ""
        self._history = history
        self._name = name
        self._starts = list(starts)
        self._random = RandomStrategy(history, seed)
        self._rng = np.random.default_rng(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(sampler=FOREIGN[name](seed))
        self._distributions = self._flat()
        self._attributes: dict[tuple[str, int], dict[str, object]] = {}

    def _flat(self) -> dict[str, BaseDistribution]:
        """All kernels' parameters side by side, so that a sampler always sees the same choices."""
        names = tuple(name for name, observations in self._history.kernels.items() if len(observations.space))
        found: dict[str, BaseDistribution] = {}
        if len(names) > 1:
            found[KERNEL] = CategoricalDistribution(names)
        for name in names:
            for each in self._history.kernels[name].space.parameters:
                last = len(each.values) - 1
                if last:
                    found[f"{name}.{each.name}"] = (
                        CategoricalDistribution(tuple(range(last + 1)))
                        if each.scale == "categorical"
                        else IntDistribution(0, last)
                    )
        return found

    def choose(self) -> tuple[str, int] | None:
        """See `Strategy`."""
        while self._starts:
            kernel, index = self._starts.pop(0)
            observations = self._history.kernels[kernel]
            if index not in observations.asked and not observations.dropped:
                return kernel, index
        if self._history.covered or not self._distributions:
            chosen = self._random.choose()
            self.stopped = self._random.stopped
            return chosen
        try:
            trial = self._study.ask(self._distributions)
        except ModuleNotFoundError as error:
            raise InputError(
                f"the sampler {self._name} needs the package {error.name}, which is not installed; "
                "install it, or choose the sampler tile"
            ) from error
        params = trial.params
        kernel = params.get(KERNEL, next(n for n, each in self._history.kernels.items() if len(each.space)))
        if self._history.kernels[kernel].covered:
            kernel = next(name for name, each in self._history.kernels.items() if not each.covered)
        index = self._nearest(kernel, params)
        # The suggestion itself is never measured; the measured config joins the study with its result.
        told = self._study.tell(trial, state=TrialState.FAIL)
        self._attributes[kernel, index] = dict(told.system_attrs)
        return kernel, index

    def _nearest(self, kernel: str, params: dict[str, object]) -> int:
        observations = self._history.kernels[kernel]
        size = len(observations.space)
        rows = np.arange(size) if size <= NEAREST_AMONG else self._rng.integers(0, size, NEAREST_AMONG)
        rows = rows[~np.isin(rows, np.fromiter(observations.asked, np.int64, len(observations.asked)))]
        if not len(rows):
            return self._random.choose_of(kernel)
        codes = observations.space.codes[rows]
        away: NDArray[np.float64] = np.zeros(len(rows))
        for column, (each, positions) in enumerate(
            zip(observations.space.parameters, observations.space.positions, strict=True)
        ):
            wanted = params.get(f"{kernel}.{each.name}")
            if not isinstance(wanted, int):
                continue
            if positions is None:
                away += codes[:, column] != wanted
            else:
                away += np.abs(positions[codes[:, column]] - positions[wanted])
        return int(rows[int(np.argmin(away))])

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Adds the config really tried to the sampler's study, without failures."""
        if not self._distributions or outcome.failed or not values:
            return
        codes = self._history.kernels[kernel].space.codes[index]
        # Parameters of other kernels do not affect the time, so any value will do.
        params: dict[str, object] = {}
        for name, each in self._distributions.items():
            low = each.low if isinstance(each, IntDistribution) else 0
            params[name] = kernel if name == KERNEL else low
        for each_parameter, code in zip(
            self._history.kernels[kernel].space.parameters, codes.tolist(), strict=True
        ):
            if f"{kernel}.{each_parameter.name}" in params:
                params[f"{kernel}.{each_parameter.name}"] = int(code)
        self._study.add_trial(
            create_trial(
                params=params,
                distributions=self._distributions,
                value=math.log(values[0]),
                system_attrs=self._attributes.pop((kernel, index), {}),
            )
        )

    def leaderboard(self) -> dict[tuple[str, int], float]:
        """See `Strategy`."""
        return observed(self._history)
