"""What was measured on another board of the model is seen as if this one had measured it."""

from pathlib import Path

import pytest
from fixtures.fake_device import BEST_S, request, stored, study, write_device

from tuner.results.record import Role
from tuner.store import Store
from tuner.study.study import open_study


def test_a_study_goes_on_with_what_a_slower_board_measured(here: Path) -> None:
    slow = write_device(
        here / "slow.json", info={"uuid": "FAKE-2"}, baseline_s=2.2 * BEST_S,
        rules=[{"where": {}, "latency_s": 1.1 * BEST_S}],
    )  # fmt: skip
    fast = write_device(here / "fast.json", baseline_s=2 * BEST_S)
    study(here, slow, trials=5)
    assert {each.device.uuid for each in stored(here)} == {"FAKE-2"}
    with Store.open(f"sqlite:///{here}/studies.db") as store:
        with open_study(request(fast, trials=6), store) as opened:
            assert opened.progress.trials == 5
            assert opened.leaderboard.best_s == pytest.approx(BEST_S, rel=0.01)
            opened.search()
            opened.finals()
        boards = {each.device.uuid for each in store.records(role=Role.FINAL)}
        assert boards == {"FAKE-1", "FAKE-2"}
