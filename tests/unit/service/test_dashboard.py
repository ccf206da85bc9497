"""Studies for optuna-dashboard, from records."""

from __future__ import annotations

from pathlib import Path

import optuna
from fixtures.records import record, square

from tuner.results.record import Role
from tuner.service.dashboard import Shown, show
from tuner.store import Store


def test_a_study_is_shown_from_its_records(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as store:
        store.add([record(square(64), 1e-3 * (1 + at), config={"BM": 8 << at}, study="one") for at in range(4)])
        store.add([record(square(64), 1e-9, role=Role.BASELINE, kernel="cuBLAS", config={}, study="one")])
        store.add([record(square(128), 2e-3, study="two")])
        shown = Shown()
        number = show(store, "one", shown)
        assert number is not None
        seen = optuna.load_study(study_name="one", storage=shown.storage)
        assert (len(seen.trials), seen.best_value) == (4, 1e-3)
        assert seen.best_params["tiled.BM"] == 8
        assert show(store, "three", shown) is None
        store.add([record(square(64), 1e-3, config={"TILES": [8, at]}, study="lists") for at in range(2)])
        assert show(store, "lists", shown) is not None
        assert (
            optuna.load_study(study_name="lists", storage=shown.storage).best_params["tiled.TILES"] == "[8, 0]"
        )
