"""Nights on workers that fail: nothing measured is lost or doubled, no champion is wrong, the night goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from fixtures.fleets import Fleet, scheduler_process
from fixtures.postgres import Databases

from tuner.errors import EnvironmentTrouble, Interrupted, StoreTrouble
from tuner.fleet import clusters
from tuner.fleet import night as night_module
from tuner.fleet.runner import State
from tuner.night.plan import read_plan
from tuner.night.scheduler import NightItem
from tuner.night.standing import Standing
from tuner.results.record import Role
from tuner.store import Store
from tuner.store.claims import DONE, LOST, RUNNING, Claims


def check(fleet: Fleet, items: list[NightItem], url: str = "") -> Store:
    """Each problem has one champion, its best trial, and no claim is left.

    Each trial is stored once; of a claim that ended badly, the one in flight may have been done again.
    """
    with Store.open(url or f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        trials = store.records(role=Role.TRIAL)
        seen = Counter((each.problem, each.config["n"]) for each in trials)
        badly = Counter(each.study for each in Claims(store).of() if each.state not in (DONE, RUNNING))
        again: Counter[str] = Counter()  # how often a study did a trial once more
        done = Counter((each.study, each.problem, each.config["n"]) for each in trials)
        for (study, _, _), times in done.items():
            again[study] += times - 1
        assert all(times <= badly[study] for study, times in again.items()), "a trial was done twice"
        assert len({each.id for each in trials}) == len(trials)
        stored, by_problem = Counter(each.problem for each in trials), Counter(problem for problem, _ in seen)
        for item in items:
            assert item.state == "tuned", item.why
            assert item.after is not None
            count = by_problem[item.after.record.problem]
            assert count <= item.trials["total"] <= stored[item.after.record.problem]
            assert item.after.record.config["n"] == count - 1, "the last is the fastest"
        champions = store.champions(history=True)
        assert len(champions) == len({each.record.problem for each in champions}) == len(items)
        assert RUNNING not in {each.state for each in Claims(store).of()}
        return store


@contextmanager
def reviving(fleet: Fleet) -> Iterator[None]:
    """Starts workers again that vanish, as a batch system or an operator does."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.3):
            fleet.revive()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_hundred_slices_with_a_fault_in_ten(fleet: Fleet) -> None:
    kinds = ["kill", "vanish", "hang", "unwell", "kill", "vanish", "kill", "unwell", "hang", "kill"]
    fleet.settings(faults={str(10 * number + 5): kind for number, kind in enumerate(kinds)})
    with reviving(fleet):
        items, night = fleet.run(fleet.plan(28, seconds=48), recheck_s=1.0)
    check(fleet, items)
    assert night.ledger.slices >= 100
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        claims = Claims(store).of(night.ledger.night)
    states = Counter(claim.state for claim in claims)
    assert states[DONE] >= 90
    hung = [claim.why for claim in claims if "it got no further for 2 s while searching" in claim.why]
    assert hung, "the reason comes before the process ends"
    assert states[LOST] + states["failed"] >= 10
    assert {spell.board for item in items for spell in item.spells.values()} >= {
        "FAKE-n1",
        "FAKE-n2",
        "FAKE-n3",
    }


def test_a_worker_that_comes_back_finds_its_slice_given_away(fleet: Fleet) -> None:
    """It is stopped for some seconds in its finals; its records count, its champion does not."""
    fleet.settings(faults={"2": "freeze"}, frozen_s=6, pace=0.02)
    items, night = fleet.run(fleet.plan(4, seconds=20), silent_s=1.5)
    assert [each.state for each in items] == ["tuned"] * 4
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        (claim,) = [each for each in Claims(store).of(night.ledger.night) if each.state == LOST]
        assert "it told of no progress for" in claim.why
        champions = store.champions(history=True)
    assert len(champions) == 4
    assert any(len(each.spells) > 1 for each in items), "the slice went to another worker"


def test_the_scheduler_is_killed_and_the_next_night_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "CONNECT_WITHIN_S", 4.0)
    own = Fleet(fleet.folder / "own", "")
    own.folder.mkdir()
    own.settings(pace=0.03)
    plan = own.plan(4, seconds=30)
    with scheduler_process() as (address, process):
        own.address = address
        own.add("s1")
        own.add("s2")
        try:
            gone = "the scheduler is gone; what was measured is kept"
            with own.night(plan) as night, pytest.raises(EnvironmentTrouble, match=gone):
                _killing(night, process.kill)
            before = _trials(own)
            assert before
            own.settings()
            # The workers find the next scheduler at the same address.
            with scheduler_process(address):
                items, _ = own.run(plan)
            assert all(worker.poll() is None for worker in own.workers.values())
        finally:
            own.stop()
    assert before <= _trials(own)
    done = [each for each in items if each.state == "done before"]
    assert 1 <= len(done) < 4
    with Store.open(f"sqlite:///{own.folder}/{own.database}") as store:
        seen = Counter((each.problem, each.config["n"]) for each in store.records(role=Role.TRIAL))
        assert max(seen.values()) == 1
        assert len(store.champions(history=True)) == 4


def _killing(night: night_module.FleetNight, kill: Callable[[], None]) -> None:
    for _ in night.run():
        kill()


def _trials(fleet: Fleet) -> set[str]:
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        return {each.id for each in store.records(role=Role.TRIAL)}


def test_ctrl_c_stops_all_workers_within_ten_seconds_and_keeps_what_they_have(fleet: Fleet) -> None:
    fleet.settings(pace=1.0, trials=1000)
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped_s = 0.0
    with fleet.night(fleet.plan(8, seconds=1000), silent_s=600) as night:
        try:
            for _ in _at_work(night, begun):
                pass
        except KeyboardInterrupt:
            stopped_s = time.monotonic()
        items = night.unfinished("stopped")
        assert time.monotonic() - night.interrupted_s < 10  # type: ignore[attr-defined]
    thread.join()
    assert stopped_s
    assert {each.state for each in items} == {"not reached"}
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        assert {each.state for each in Claims(store).of(night.ledger.night)} == {"stopped"}
    assert all(process.poll() is None for process in fleet.workers.values()), "they wait for the next night"


def _at_work(night: night_module.FleetNight, begun: threading.Event) -> Iterator[object]:
    """The night's results; says so when all workers are at work."""

    def watch() -> str:
        if len(night.runner.at_work) == 4 and not begun.is_set():
            night.interrupted_s = time.monotonic()  # type: ignore[attr-defined]
            begun.set()
        return ""

    night.stopped = watch
    yield from night.run()


def test_a_night_is_ended_from_outside(fleet: Fleet) -> None:
    fleet.settings(pace=1.0)
    with fleet.night(fleet.plan(4)) as night:
        night.stopped = lambda: "the job was cancelled" if night.runner.at_work else ""
        with pytest.raises(Interrupted, match="the job was cancelled"):
            list(night.run())
        assert [each.state for each in night.unfinished("cancelled")] == ["not reached"] * 4


def test_workers_that_cannot_take_part_are_refused_with_the_reason(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night_module.socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(night_module, "REFUSED_S", 1.0)
    told = "a SQLite file is written by one machine alone, elsewhere, and this is .*; give --db postgresql"
    with fleet.night(fleet.plan(2)) as night, pytest.raises(EnvironmentTrouble, match=told):
        list(night.run())
    items, _ = fleet.run(fleet.plan(2, seconds=20), anywhere=True)
    check(fleet, items)


def test_each_worker_takes_what_it_can_and_one_that_is_unwell_takes_nothing(fleet: Fleet) -> None:
    fleet.add("sick", dead=True)
    fleet.add("other", info={"name": "Other board"})
    fleet.plan(2, seconds=20, devices=["Fake board", "Other*", "NVIDIA H200"])
    path = fleet.folder / "plan.toml"
    path.write_text(path.read_text() + '[[problems]]\nfile = "toy.py"\nn = 900\ndevices = ["Third board"]\n')
    try:
        until_s = time.monotonic() + 30
        with fleet.night(read_plan(path)) as night:
            while (len(night.members) < 6 or night.runner.checking) and time.monotonic() < until_s:
                list(night.runner.wait(0.2))
            items = list(night.run())
    finally:
        fleet.stop("sick", "other")
    states = Counter((each.state, each.item.problem.dims["n"]) for each in items)
    assert states == {("tuned", 100): 2, ("tuned", 101): 2, ("not reached", 900): 1}
    (left,) = [each for each in items if each.state == "not reached"]
    assert left.why == "no worker has Third board"
    boards = {each.after.record.device.name: each for each in items if each.after}
    assert boards.keys() == {"Fake board", "Other board"}
    assert {spell.board for spell in boards["Other board"].spells.values()} == {"FAKE-other"}
    (sick,) = [each for each in night.members if each.name == "sick"]
    assert (sick.state, sick.why) == (State.REFUSED, "its canary fails: it is dead (fake)")
    told = {each["name"]: each for each in night.snapshot()["workers"]}
    assert told["sick"]["doing"] == "refused: its canary fails: it is dead (fake)"
    assert told["other"]["slices"] > 0


def test_workers_write_into_a_server_that_goes_away_for_a_while(fleet: Fleet, postgresql: str) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    fleet.settings(faults={"7": "kill"})
    Store.open(url).close()
    ended = threading.Event()

    def away() -> None:
        for _ in range(2):
            time.sleep(1.5)
            with databases.away(url):
                ended.wait(3)

    thread = threading.Thread(target=away)
    thread.start()
    try:
        items, night = fleet.run(fleet.plan(8, seconds=30), url)
    finally:
        ended.set()
        thread.join()
    check(fleet, items, url)
    assert night.ledger.database.url == url


def test_a_database_that_is_away_as_a_night_opens_is_waited_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = StoreTrouble("cannot use the database: it takes no connections now")
    away.__cause__ = sa.exc.OperationalError("", {}, Exception())
    looks: list[object] = []

    def standing(*told: Any) -> Standing:
        looks.append(told)
        if len(looks) == 1:
            raise away
        return Standing(*told)

    monkeypatch.setattr(night_module, "Standing", standing)
    items, _ = fleet.run(fleet.plan(2, seconds=20))
    check(fleet, items)
    assert len(looks) == 2


def test_a_coordinator_that_is_killed_is_followed_by_another(fleet: Fleet) -> None:
    """Killed between its orders and their answers: workers keep what they have, and the next takes it."""
    fleet.settings(pace=0.03)
    plan = fleet.plan(6, seconds=30)
    with fleet.night(plan) as first:
        killed = first.run()
        for _ in killed:
            if first.runner.at_work:
                break
        first._end = lambda why: None  # type: ignore[method-assign]  # as if it were killed: it says nothing
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        assert RUNNING in {each.state for each in Claims(store).of(first.ledger.night)}
    del killed
    fleet.settings()
    items, _ = fleet.run(plan)
    done = [each for each in items if each.state == "done before"]
    assert 1 <= len(done) < 6
    with Store.open(f"sqlite:///{fleet.folder}/{fleet.database}") as store:
        seen = Counter((each.problem, each.config["n"]) for each in store.records(role=Role.TRIAL))
        assert max(seen.values()) == 1
        assert len(store.champions(history=True)) == 6
        assert RUNNING not in {each.state for each in Claims(store).of()}
