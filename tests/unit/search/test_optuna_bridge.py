"""Studies in Optuna's form, shown from memory."""

from __future__ import annotations

import optuna
from fixtures.landscape import SPACE

from tuner.results.measurement import Outcome
from tuner.search import Observation
from tuner.service.dashboard import Shown

#: States of trials whose results are those of `trials`.
STATES = ["COMPLETE", "PRUNED", "FAIL"]


def trials(count: int) -> list[Observation]:
    """Measured, stopped early and failed in turn; the first is the fastest."""
    results = []
    for number in range(count):
        outcome = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)[number % 3]
        results.append(Observation("k", SPACE[number], outcome, None if outcome.failed else 1.0 + number))
    return results


def test_a_study_is_shown_with_all_that_it_has_by_now() -> None:
    shown = Shown()
    number = shown.add("one", ("time",), trials(5))
    assert shown.add("one", ("time",), trials(5)) == number
    shown.add("one", ("time",), trials(7))
    stored = optuna.load_study(study_name="one", storage=shown.storage)
    assert [trial.state.name for trial in stored.trials] == (STATES * 3)[:7]
    assert [trial.value for trial in stored.trials][:2] == [1.0, 2.0]
    assert stored.trials[1].intermediate_values == {0: 2.0}
    assert stored.trials[2].user_attrs["outcome"] == "WRONG_RESULT"
    assert {name.removeprefix("k.") for name in stored.best_params} == {"kernel", *SPACE[0]}
    assert (stored.best_value, stored.metric_names) == (1.0, ["time"])
