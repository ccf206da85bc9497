"""Finished trials in Optuna's form: copied into its tables, or shown from memory."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from fixtures.landscape import SPACE

from tuner.declare.space import Config
from tuner.results.measurement import Outcome
from tuner.search import Observation
from tuner.search import optuna_bridge as module
from tuner.search.optuna_bridge import Shown, copy_trials

#: States of trials whose results are those of `trials`.
STATES = ["COMPLETE", "PRUNED", "FAIL"]


def trials(count: int) -> list[Observation]:
    """Measured, stopped early and failed in turn; the first is the fastest."""
    results = []
    for number in range(count):
        outcome = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)[number % 3]
        results.append(Observation("k", SPACE[number], outcome, None if outcome.failed else 1.0 + number))
    return results


def is_that(stored: optuna.Study, count: int) -> bool:
    """Whether a study of Optuna has so many of `trials`, with names and reasons."""
    shown = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    assert [trial.state.name for trial in stored.trials] == (STATES * count)[:count]
    assert [trial.value for trial in stored.trials if trial.state in shown][:2] == [1.0, 2.0]
    assert stored.trials[1].intermediate_values == {0: 2.0}
    assert stored.trials[2].user_attrs["outcome"] == "WRONG_RESULT"
    assert {name.removeprefix("k.") for name in stored.best_params} == {"kernel", *SPACE[0]}
    return (stored.best_value, stored.metric_names) == (1.0, ["time"])


def test_finished_trials_are_copied_to_the_storage_once(tmp_path: Path) -> None:
    url, spaces = f"sqlite:///{tmp_path / 'studies.db'}", {"k": SPACE}
    for count in (6, 7, 7):
        assert copy_trials(url, "copied", ("time",), spaces, trials(count)) == ""
    assert is_that(optuna.load_study(study_name="copied", storage=url), 7)
    absent = f"sqlite:///{tmp_path / 'absent' / 'studies.db'}"
    why = copy_trials(absent, "copied", ("time",), spaces, trials(3))
    assert why.startswith("trials were not copied for the dashboard: ")


def test_a_study_is_shown_with_all_that_it_has_by_now() -> None:
    shown = Shown()
    number = shown.add("one", ("time",), trials(5))
    assert shown.add("one", ("time",), trials(5)) == number
    shown.add("one", ("time",), trials(7))
    assert is_that(optuna.load_study(study_name="one", storage=shown.storage), 7)


def test_several_objectives_are_shown_by_name() -> None:
    shown = Shown()
    both = Observation("k", SPACE[0], Outcome.MEASURED, 1.0, (50.0,))
    shown.add("both", ("time", "energy"), [both])
    stored = optuna.load_study(study_name="both", storage=shown.storage)
    assert (stored.metric_names, stored.trials[0].values) == (["time", "energy"], [1.0, 50.0])


def test_the_first_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STUDIES", 3)
    shown = Shown()
    for name in "abcde":
        shown.add(name, ("time",), [Observation("none", Config({}), Outcome.MEASURED, 1.0)])
    assert {study.study_name for study in shown.storage.get_all_studies()} == {"c", "d", "e"}
