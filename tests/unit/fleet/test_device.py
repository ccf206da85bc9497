"""A worker's device: does what it is ordered, watches what it does, and ends it. No Dask."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import ROOT, copy_toy, write_device
from fixtures.fleets import Fleet
from fixtures.postgres import Databases

from tuner.devices.detect import find
from tuner.devices.device_lock import device_lock
from tuner.errors import LockedByAnother
from tuner.fleet import device_plugin
from tuner.fleet.device_plugin import condition_of
from tuner.fleet.orders import Database, Greeting, Order, difference, identity_of
from tuner.fleet.runner import ClaimLedger
from tuner.fleet.worker import WorkerOptions, nanny_options
from tuner.night.claims import Claims
from tuner.night.plan import read_plan
from tuner.night.work import Assignment, Place, kernels_of, study_of
from tuner.store import Store


class DaskWorker:
    """Stands for Dask's worker."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.state: Any = type("State", (), {"tasks": {}})
        self.closed_for = ""

    def log_event(self, topic: str, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def close(self, reason: str, timeout: float) -> None:
        self.closed_for = reason


class Bench:
    """A rehearsed device in a folder, and a plan of one problem."""

    def __init__(self, folder: Path) -> None:
        from fixtures.rehearsed_device import RehearsedDevice

        self.folder, self.kind = folder, RehearsedDevice
        self.device: Any = RehearsedDevice(write_device(folder / "device.json"))
        self.worker = DaskWorker()
        self.fleet = Fleet(folder, "")
        self.fleet.settings()
        (self.item,) = self.fleet.plan(1).items
        with Store.open(f"sqlite:///{folder}/studies.db") as store:
            self.database = Database(store.identity, f"sqlite:///{folder}/studies.db")
        self.study = study_of(self.item, find(self.device.spec).info, kernels_of(self.item, "cuda"))

    def order(
        self, claim: int = 1, turn: int = 0, parts: tuple[float, ...] = (10.0,), study: str = ""
    ) -> Order:
        """A slice, or finals."""
        work = Assignment("0", self.item, (), turn, parts, 60.0, 1.0, None, 1, "random")
        return Order.of(work, "night", claim, study or self.study, self.database)

    def run(self, *tasks: Callable[[], Any]) -> list[Any]:
        """Does tasks on the device one after the other, in a thread as Dask does."""

        async def main() -> list[Any]:
            await self.device.setup(self.worker)
            try:
                return [await asyncio.to_thread(task) for task in tasks]
            finally:
                await self.device.teardown(self.worker)

        return asyncio.run(main())


@pytest.fixture
def bench(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("TUNER_REHEARSAL", str(here / "rehearsal.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made = Bench(here)
    monkeypatch.setattr("fixtures.rehearsed_device.SETTINGS", here / "rehearsal.json")
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("fault", "told"), [
    ("study", "a worker's kernels are the coordinator's"),
    ("file", "a kernel file must exist"),
    ("unwell", "the rehearsed device stays unwell"),
])  # fmt: skip
def test_what_fails_here_is_no_fault_of_the_problem(bench: Bench, fault: str, told: str) -> None:
    bench.fleet.settings(faults={"1": fault})
    order = bench.order(study="a study of other kernels" if fault == "study" else "")
    if fault == "file":
        Path("toy.py").unlink()
    (answer,) = bench.run(lambda: bench.device.work(order))
    assert told in answer.trouble
    assert (answer.done.failed, answer.done.lost) == ("", answer.trouble)


class Died(BaseException):
    """The process would have ended itself."""


@pytest.mark.parametrize(("stall_s", "why"), [
    (2.0, "it got no further for 2 s while searching, and was killed"),
    (60.0, "the night was stopped, and its study process took longer than 0.5 s to end"),
])  # fmt: skip
def test_a_study_that_hangs_or_does_not_listen_ends_its_process_and_says_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stall_s: float, why: str
) -> None:
    monkeypatch.setattr(device_plugin, "STOP_WITHIN_S", 0.5)
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    bench.device = bench.kind(bench.device.spec, stall_s=stall_s)
    stopped = stall_s > 2

    def hang() -> None:
        bench.device.told()
        if stopped:
            bench.device.stop("the night was stopped")
        until_s = time.monotonic() + 20
        while not killed and time.monotonic() < until_s:
            time.sleep(0.02)
        raise Died

    monkeypatch.setattr("fixtures.rehearsed_device.RehearsedStage.fault", lambda stage: hang())
    with suppress(Died):
        bench.run(lambda: bench.device.work(bench.order()))
    assert killed[0] == signal.SIGKILL
    assert bench.worker.events[-1]["lost"] == why
    assert bench.worker.events[-1]["cut"] == stopped


def test_a_device_that_another_process_holds_is_told(bench: Bench) -> None:
    bench.device.lock_wait_s = 0.2
    with ExitStack() as stack:
        stack.enter_context(device_lock(find(bench.device.spec).info, "tune gemm"))
        stack.enter_context(pytest.raises(LockedByAnother, match="one process at a time times on a device"))
        bench.run(lambda: bench.device.greet(Greeting((), bench.database)))


@pytest.mark.parametrize(
    ("more", "why"), [({"idle_exit_s": 0.1}, "it was idle"), ({"ends_at": 1.0}, "its lifetime is over")]
)
def test_a_worker_ends_once_it_was_idle_or_its_time_is_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, more: dict[str, float], why: str
) -> None:
    monkeypatch.setattr(device_plugin, "KEEP_ANSWER_S", 0.2)
    bench.device = bench.kind(bench.device.spec, **more)
    bench.run(lambda: time.sleep(1.0))
    assert bench.worker.closed_for == why


# --- What a worker says of its device before it gets work


@pytest.mark.parametrize(("device", "complaints"), [
    ({}, []),
    (
        {"info": {"kind": "cpu"}, "machine": {"others_cores": 3.0}},
        [],
    ),  # a CPU that others use may take part
    ({"dead": True}, ["its canary fails: the device is unwell (fake)"]),
    ({"machine": {"throttle_reasons": 0x08}}, ["its clocks are lowered: hardware slowdown"]),
    ({"machine": {"throttle_reasons": 0x60}}, ["its clocks are lowered: heat"]),
    ({"machine": {"others_processes": 2.0}}, ["2 other processes"]),
])  # fmt: skip
def test_an_unfit_device_is_told_why(here: Path, device: dict[str, Any], complaints: list[str]) -> None:
    report = condition_of(find(write_device(here / "device.json", **device)))
    assert len(report.complaints) == len(complaints)
    assert all(wanted in text for wanted, text in zip(complaints, report.complaints, strict=True))
    assert report.info.uuid == "FAKE-1"
    assert report.versions["compiler"] == "fake 1"


# --- Workers of one machine's GPUs do not compile on each other's cores


def test_each_worker_process_gets_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    boards = [find(write_device(tmp_path / f"{name}.json", info={"uuid": name})) for name in "ab"]
    made = nanny_options(boards, WorkerOptions(folder=tmp_path))
    assert [options["plugins"][0].cores for options in made] == [set(range(16)), set(range(16, 32))]
    caches = [options["env"]["TUNER_CACHE"] for options in made]
    assert caches == [str(tmp_path / name / "cache") for name in "ab"]


# --- who is who ----------------------------------------


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


def test_after_its_database_restarts_it_locks_again(postgresql: str, place: Place, work: Assignment) -> None:
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
