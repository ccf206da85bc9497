"""The sampler in a study of Optuna alone."""

from __future__ import annotations

import optuna
import pytest
from fixtures.landscape import PARAMETERS, SPACE, time_of

from tuner.declare.space import Config
from tuner.search.history import History
from tuner.search.sampler import SpaceSampler
from tuner.search.tile import TileStrategy

pytestmark = pytest.mark.usefixtures("one_blas_thread")


def test_the_sampler_works_in_a_study_of_optuna_alone() -> None:
    history = History({"k": SPACE})
    study = optuna.create_study(sampler=SpaceSampler(history, TileStrategy(history, seed=1)))

    def objective(trial: optuna.Trial) -> float:
        assert trial.suggest_categorical("kernel", ("k",)) == "k"
        values = {each.name: trial.suggest_categorical(f"k.{each.name}", each.values) for each in PARAMETERS}
        if values["MODE"] == "c":
            raise optuna.TrialPruned
        return time_of(Config(values))

    study.optimize(objective, n_trials=25)
    assert len(history.kernels["k"].asked) == 25
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 25
