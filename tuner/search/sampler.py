"""An Optuna sampler that suggests only legal, untried configs, chosen by any strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from tuner.declare.space import Config, Space
from tuner.results.measurement import Outcome
from tuner.search.strategy import History, Observation, Strategy

#: Names in a trial: the kernel, and a parameter of a kernel.
KERNEL = "kernel"
#: User attribute of a stored trial that identifies it: kernel and config as text.
IDENTITY = "identity"
#: User attribute of a trial: its outcome.
OUTCOME = "outcome"
#: User attribute of a trial that was stopped early: the median of its few samples.
FEW_SAMPLES_S = "few_samples_s"


def parameter_name(kernel: str, parameter: str) -> str:
    """Name in Optuna of a kernel's parameter; parameters are conditional on the kernel."""
    return f"{kernel}.{parameter}"


def distributions(spaces: Mapping[str, Space]) -> dict[str, BaseDistribution]:
    """Every choice of a study as Optuna's distributions."""
    found: dict[str, BaseDistribution] = {KERNEL: CategoricalDistribution(tuple(spaces))}
    for kernel, space in spaces.items():
        for each in space.parameters:
            found[parameter_name(kernel, each.name)] = CategoricalDistribution(each.values)
    return found


def trial_params(kernel: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as the params of a trial."""
    return {KERNEL: kernel} | {parameter_name(kernel, name): value for name, value in config.items()}


def config_of(params: Mapping[str, Any], spaces: Mapping[str, Space]) -> tuple[str, Config]:
    """The kernel and the config of a trial's params."""
    kernel = params[KERNEL]
    names = [each.name for each in spaces[kernel].parameters]
    return kernel, Config({name: params[parameter_name(kernel, name)] for name in names})


class SpaceSampler(optuna.samplers.BaseSampler):
    """Lets a `Strategy` choose whole configs, and reports their results to it.

    Works with ``study.optimize`` as well as with ask and tell. A trial's outcome is its user attribute
    ``outcome``; without one a completed trial counts as MEASURED, a failed one as CRASHED.
    """

    def __init__(self, history: History, strategy: Strategy) -> None:
        """Joins the two.

        Args:
            history: Receives the results.
            strategy: Chooses configs; it reads the same history.
        """
        self._history = history
        self._strategy = strategy
        self._spaces = {name: each.space for name, each in history.kernels.items()}
        self._distributions = distributions(self._spaces)
        self._next: tuple[str, int] | None = None

    def prepare(self) -> bool:
        """Chooses the next trial's config ahead; False if nothing is left to request."""
        if self._next is None:
            self._next = self._strategy.choose()
            if self._next is not None:
                kernel, index = self._next
                self._history.kernels[kernel].asked[index] = None
        return self._next is not None

    def taken(self) -> None:
        """Forgets the prepared config: a trial has it.

        Optuna does not ask for params that have one value each, so that the config of a space of one would stay
        prepared for ever.
        """
        self._next = None

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All kernels' parameters; a trial then uses those of its kernel."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen config's params."""
        if not self.prepare() or self._next is None:
            study.stop()
            return {}
        kernel, index = self._next
        self._next = None
        return trial_params(kernel, self._spaces[kernel][index])

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Never needed: a config is chosen as a whole."""
        raise ValueError(f"a config is chosen as a whole, got an unknown parameter {param_name!r}")

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Learns from a finished trial."""
        if KERNEL not in trial.params:
            return
        kernel, config = config_of(trial.params, self._spaces)
        defaults = {TrialState.COMPLETE: Outcome.MEASURED, TrialState.PRUNED: Outcome.PRUNED}
        outcome = Outcome(trial.user_attrs.get(OUTCOME, defaults.get(state, Outcome.CRASHED)))
        time_s = values[0] if values else trial.user_attrs.get(FEW_SAMPLES_S)
        observations = self._history.kernels[kernel]
        index = observations.space.index_of(config)
        if self._next == (kernel, index):
            self.taken()
        observations.learn(index, outcome, time_s)
        told = values or ([time_s] if outcome is Outcome.PRUNED and time_s is not None else [])
        self._strategy.learn(kernel, index, outcome, tuple(told))


def finished_trial(
    spaces: Mapping[str, Space],
    seen: Observation,
    objectives: Sequence[str],
    asked_at: datetime | None = None,
) -> FrozenTrial:
    """A finished trial to be stored.

    Args:
        spaces: The study's spaces.
        seen: The config that was tried, with its result.
        objectives: The study's objectives.
        asked_at: Time of the request; now if unknown.
    """
    params = trial_params(seen.kernel, seen.config)
    every = distributions(spaces)
    attributes: dict[str, Any] = {OUTCOME: seen.outcome.value, IDENTITY: f"{seen.kernel} {seen.config}"}
    values, few = None, dict[int, float]()
    state = TrialState.FAIL
    if seen.outcome is Outcome.PRUNED and seen.time_s is not None:
        state = TrialState.PRUNED
        attributes[FEW_SAMPLES_S] = seen.time_s
        few = {0: seen.time_s} if len(objectives) == 1 else {}
    elif seen.outcome is Outcome.MEASURED and seen.time_s is not None:
        values = (seen.time_s, *seen.others)
        if len(values) == len(objectives):
            state = TrialState.COMPLETE
    trial = create_trial(
        params=params,
        distributions={name: every[name] for name in params},
        # A pruned trial has the value that it had when it was stopped, so that the dashboard shows it.
        values=values if state is TrialState.COMPLETE else list(few.values()) or None,
        intermediate_values=few,
        state=state,
        user_attrs=attributes,
    )
    trial.datetime_start = asked_at or trial.datetime_start
    return trial
