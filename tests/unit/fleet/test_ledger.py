"""Claims of a night: what a worker brings counts while its claim runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.postgres import Databases
from fixtures.records import record, square

from tuner.devices.detect import find
from tuner.errors import LockedByAnother
from tuner.fleet.orders import WorkAnswer
from tuner.fleet.runner import ClaimLedger
from tuner.night.claims import DONE, FAILED, STOPPED, Claims, FencedStore
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Done, Place, kernels_of
from tuner.results.record import Champion
from tuner.store import Store

URL = "sqlite:///studies.db"


@pytest.fixture
def store(here: Path) -> Iterator[FencedStore]:
    with FencedStore.open(URL) as opened:
        yield opened


@pytest.fixture
def place(here: Path) -> Place:
    return Place("n1", find(write_device(here / "device.json")).info)


@pytest.fixture
def work(here: Path) -> Assignment:
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), here)
    (here / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = 100\n')
    (item,) = read_plan(here / "plan.toml").items
    return Assignment("0", item, kernels_of(item, "cuda"), 0, (10.0,), 60.0, 1.0, None, 1, "random")


@pytest.mark.parametrize(
    ("done", "state"),
    [
        (Done(trials={"total": 3}), DONE),
        (Done(failed="no memory"), FAILED),
        (Done(lost="it died"), FAILED),
        (Done(lost="interrupted", cut=True), STOPPED),
    ],
)
def test_a_claim_ends_as_its_work_did(
    store: FencedStore, place: Place, work: Assignment, done: Done, state: str
) -> None:
    ledger = ClaimLedger(store, URL)
    order = ledger.order(place, work)
    assert ledger.accept(WorkAnswer(order.claim, done))
    (claim,) = Claims(store).of(ledger.night)
    assert (claim.state, claim.trials) == (state, done.trials.get("total", 0))


def test_a_worker_that_comes_back_crowns_no_champion(
    store: FencedStore, place: Place, work: Assignment
) -> None:
    ledger = ClaimLedger(store, URL)
    late = ledger.order(place, replace(work, parts=()))
    ledger.lost(late.claim, "it was silent")
    champion = Champion(record(square(64)), None, 0.0, "first", {"total": 1})
    store.claim = late.claim
    store.crown(champion)
    assert store.champions() == []
    assert len(store.records()) == 1, "its records count"
    assert not ledger.accept(WorkAnswer(late.claim, Done(champion=champion)))
    store.claim = ledger.order(place, replace(work, parts=(), turn=1)).claim
    store.crown(champion)
    assert len(store.champions()) == 1


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
