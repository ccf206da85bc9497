"""The sampler in a study of Optuna alone."""

from __future__ import annotations

import optuna
from fixtures.landscape import PARAMETERS, SPACE, time_of

from tuner.declare.space import Config, Space, choice
from tuner.results.measurement import Outcome
from tuner.search import Search, SearchOptions
from tuner.search.sampler import SpaceSampler
from tuner.search.strategy import History
from tuner.search.tile import TileStrategy


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


def test_a_config_that_has_no_other_beside_it_is_tried_once() -> None:
    """Optuna asks nobody for parameters of one value, so that the config would stay the next one for ever."""
    single = Space.build((choice("X", 4), choice("MODE", "a")), (), None, None)
    for sampler in ("tile", "random", "tpe"):
        search = Search({"k": single}, SearchOptions(seed=1, study_name="s", sampler=sampler))
        (candidate,) = search.ask(5)
        assert candidate.config == {"X": 4, "MODE": "a"}
        search.tell(candidate, Outcome.MEASURED, 1.0)
        assert search.ask() == []
        assert search.stopped


def test_it_is_tried_once_in_a_study_of_optuna_alone() -> None:
    history = History({"k": Space.build((choice("X", 4),), (), None, None)})
    study = optuna.create_study(sampler=SpaceSampler(history, TileStrategy(history, seed=1)))
    seen = []

    def objective(trial: optuna.Trial) -> float:
        seen.append((trial.suggest_categorical("kernel", ("k",)), trial.suggest_categorical("k.X", (4,))))
        return 1.0

    study.optimize(objective, n_trials=5)
    assert seen[0] == ("k", 4)
    assert history.kernels["k"].asked.keys() == {0}
