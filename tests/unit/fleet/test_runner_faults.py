"""Nights on workers that fail: nothing measured is lost or doubled, no champion is wrong, the night goes on."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fixtures.fleets import Fleet, FleetNight, scheduler_process
from fixtures.postgres import Databases

from tuner.errors import EnvironmentTrouble
from tuner.fleet import clusters, runner
from tuner.fleet.runner import State
from tuner.night.claims import DONE, LOST, RUNNING, STOPPED, Claims
from tuner.night.plan import read_plan
from tuner.night.work import NightItem
from tuner.results.record import Record, Role
from tuner.store import Store


def trials_of(fleet: Fleet) -> list[Record]:
    with Store.open(fleet.url) as store:
        return store.records(role=Role.TRIAL)


def check(fleet: Fleet, items: list[NightItem], url: str = "") -> None:
    """Each problem has a champion, its best trial, and no claim is left.

    Each trial is stored once; of a claim that ended badly, the one in flight, or the finals, may have been done
    again.
    """
    with Store.open(url or fleet.url) as store:
        trials, claims = store.records(role=Role.TRIAL), Claims(store).of()
        champions = store.champions(history=True)
    badly = Counter(claim.study for claim in claims if claim.state not in (DONE, RUNNING))
    done = Counter((trial.study, trial.problem, trial.config["n"]) for trial in trials)
    again: Counter[str] = Counter()  # how often a study did a trial once more
    for (study, _, _), times in done.items():
        again[study] += times - 1
    assert all(times <= badly[study] for study, times in again.items()), "a trial was done twice"
    assert len({trial.id for trial in trials}) == len(trials)
    stored = Counter(trial.problem for trial in trials)
    configs = Counter(problem for problem, _ in {(trial.problem, trial.config["n"]) for trial in trials})
    for item in items:
        assert item.state == "tuned", item.why
        count = configs[item.after.record.problem]
        assert count <= item.trials["total"] <= stored[item.after.record.problem]
        assert item.after.record.config["n"] == count - 1, "the last is the fastest"
    assert len({champion.record.problem for champion in champions}) == len(items)
    crowned = Counter(champion.record.study for champion in champions)
    assert all(times <= 1 + badly[study] for study, times in crowned.items()), "finals were played twice"
    assert RUNNING not in {claim.state for claim in claims}


@contextmanager
def beside(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """Does something in a thread while the block runs; its event is set at the end."""
    ended = threading.Event()
    thread = threading.Thread(target=act, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_sixty_slices_with_a_fault_in_ten(fleet: Fleet) -> None:
    def revive(ended: threading.Event) -> None:
        """Starts workers again that vanish, as a batch system or an operator does."""
        while not ended.wait(0.3):
            fleet.revive()

    kinds = ["kill", "vanish", "hang", "unwell", "kill", "vanish"]
    fleet.settings(faults={str(10 * number + 5): kind for number, kind in enumerate(kinds)})
    warnings: list[str] = []
    with beside(revive):
        items, night = fleet.run(fleet.plan(20, seconds=48), recheck_s=1.0, warned=warnings.append)
    check(fleet, items)
    ledger = night.runner.ledger
    assert ledger.slices >= 60
    with Store.open(fleet.url) as store:
        claims = Claims(store).of(ledger.night)
    states = Counter(claim.state for claim in claims)
    assert states[DONE] >= 50
    assert states[LOST] + states["failed"] >= 6
    hung = [claim.why for claim in claims if "it got no further for 2 s while searching" in claim.why]
    assert hung, "the reason comes before the process ends"
    assert sum(text.startswith("worker n") for text in warnings) >= 6, "each loss is told, on a terminal or not"
    assert len({place["board"] for item in items for place in item.places.values()}) >= 3


def test_a_worker_that_comes_back_finds_its_slice_given_away(fleet: Fleet) -> None:
    """It is stopped for some seconds in its finals; its records count, its champion does not."""
    fleet.settings(faults={"2": "freeze"}, frozen_s=6, pace=0.02)
    items, night = fleet.run(fleet.plan(4, seconds=20), silent_s=1.5)
    assert [item.state for item in items] == ["tuned"] * 4
    with Store.open(fleet.url) as store:
        (claim,) = [claim for claim in Claims(store).of(night.runner.ledger.night) if claim.state == LOST]
        assert "it told of no progress for" in claim.why
        assert len(store.champions(history=True)) == 4
    assert any(len(item.places) > 1 for item in items), "the slice went to another worker"


def check_goes_on(fleet: Fleet, items: list[NightItem]) -> None:
    """A night went on where one before was ended: no trial twice, a champion each, no claim left."""
    assert 1 <= sum(item.state == "done before" for item in items) < len(items)
    assert max(Counter((trial.problem, trial.config["n"]) for trial in trials_of(fleet)).values()) == 1
    with Store.open(fleet.url) as store:
        assert len(store.champions(history=True)) == len(items)
        assert RUNNING not in {claim.state for claim in Claims(store).of()}


def test_after_a_killed_scheduler_the_next_night_goes_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "CONNECT_WITHIN_S", 4.0)
    own = Fleet(fleet.folder / "own", "")
    own.folder.mkdir()
    own.settings(pace=0.03)
    plan = own.plan(4, seconds=30)
    with scheduler_process() as (own.address, process):
        own.add("s1")
        own.add("s2")
        try:
            gone = "the scheduler is gone; what was measured is kept"
            with own.night(plan) as night, pytest.raises(EnvironmentTrouble, match=gone):
                [process.kill() for _ in night.run()]
            before = {trial.id for trial in trials_of(own)}
            assert before
            own.settings()
            # The workers find the next scheduler at the same address.
            with scheduler_process(own.address):
                items, _ = own.run(plan)
            assert all(worker.poll() is None for worker in own.workers.values())
        finally:
            own.stop()
    assert before <= {trial.id for trial in trials_of(own)}
    check_goes_on(own, items)


def test_a_killed_coordinator_is_followed_by_another(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between its orders and their answers: workers keep what they have, and the next takes it."""
    fleet.settings(pace=0.03)
    plan = fleet.plan(6, seconds=30)
    with fleet.night(plan) as first, monkeypatch.context() as patch:
        patch.setattr(first.runner, "stop", lambda why: [])  # as if it were killed: it says nothing
        for _ in first.run():
            if first.runner.members_in(State.WORKS):
                break
    with Store.open(fleet.url) as store:
        assert RUNNING in {claim.state for claim in Claims(store).of(first.runner.ledger.night)}
    fleet.settings()
    items, _ = fleet.run(plan)
    check_goes_on(fleet, items)


def test_ctrl_c_stops_all_workers_within_ten_seconds_and_keeps_what_they_have(fleet: Fleet) -> None:
    fleet.settings(pace=1.0, trials=1000)
    interrupted_s: list[float] = []

    def interrupt(night: FleetNight) -> Callable[[threading.Event], None]:
        def act(ended: threading.Event) -> None:
            while len(night.runner.members_in(State.WORKS)) < 4 and not ended.wait(0.05):
                pass
            interrupted_s.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        return act

    end_s = time.monotonic() + 60
    with fleet.night(fleet.plan(8, seconds=1000), deadline_s=end_s, silent_s=600) as night:
        with pytest.raises(KeyboardInterrupt), beside(interrupt(night)):
            list(night.run())
        assert {item.state for item in night.night.unfinished("stopped")} <= {"searched", "not reached"}
        assert time.monotonic() - interrupted_s[0] < 10
    with Store.open(fleet.url) as store:
        assert {claim.state for claim in Claims(store).of(night.runner.ledger.night)} == {STOPPED}
    assert all(process.poll() is None for process in fleet.workers.values()), "they wait for the next night"


def test_unfit_workers_are_refused_with_the_reason(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(runner, "REFUSED_S", 1.0)
    rule = "a SQLite file is written by one machine alone, elsewhere, and this is .*; give --db postgresql"
    with fleet.night(fleet.plan(2)) as night, pytest.raises(EnvironmentTrouble, match=rule):
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
            members = night.runner.members
            while (len(members) < 6 or night.runner.members_in(State.CHECKED)) and time.monotonic() < until_s:
                list(night.runner.wait(0.2))
            items = list(night.run())
    finally:
        fleet.stop("sick", "other")
    states = Counter((item.state, item.item.problem.dims["n"]) for item in items)
    assert states == {("tuned", 100): 2, ("tuned", 101): 2, ("not reached", 900): 1}
    (left,) = [item for item in items if item.state == "not reached"]
    assert left.why == "it asks for Third board, and none is in this night"
    boards = {item.after.record.device.name: item for item in items if item.after}
    assert boards.keys() == {"Fake board", "Other board"}
    assert {place["board"] for place in boards["Other board"].places.values()} == {"FAKE-other"}
    workers = {worker["name"]: worker for worker in night.runner.snapshot(1.0, 0)["workers"]}
    assert workers["sick"]["doing"] == "refused: its canary fails: it is dead (fake)"
    assert workers["other"]["slices"] > 0


def test_workers_write_into_a_server_that_goes_away_for_a_while(fleet: Fleet, postgresql: str) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    fleet.settings(faults={"7": "kill"})
    Store.open(url).close()

    def away(ended: threading.Event) -> None:
        for _ in range(2):
            time.sleep(1.5)
            with databases.away(url):
                ended.wait(3)

    with beside(away):
        items, _ = fleet.run(fleet.plan(8, seconds=30), url)
    check(fleet, items, url)
