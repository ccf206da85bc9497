"""Trials copied to Optuna's storage, for its dashboard."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from fixtures.landscape import SPACE

from tuner.results.measurement import Outcome
from tuner.search import Known, Observation, Search, SearchOptions


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copying process, which is the last to be served on a busy machine, has the time it needs."""
    monkeypatch.setenv("TUNER_DASHBOARD", "1")
    monkeypatch.setattr("tuner.search.optuna_study.CLOSE_WITHIN_S", 120.0)


@pytest.mark.usefixtures("patient")
def test_finished_trials_are_copied_to_the_storage_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="copied", storage_url=url))
    past = []
    for number, each in enumerate(search.ask(6)):
        outcome = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)[number % 3]
        time_s = None if outcome.failed else 1.0 + number
        search.tell(each, outcome, time_s)
        past.append(Observation(each.kernel, each.config, outcome, time_s))
    assert search.close() == ""
    again = Search({"k": SPACE}, SearchOptions(seed=1, study_name="copied", storage_url=url), Known(past=past))
    (each,) = again.ask()
    again.tell(each, Outcome.MEASURED, 0.5)
    assert again.close() == ""
    assert again.close() == ""
    stored = optuna.load_study(study_name="copied", storage=url)
    states = [each.state.name for each in stored.trials]
    assert states == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert [each.value for each in stored.trials if each.state.name == "PRUNED"] == [2.0, 5.0]
    assert stored.trials[1].intermediate_values == {0: 2.0}
    assert stored.best_value == 0.5
    assert stored.metric_names == ["time"]
    assert {name.removeprefix("k.") for name in stored.best_params} == {"kernel", *each.config}
    assert stored.trials[2].user_attrs["outcome"] == "WRONG_RESULT"


@pytest.mark.usefixtures("patient")
def test_a_storage_that_cannot_be_written_is_no_harm_but_said(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'absent' / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", storage_url=url))
    for each in search.ask(3):
        search.tell(each, Outcome.MEASURED, 1.0)
    assert search.close().startswith("trials were not copied for the dashboard: ")


def test_nothing_is_copied_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNER_DASHBOARD", raising=False)
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    search = Search({"k": SPACE}, SearchOptions(seed=1, study_name="s", storage_url=url))
    for each in search.ask(3):
        search.tell(each, Outcome.MEASURED, 1.0)
    assert search.close() == ""
    assert not (tmp_path / "studies.db").exists()
