"""What was measured on another board of the model is seen as if this one had measured it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import BEST_S, BOARD, request, stored, study, write_device
from fixtures.records import record, square
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.hardware import DeviceInfo
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Record, Role
from tuner.store import Store
from tuner.study.session import MOST_APART, on_board
from tuner.study.study import open_study


def on(board: str, time_s: float) -> Record:
    """A record of a board, whose median is this."""
    device = replace(DeviceInfo("NVIDIA H200", "cuda"), uuid=board)
    measured = Measurement(Outcome.MEASURED, samples_s=(0.9 * time_s, time_s, 1.2 * time_s))
    return replace(record(square(64)), device=device, measurement=measured)


@given(ours=st.floats(1e-4, 1e-3), apart=st.floats(1 / MOST_APART + 0.01, MOST_APART - 0.01))
def test_times_keep_their_ratio_to_the_library_of_their_board(ours: float, apart: float) -> None:
    records = [on("A", 2e-3), on("B", 2e-3 * apart), on("C", 5e-3), on("D", 5e-3)]
    library_s = {"A": ours, "B": ours * apart, "D": 3 * ours}
    mine, theirs, unknown, disturbed = (
        on_board("A", record, library_s).measurement.time_s for record in records
    )
    assert mine == 2e-3
    assert theirs == pytest.approx(2e-3)
    assert unknown == disturbed == 5e-3, "without a credible time of the library a board is left as it is"


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
    assert json.loads((here / "fast.json").read_text())["info"]["uuid"] == BOARD["uuid"]
