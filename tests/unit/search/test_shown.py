"""Studies in Optuna's form, made when somebody looks."""

from __future__ import annotations

import optuna
from fixtures.landscape import SPACE

from tuner.declare.space import Config
from tuner.results.measurement import Outcome
from tuner.search import Observation
from tuner.search import optuna_study as module
from tuner.search.optuna_study import Shown


def trials(count: int) -> list[Observation]:
    outcomes = (Outcome.MEASURED, Outcome.PRUNED, Outcome.WRONG_RESULT)
    found = []
    for number in range(count):
        outcome = outcomes[number % 3]
        time_s = None if outcome.failed else 1.0 + number
        found.append(Observation("k", SPACE[number], outcome, time_s))
    return found


def test_a_study_is_shown_with_all_that_it_has_by_now() -> None:
    shown = Shown()
    number = shown.add("one", ("time",), trials(5))
    assert shown.add("one", ("time",), trials(5)) == number
    shown.add("one", ("time",), trials(7))
    seen = optuna.load_study(study_name="one", storage=shown.storage)
    assert [each.state.name for each in seen.trials] == ["COMPLETE", "PRUNED", "FAIL"] * 2 + ["COMPLETE"]
    assert (seen.best_value, seen.metric_names) == (1.0, ["time"])
    assert {name.removeprefix("k.") for name in seen.best_params} == {"kernel", *SPACE[0]}
    assert seen.trials[2].user_attrs["outcome"] == "WRONG_RESULT"


def test_several_objectives_are_shown_by_name() -> None:
    shown = Shown()
    both = Observation("k", SPACE[0], Outcome.MEASURED, 1.0, (50.0,))
    shown.add("both", ("time", "energy"), [both])
    seen = optuna.load_study(study_name="both", storage=shown.storage)
    assert (seen.metric_names, seen.trials[0].values) == (["time", "energy"], [1.0, 50.0])


def test_the_first_ones_make_room() -> None:
    shown = Shown()
    for number in range(module.MOST_STUDIES + 2):
        shown.add(str(number), ("time",), [Observation("none", Config({}), Outcome.MEASURED, 1.0)])
    names = {each.study_name for each in shown.storage.get_all_studies()}
    assert len(names) == module.MOST_STUDIES
    assert "0" not in names
    assert str(module.MOST_STUDIES + 1) in names
