"""Optuna: its samplers as strategies.

Our own strategies do not need it, so it loads where it is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import InputError
from tuner.results.measurement import Outcome
from tuner.search.strategy import History, Place, RandomStrategy, Strategy

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

#: Samplers by the names that users give: Optuna's class and its options beside the seed.
OPTUNA_SAMPLERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tpe": ("TPESampler", {"multivariate": True}),
    "gp": ("GPSampler", {}),
    "cmaes": ("CmaEsSampler", {"warn_independent_sampling": False}),
    "qmc": ("QMCSampler", {"warn_independent_sampling": False}),
    "nsga2": ("NSGAIISampler", {}),
}
KERNEL = "kernel"
#: Number of legal configs among which the nearest is searched.
NEAREST_AMONG = 100_000


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna without its progress messages and its warnings of what is experimental."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


class OptunaStrategy(Strategy):
    """Uses one of Optuna's samplers, in a study of its own that receives the configs really tried.

    Each suggestion becomes the nearest legal, untried config.
    """

    def __init__(self, history: History, name: str, seed: int, starts: Sequence[Place] = ()) -> None:
        """Begins.

        Args:
            history: Everything known so far.
            name: One of `OPTUNA_SAMPLERS`.
            seed: Seed of the sampler.
            starts: Kernels and positions to try first.
        """
        import optuna

        super().__init__(history, starts)
        self._name = name
        self._random = RandomStrategy(history, seed)
        self._rng = np.random.default_rng(seed)
        sampler, options = OPTUNA_SAMPLERS[name]
        with quiet():
            self._study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed, **options))
        self._distributions = self._flat()
        self._attributes: dict[Place, dict[str, object]] = {}

    def _flat(self) -> dict[str, BaseDistribution]:
        """All kernels' parameters side by side, so that a sampler always sees the same choices."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        names = tuple(name for name, observations in self._history.kernels.items() if len(observations.space))
        flat: dict[str, BaseDistribution] = {}
        if len(names) > 1:
            flat[KERNEL] = CategoricalDistribution(names)
        for name in names:
            for parameter in self._history.kernels[name].space.parameters:
                last = len(parameter.values) - 1
                if last and parameter.scale == "categorical":
                    flat[f"{name}.{parameter.name}"] = CategoricalDistribution(tuple(range(last + 1)))
                elif last:
                    flat[f"{name}.{parameter.name}"] = IntDistribution(0, last)
        return flat

    def choose(self) -> Place | None:
        """See `Strategy`."""
        import optuna

        queued = self._queued()
        if queued is not None:
            return queued
        if not self._history.left or not self._distributions:
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
        left = [name for name, observations in self._history.kernels.items() if observations.left]
        kernel = trial.params.get(KERNEL)
        kernel = kernel if kernel in left else left[0]
        index = self._nearest(kernel, trial.params)
        # The suggestion itself is never measured; the measured config joins the study with its result.
        suggestion = self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        self._attributes[kernel, index] = dict(suggestion.system_attrs)
        return kernel, index

    def _nearest(self, kernel: str, params: Mapping[str, object]) -> int:
        observations = self._history.kernels[kernel]
        size = len(observations.space)
        rows = np.arange(size) if size <= NEAREST_AMONG else self._rng.integers(0, size, NEAREST_AMONG)
        rows = rows[~np.isin(rows, np.fromiter(observations.requested, np.int64, len(observations.requested)))]
        if not len(rows):
            return self._random.choose_of(kernel)
        space, away = observations.space, np.zeros(len(rows))
        codes = space.codes[rows]
        for column, (parameter, positions) in enumerate(zip(space.parameters, space.positions, strict=True)):
            wanted, own = params.get(f"{kernel}.{parameter.name}"), codes[:, column]
            if isinstance(wanted, int):
                away += own != wanted if positions is None else np.abs(positions[own] - positions[wanted])
        return int(rows[int(np.argmin(away))])

    def learn(self, kernel: str, index: int, outcome: Outcome, values: tuple[float, ...]) -> None:
        """Adds the config really tried to the sampler's study, without failures."""
        from optuna.trial import create_trial

        if not self._distributions or outcome.failed or not values:
            return
        space = self._history.kernels[kernel].space
        # Parameters of other kernels do not affect the time, so any value will do.
        params: dict[str, object] = dict.fromkeys(self._distributions, 0) | {KERNEL: kernel}
        for parameter, code in zip(space.parameters, space.codes[index].tolist(), strict=True):
            params[f"{kernel}.{parameter.name}"] = int(code)
        self._study.add_trial(
            create_trial(
                params={name: params[name] for name in self._distributions}, value=math.log(values[0]),
                distributions=self._distributions, system_attrs=self._attributes.pop((kernel, index), {}),
            )
        )  # fmt: skip
