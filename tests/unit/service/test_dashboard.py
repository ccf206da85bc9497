"""Studies for optuna-dashboard, from records."""

from __future__ import annotations

from pathlib import Path

import optuna
from fixtures.records import record, square

from tuner.results.record import Role
from tuner.search.optuna_bridge import Shown
from tuner.service.dashboard import objectives_of, show, show_last
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
        assert show_last(store, shown) == 2
        assert len(shown.storage.get_all_studies()) == 2


def test_a_studys_name_tells_its_objectives() -> None:
    assert objectives_of("gemm on X, cold, kernels 1234") == ("time",)
    assert objectives_of("gemm on X, cold, kernels 1234, objectives time energy, error limit 2") == (
        "time",
        "energy",
    )
