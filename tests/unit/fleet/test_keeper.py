"""What a worker does with its study process: starts, watches, stops and replaces it. No Dask."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixtures.fake_device import ROOT, write_device
from fixtures.fleets import Fleet

from tuner.devices.detect import find
from tuner.errors import DeviceTrouble
from tuner.fleet import keeper as keeper_module
from tuner.fleet.keeper import Keeper, Place
from tuner.fleet.orders import Answer, Database, Greeting, ItemTold, Order, identity_of
from tuner.night.plan import read_plan
from tuner.night.standing import kernels_of, study_of
from tuner.store import Store

CHILD = Path(__file__).parents[2] / "fixtures" / "rehearsed_child.py"


#: Seconds without progress that one of these tests takes for a hang, and all others never see.
SHORT_S, LONG_S = 1.0, 60.0


def kept(folder: Path, stall_s: float = LONG_S) -> Keeper:
    """A worker's side of a study process, in a folder."""
    spec = write_device(folder / "device.json")
    return Keeper(Place(spec, folder, stall_s=stall_s, command=(sys.executable, str(CHILD))))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """A keeper for all tests of this module: a study process takes a second to start."""
    folder = tmp_path_factory.mktemp("keeper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_REHEARSAL", str(folder / "rehearsal.json"))
        patch.setenv("PYTHONPATH", str(ROOT))
        made = kept(folder)
        yield made
        made.close()


@pytest.fixture
def keeper(process: Keeper, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """The keeper, with no faults and nothing ordered before; tests run in its folder."""
    monkeypatch.chdir(process.place.folder)
    Path("hangs").unlink(missing_ok=True)
    Fleet(process.place.folder, "").settings()
    return process


@pytest.fixture
def order(keeper: Keeper) -> Callable[..., Order]:
    """Makes orders of a database of the test's own."""
    folder = keeper.place.folder
    Path("studies.db").unlink(missing_ok=True)
    with Store.open("sqlite:///studies.db") as store:
        database = Database(store.identity, f"sqlite:///{folder}/studies.db")
    (item,) = Fleet(folder, "").plan(1).items
    study = study_of(item, find(keeper.place.spec).info, kernels_of(item, "cuda"))

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
    assert first.done.trials["total"] == first.done.tried == 2
    assert told
    assert told[-1]["stage"] == "searching"
    second = keeper.work(order(2, 1), silent)
    assert second.done.opening_s is None, "the study was open"
    third = keeper.work(order(3, 5), silent)
    assert third.done.opening_s is not None, "others have worked on it since"
    assert third.done.trials["total"] == 6
    assert third.done.tried == 2
    finals = keeper.work(order(4, 6, ()), silent)
    assert finals.done.tried == 0
    assert finals.done.finished is not None
    assert keeper.idle_since_s is not None


FAULTS = {
    "kill": (LONG_S, "its study process died with signal SIGKILL"),
    "hang": (SHORT_S, "it got no further for 1 s while searching, and was killed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_study_process_that_dies_or_hangs_is_an_answer_and_is_replaced(
    keeper: Keeper, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    Fleet(Path(), "").settings(faults={"2": fault})
    before = keeper.work(order(), silent)
    limit_s, told = FAULTS[fault]
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "place", replace(keeper.place, stall_s=limit_s))
        assert keeper.work(order(2, 1), silent).done.lost == told
    after = keeper.work(order(3, 2), silent)
    assert after.done.trials["total"] == 4, "what was measured before is still there"
    assert before.done.trials["total"] == 2


def test_work_is_stopped_by_a_flag_in_an_orderly_way(keeper: Keeper, order: Callable[..., Order]) -> None:
    Fleet(Path(), "").settings(pace=1.0)
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(keeper.work(order(7, parts=(60.0,)), silent)))
    thread.start()
    until_s = time.monotonic() + 60
    # It is at work as soon as it has counted the order.
    while not Path("orders").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not keeper.stop("another's", claim=6)
    begun_s = time.monotonic()
    assert keeper.stop("the night was stopped", claim=7)
    thread.join()
    assert time.monotonic() - begun_s < 10
    (answer,) = found
    assert answer.done.cut
    assert answer.claim == 7
    assert not keeper.stop("nothing to stop")
    Fleet(Path(), "").settings()
    assert keeper.work(order(8, 1), silent).done.trials["total"] == 2


def test_one_that_does_not_listen_is_killed(
    keeper: Keeper, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "STOP_WITHIN_S", 0.5)
    Fleet(Path(), "").settings(faults={"1": "hang"})
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(keeper.work(order(), silent)))
    thread.start()
    while not Path("hangs").exists():
        time.sleep(0.01)
    keeper.stop("the night was stopped")
    thread.join()
    (answer,) = found
    assert answer.done.lost == "the night was stopped, and its study process took longer than 0.5 s to end"
    assert answer.done.cut


def test_what_differs_here_is_trouble_of_the_worker_and_no_fault_of_the_problem(
    keeper: Keeper, order: Callable[..., Order]
) -> None:
    other = keeper.work(order(study="a study of other kernels"), silent)
    assert "a worker's kernels are the coordinator's" in other.trouble
    assert other.done.lost == other.trouble
    Path("toy.py").unlink()
    gone = keeper.work(order(2, 1), silent)
    assert "a kernel file must exist" in gone.trouble
    assert gone.done.failed == ""


def test_a_device_that_stays_unwell_is_trouble(keeper: Keeper, order: Callable[..., Order]) -> None:
    Fleet(Path(), "").settings(faults={"1": "unwell"})
    answer = keeper.work(order(), silent)
    assert answer.trouble == "the rehearsed device stays unwell"


def test_a_greeting_is_answered_by_what_the_machine_is(keeper: Keeper, order: Callable[..., Order]) -> None:
    keeper.work(order(), silent)
    plan = read_plan(Path("plan.toml"))
    identity = identity_of(str(item.file) for item in plan.items)
    report = keeper.greet(Greeting("night", identity, order().database))
    assert report.identity == identity
    assert report.complaints == ()
    assert report.info.name == "Fake board"


def test_a_device_that_another_process_holds_is_told(
    keeper: Keeper, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.devices.device_lock import device_lock

    keeper.close()
    monkeypatch.setenv("TUNER_REHEARSAL_LOCK_S", "0.2")
    greeting = Greeting("night", identity_of(), order().database)
    with (
        device_lock(find(keeper.place.spec).info, "tune gemm"),
        pytest.raises(Exception, match="one process at a time times on a device"),
    ):
        keeper.greet(greeting)


WORKER = """
import sys
from tuner.fleet.keeper import Keeper, Place
import pickle
place, order = pickle.loads(sys.stdin.buffer.read())
Keeper(place).work(order, lambda progress: None)
"""


def test_the_study_process_ends_with_its_worker(keeper: Keeper, order: Callable[..., Order]) -> None:
    """The worker is killed while its study process hangs, and listens to nothing."""
    keeper.close()
    Fleet(Path(), "").settings(faults={"1": "hang"})
    worker = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.write(pickle.dumps((keeper.place, order())))
    worker.stdin.close()
    until_s = time.monotonic() + 60
    while not Path("hangs").exists() and time.monotonic() < until_s:
        time.sleep(0.02)
    (child,) = psutil.Process(worker.pid).children()
    assert str(CHILD) in child.cmdline()
    worker.kill()
    worker.wait()
    _, alive = psutil.wait_procs([child], timeout=30)
    assert not alive


def test_the_study_process_ends_if_it_is_told_to(keeper: Keeper, order: Callable[..., Order]) -> None:
    assert keeper.work(order(), silent).done.lost == ""
    before = keeper.pid
    assert before is not None
    assert psutil.pid_exists(before)
    keeper.close()
    assert keeper.pid is None
    assert not psutil.pid_exists(before), "it has ended, and was waited for"


def test_a_device_that_is_not_here_is_told(here: Path) -> None:
    keeper = Keeper(Place("fake:gone.json", here))
    greeting = Greeting("night", identity_of(), Database("x", "sqlite:///studies.db"))
    try:
        with pytest.raises(DeviceTrouble, match="a fake device is a JSON file, cannot read"):
            keeper.greet(greeting)
    finally:
        keeper.close()
