"""Configs and the library timed in turn within an open study, on a fake device."""

from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, database, fault_configs, request, write_device

from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.model.quality import Pick, timed_in_turn
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Role
from tuner.store import Store
from tuner.study.study import open_study


def timed(
    tmp_path: Path, *configs: dict[str, Any], **device: Any
) -> tuple[dict[Pick, Measurement], Measurement | None]:
    """These configs of the toy after a study of a few trials; nothing of it is stored."""
    asked = request(write_device(tmp_path / "device.json", **device), trials=4)
    (kernel,) = asked.kernels
    with Store.open(database(tmp_path)) as store, open_study(asked, store) as study:
        study.search()
        before = len(store.records())
        rendered = {
            (kernel.name, Config(each)): render(kernel, asked.problem, Config(each)) for each in configs
        }
        found = timed_in_turn(study, rendered, 0.3)
        assert len(store.records()) == before
        assert store.records(role=Role.TRIAL)
    return found


def of(found: dict[Pick, Measurement], config: dict[str, Any]) -> Measurement | None:
    """The measurement of a config."""
    return {config: each for (_, config), each in found.items()}.get(Config(config))


def test_configs_and_the_library_are_timed_in_one_run(tmp_path: Path) -> None:
    worse = {**BEST, "BLOCK": 128}
    found, library = timed(tmp_path, BEST, worse, baseline_s=2 * BEST_S)
    best = of(found, BEST)
    assert best is not None
    assert best.time_s == pytest.approx(BEST_S, rel=0.2)
    assert of(found, worse).time_s > best.time_s
    assert library.time_s == pytest.approx(2 * BEST_S, rel=0.2)


def test_what_does_not_compile_is_missing_and_what_is_wrong_says_so(tmp_path: Path) -> None:
    fault = fault_configs()
    found, _ = timed(tmp_path, BEST, fault["compile_failed"], fault["wrong_result"], faults=True)
    assert of(found, fault["compile_failed"]) is None
    assert of(found, fault["wrong_result"]).outcome is Outcome.WRONG_RESULT
    assert of(found, BEST).outcome is Outcome.MEASURED


def test_of_nothing_that_compiles_the_library_of_before_is_told(tmp_path: Path) -> None:
    found, library = timed(tmp_path, fault_configs()["compile_failed"], faults=True, baseline_s=2 * BEST_S)
    assert found == {}
    assert library.time_s == pytest.approx(2 * BEST_S, rel=0.2)
