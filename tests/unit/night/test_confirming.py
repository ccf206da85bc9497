"""Nights go back by themselves only from what is slower everywhere, and never from what is not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.fake_device import BOARD
from fixtures.records import champion, measured, record

from tuner.declare.hardware import DeviceInfo
from tuner.night.changes import ProblemNight
from tuner.night.sentinels import Watched
from tuner.night.stored import Player, Sentinel
from tuner.night.watching import go_back
from tuner.results.record import ProblemKey, Role
from tuner.results.sentinel import BEFORE, CHAMPION
from tuner.store import Store
from tuner.study import crowns

KEY = ProblemKey("toy", (("n", 1000),), "float32", "plain")


def watch(store: Store, board: str, slower: float) -> ProblemNight:
    """A night of a board and its repeats; the champion is so much slower, and was in the last night, too."""
    device = DeviceInfo.from_json({**BOARD, "uuid": board})
    random = np.random.default_rng(1)

    def timed(process: int) -> Sentinel:
        noise = random.normal(0, 0.001, 40)
        rounds = tuple((1e-3 * (1 + slower) * np.exp(noise)).tolist())
        players = (
            Player(CHAMPION, "blocks", {"BLOCK": 2}, rounds),
            Player(BEFORE, "blocks", {"BLOCK": 1}, (1e-3,) * 40),
        )
        return Sentinel(KEY, device, "cold", "night", process, players)

    toy: Any = None
    return ProblemNight(
        [timed(1)], timed(1), [timed(process) for process in range(2, 6)],
        Watched(toy, "cold", (), crowns.reign(store, KEY)),
    )  # fmt: skip


@pytest.fixture
def store(here: Path) -> Store:
    """Two champions of the toy, the second for being faster."""
    opened = Store.open("sqlite:///studies.db")
    device = DeviceInfo.from_json(BOARD)
    for day, verdict in ((1, "first"), (2, "faster"), (3, "faster")):
        of = record(KEY, 1e-3, device, kernel="blocks", config={"BLOCK": day - 1}, role=Role.FINAL,
                    measurement=measured(1e-3))  # fmt: skip
        opened.crown(champion(of, f"2026-01-0{day}T00:00:00.000000+00:00", verdict=verdict))
    return opened


@pytest.mark.parametrize(
    ("slower", "gone"), [((0.03, 0.03), True), ((0.03, 0.0), False), ((0.015, 0.015), False)]
)
def test_a_night_goes_back_once_if_boards_agree(store: Store, slower: tuple[float, float], gone: bool) -> None:
    with store:
        nights = [watch(store, "FAKE-1", slower[0]), watch(store, "FAKE-2", slower[1])]
        assert bool(go_back(store, nights)) == gone
        reign = crowns.reign(store, KEY)
        assert reign.champion.record.config == {"BLOCK": 1 if gone else 2}, "from the last one, and no further"
        assert len(reign.log) == gone
