"""Studies for optuna-dashboard, from records."""

import optuna
from fixtures.records import record, square

from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.service.dashboard import Shown, show
from tuner.store import Store


def test_a_study_is_shown_with_all_of_its_records_so_far(store: Store) -> None:
    shown = Shown()
    slow = Measurement(Outcome.PRUNED, "cannot win", samples_s=(2e-3,))
    later = {32: slow, 64: Measurement(Outcome.WRONG_RESULT, "differs")}
    store.add([record(square(64), 1e-3 * (1 + at), config={"BM": 8 << at}, study="one") for at in range(2)])
    store.add([record(square(64), 1e-9, role=Role.BASELINE, kernel="cuBLAS", config={}, study="one")])
    store.add([record(square(128), 2e-3, study="two")])
    number = show(store, "one", shown)
    assert number is not None
    assert show(store, "one", shown) == number
    for tile, measurement in later.items():
        store.add(record(square(64), measurement=measurement, config={"BM": tile}, study="one"))
    assert show(store, "one", shown) is not None
    assert show(store, "three", shown) is None
    store.add([record(square(64), 1e-3, config={"TILES": [8, at]}, study="lists") for at in range(2)])
    assert show(store, "lists", shown) is not None
    seen, lists = (optuna.load_study(study_name=name, storage=shown.storage) for name in ("one", "lists"))
    assert [trial.state.name for trial in seen.trials] == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL"]
    assert (seen.best_value, seen.best_params["tiled.BM"], seen.metric_names) == (1e-3, 8, ["time"])
    assert seen.trials[2].intermediate_values == {0: 2e-3}
    assert seen.trials[3].user_attrs["outcome"] == "WRONG_RESULT"
    assert lists.best_params["tiled.TILES"] == "[8, 0]"
