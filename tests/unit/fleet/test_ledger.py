"""Claims of a night: what a worker brings counts while its claim runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.fake_device import copy_toy, write_device
from fixtures.postgres import Databases

from tuner.devices.detect import find
from tuner.errors import LockedByAnother
from tuner.fleet.runner import ClaimLedger
from tuner.night.claims import Claims
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Place, kernels_of
from tuner.store import Store

URL = "sqlite:///studies.db"


@pytest.fixture
def place(here: Path) -> Place:
    return Place("n1", find(write_device(here / "device.json")).info)


@pytest.fixture
def work(here: Path) -> Assignment:
    copy_toy(here)
    (here / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = 100\n')
    (item,) = read_plan(here / "plan.toml").items
    return Assignment("0", item, kernels_of(item, "cuda"), 0, (10.0,), 60.0, 1.0, None, 1, "random")


def test_a_coordinator_whose_database_was_restarted_takes_its_lock_again_or_ends(
    postgresql: str, place: Place, work: Assignment
) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    with Store.open(url) as one, Store.open(url) as other, Claims(one).coordinating() as hold:
        with databases.away(url):
            pass
        ledger = ClaimLedger(one, url, hold)
        ledger.order(place, work)
        with pytest.raises(LockedByAnother, match="one coordinator at a time"), Claims(other).coordinating():
            pass
        with databases.away(url):
            pass
        with Claims(other).coordinating(), pytest.raises(LockedByAnother, match="another works with"):
            ledger.order(place, work)
