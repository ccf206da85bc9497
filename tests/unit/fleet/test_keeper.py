"""What a worker does with its study process: starts, watches, stops and replaces it. No Dask."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.fake_device import ROOT, write_device
from fixtures.fleets import Fleet

from tuner.errors import DeviceTrouble
from tuner.fleet.identity import identity_of
from tuner.fleet.keeper import Keeper, Place
from tuner.fleet.orders import Answer, Database, Greeting, ItemTold, Order
from tuner.nightly.plan import read_plan
from tuner.nightly.standing import kernels_of, study_of
from tuner.store import Store

CHILD = Path(__file__).parents[2] / "fixtures" / "rehearsed_child.py"


@pytest.fixture
def keeper(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    monkeypatch.setenv("TUNER_REHEARSAL", str(here / "rehearsal.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Fleet(here, "").settings()
    spec = write_device(here / "device.json")
    made = Keeper(Place(spec, here, stall_s=2.0, command=(sys.executable, str(CHILD))))
    yield made
    made.close()


@pytest.fixture
def order(here: Path) -> Callable[..., Order]:
    with Store.open("sqlite:///studies.db") as store:
        database = Database(store.identity)
    (item,) = Fleet(here, "").plan(1).items
    info = write_device(here / "device.json") and json.loads((here / "device.json").read_text())["info"]
    from tuner.declare.hardware import DeviceInfo

    study = study_of(item, DeviceInfo.from_json(info), kernels_of(item, "cuda"))

    def made(claim: int = 1, turn: int = 0, parts: tuple[float, ...] = (10.0,), **more: Any) -> Order:
        given = {"study": study} | more
        return Order(
            "night", claim, given["study"], ItemTold.of(item), "0", turn, parts, "", 60.0, 1.0, None, 1,
            "random", None, database,
        )  # fmt: skip

    return made


def silent(progress: dict[str, Any]) -> None:
    """Listens to nothing."""


def test_a_slice_then_the_next_in_the_same_process(keeper: Keeper, order: Callable[..., Order]) -> None:
    told: list[dict[str, Any]] = []
    first = keeper.work(order(), told.append)
    assert first.done.opening_s is not None
    assert len(first.done.parts) == 1
    assert first.done.trials["total"] == 2
    assert first.handed is not None
    assert told
    assert told[-1]["stage"] == "searching"
    second = keeper.work(order(2, 1), silent)
    assert second.done.opening_s is None, "the study was open"
    third = keeper.work(order(3, 5), silent)
    assert third.done.opening_s is not None, "others have worked on it since"
    assert third.done.trials["total"] == 6
    finals = keeper.work(order(4, 6, ()), silent)
    assert finals.done.finished is not None
    assert keeper.idle_since_s is not None


FAULTS = {
    "kill": "its study process died with signal SIGKILL",
    "hang": "it got no further for 2 s while searching, and was killed",
}


@pytest.mark.parametrize(("fault", "told"), FAULTS.items())
def test_a_study_process_that_dies_or_hangs_is_an_answer_and_is_replaced(
    here: Path, keeper: Keeper, order: Callable[..., Order], fault: str, told: str
) -> None:
    Fleet(here, "").settings(faults={"2": fault})
    before = keeper.work(order(), silent)
    assert keeper.work(order(2, 1), silent).done.lost == told
    after = keeper.work(order(3, 2), silent)
    assert after.done.trials["total"] == 4, "what was measured before is still there"
    assert before.done.trials["total"] == 2


def test_work_is_stopped_by_a_flag_in_an_orderly_way(
    here: Path, keeper: Keeper, order: Callable[..., Order]
) -> None:
    Fleet(here, "").settings(pace=1.0)
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(keeper.work(order(7, parts=(60.0,)), silent)))
    thread.start()
    while keeper.idle_since_s is not None:
        time.sleep(0.01)
    time.sleep(1.0)
    assert not keeper.stop("another's", claim=6)
    begun_s = time.monotonic()
    assert keeper.stop("the night was stopped", claim=7)
    thread.join()
    assert time.monotonic() - begun_s < 10
    (answer,) = found
    assert answer.done.cut
    assert answer.claim == 7
    assert not keeper.stop("nothing to stop")
    Fleet(here, "").settings()
    assert keeper.work(order(8, 1), silent).done.trials["total"] == 2


def test_one_that_does_not_listen_is_killed(here: Path, keeper: Keeper, order: Callable[..., Order]) -> None:
    Fleet(here, "").settings(faults={"1": "hang"})
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(keeper.work(order(), silent)))
    thread.start()
    while not (here / "hangs").exists():
        time.sleep(0.01)
    keeper.stop("the night was stopped")
    thread.join()
    (answer,) = found
    assert answer.done.lost == "the night was stopped, and its study process took longer than 5 s to end"
    assert answer.done.cut


def test_what_differs_here_is_trouble_of_the_worker_and_no_fault_of_the_problem(
    here: Path, keeper: Keeper, order: Callable[..., Order]
) -> None:
    other = keeper.work(order(study="a study of other kernels"), silent)
    assert "a worker's kernels are the coordinator's" in other.trouble
    assert other.done.lost == other.trouble
    (here / "toy.py").unlink()
    gone = keeper.work(order(2, 1), silent)
    assert "a kernel file must exist" in gone.trouble
    assert gone.done.failed == ""


def test_a_device_that_stays_unwell_is_trouble(here: Path, keeper: Keeper, order: Callable[..., Order]) -> None:
    Fleet(here, "").settings(faults={"1": "unwell"})
    answer = keeper.work(order(), silent)
    assert answer.trouble == "the rehearsed device stays unwell"


def test_a_greeting_is_answered_by_what_the_machine_is(
    here: Path, keeper: Keeper, order: Callable[..., Order]
) -> None:
    keeper.work(order(), silent)
    plan = read_plan(here / "plan.toml")
    identity = identity_of(str(item.file) for item in plan.items)
    report = keeper.greet(Greeting("night", identity, order().database))
    assert report.identity == identity
    assert report.complaints == ()
    assert report.info.name == "Fake board"
    assert report.handed is not None
    assert report.handed.mark == 2


def test_a_device_that_another_process_holds_is_told(
    here: Path, keeper: Keeper, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.devices.detect import find
    from tuner.devices.device_lock import device_lock

    monkeypatch.setenv("TUNER_REHEARSAL_LOCK_S", "0.2")
    greeting = Greeting("night", identity_of(), order().database)
    with (
        device_lock(find(f"fake:{here}/device.json").info, "tune gemm"),
        pytest.raises(Exception, match="one process at a time times on a device"),
    ):
        keeper.greet(greeting)


def test_the_study_process_ends_with_its_worker(keeper: Keeper, order: Callable[..., Order]) -> None:
    keeper.work(order(), silent)
    (child,) = [each for each in psutil.Process().children() if str(CHILD) in each.cmdline()]
    keeper.close()
    assert child.wait(10) is not None or not child.is_running()


def test_a_device_that_is_not_here_is_told(here: Path) -> None:
    keeper = Keeper(Place("fake:gone.json", here))
    greeting = Greeting("night", identity_of(), Database("x"))
    try:
        with pytest.raises(DeviceTrouble, match="a fake device is a JSON file, cannot read"):
            keeper.greet(greeting)
    finally:
        keeper.close()
