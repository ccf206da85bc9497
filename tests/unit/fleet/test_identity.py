"""Whether two machines have the same code, kernels and files."""

from pathlib import Path

import pytest
from fixtures.fake_device import copy_toy, write_device
from fixtures.postgres import Databases

from tuner.devices.detect import find
from tuner.errors import LockedByAnother
from tuner.fleet.orders import difference, identity_of
from tuner.fleet.runner import ClaimLedger
from tuner.night.claims import Claims
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Place, kernels_of
from tuner.store import Store

OURS = {"tile-tuner": "1.0", "built-in kernels": "bb", "kernel file /p/own.py": "cc"}


def test_the_same_is_no_difference() -> None:
    assert difference(OURS, {**OURS, "kernel file /p/more.py": "dd"}) == ""
    assert difference(identity_of(), identity_of()) == ""


@pytest.mark.parametrize(("theirs", "message"), [
    (
        {"tile-tuner": "1.1"},
        "its tile-tuner must be the coordinator's, 1.0, got 1.1; use the same checkout",
    ),
    ({"built-in kernels": "xx"}, "its built-in kernels must be the coordinator's"),
    ({"kernel file /p/own.py": ""}, "its kernel file /p/own.py must be the coordinator's, cc, got none"),
])  # fmt: skip
def test_a_difference_is_told_with_its_remedy(theirs: dict[str, str], message: str) -> None:
    assert message in difference(OURS, OURS | theirs)


def test_a_files_hash_covers_its_sources_and_those_that_are_shared(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    hashes = set()
    for name in ("own.py", "own.cu", "_shared.py", "other.py", "own.json"):
        (tmp_path / name).write_text("// b\n")
        hashes.add(identity_of([str(file)])[f"kernel file {file}"])
    assert len(hashes) == 3, "what is not read does not count"


# --- Claims of a night: what a worker brings counts while its claim runs

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


def test_after_a_restart_of_its_database_a_coordinator_locks_again(
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
