"""The coordinator's side of the database, without Dask: what is sent, what counts, what is stored once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.fake_device import TOY, write_device
from fixtures.records import record, square

from tuner.devices.detect import find
from tuner.fleet.desk import Desk
from tuner.fleet.orders import Answer, Handed, Order, Report, identity_of
from tuner.fleet.own_file import Outbox, packed
from tuner.night.plan import read_plan
from tuner.night.standing import kernels_of
from tuner.night.work import Done, Finished, Place, Work
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, Record, Role
from tuner.store import Store, lines
from tuner.store.claims import DONE, LOST, RUNNING, STOPPED, Claims
from tuner.study.recorder import Recorder


@pytest.fixture
def store(here: Path) -> Iterator[Store]:
    with Store.open("sqlite:///studies.db") as opened:
        yield opened


@pytest.fixture
def work(here: Path) -> Work:
    for name in ("toy.py", "toy.cu", "toy.numba.py"):
        shutil.copy(TOY.with_name(name), here)
    (here / "plan.toml").write_text('[[problems]]\nfile = "toy.py"\nn = 100\n')
    (item,) = read_plan(here / "plan.toml").items
    return Work("0", item, kernels_of(item, "cuda"), 0, (10.0,), "", 60.0, 1.0, None, 1, "random")


def place(name: str) -> Place:
    info = find(write_device(Path(f"{name}.json"), info={"uuid": name})).info
    return Place(name, info)


class Node:
    """A worker with a file of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.place, self.outbox = place(name), Outbox(folder / name)

    def obeys(self, work: Work, order: Order, trials: int, finals: bool = False) -> Answer:
        """Measures so many configs that its file does not hold, and perhaps crowns the first."""
        self.outbox.acknowledge(order.stored)
        self.outbox.forget(order.taken)
        if order.lines:
            self.outbox.store.take(order.lines)
        device = self.place.info
        recorder = Recorder(self.outbox.store, work.item.problem, device, "cold", {}, order.study)
        known = len(self.outbox.store.records(study=order.study, role=Role.TRIAL))
        made = [self._record(recorder, work, Role.TRIAL, known + number) for number in range(trials)]
        self.outbox.store.add(made)
        done = Done(trials={"total": known + trials})
        if finals:
            champion = Champion(self._record(recorder, work, Role.FINAL, 0), None, 0.0, "first", {"total": 1})
            self.outbox.store.crown(champion)
            self.outbox.keep(order.claim, champion)
            done.finished = Finished(champion, {})
        return Answer(order.claim, done, self.outbox.handed(device.uuid))

    @staticmethod
    def _record(recorder: Recorder, work: Work, role: Role, number: int) -> Record:
        measured = Measurement(Outcome.MEASURED, samples_s=(1e-3,))
        return recorder.of_kernel(role, work.kernels[0], {"n": number}, measured)  # type: ignore[arg-type]


@pytest.fixture
def node(here: Path) -> Iterator[Callable[[str], Node]]:
    made: list[Node] = []

    def of(name: str) -> Node:
        made.append(Node(name, here / "workers"))
        return made[-1]

    yield of
    for each in made:
        each.outbox.close()


def accepted(desk: Desk, answer: Answer) -> Done | None:
    """Takes an answer, and stores what it brings."""
    done = desk.accept(answer)
    desk.settle()
    return done


def configs(store: Store) -> list[int]:
    return sorted(each.config["n"] for each in store.records(role=Role.TRIAL))


def test_a_slice_goes_on_on_another_worker_with_what_the_first_measured(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    desk, one, other = Desk(store), node("a"), node("b")
    accepted(desk, one.obeys(work, desk.order(one.place, work), 3))
    second = desk.order(other.place, replace(work, turn=1))
    assert len(second.lines) > 0
    accepted(desk, other.obeys(work, second, 2))
    assert configs(store) == [0, 1, 2, 3, 4]
    again = desk.order(other.place, replace(work, turn=2))
    assert again.lines == b"", "it has all there is"
    accepted(desk, other.obeys(work, again, 1))
    assert configs(store) == [0, 1, 2, 3, 4, 5]
    assert {each.device.uuid for each in store.records()} == {"a", "b"}
    assert [claim.state for claim in Claims(store).of(desk.night)] == [DONE] * 3
    assert [claim.trials for claim in Claims(store).of(desk.night)] == [3, 5, 6]


def test_an_answer_that_gets_lost_is_handed_over_again_and_stored_once(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    desk, worker = Desk(store), node("a")
    worker.obeys(work, desk.order(worker.place, work), 3)
    answer = worker.obeys(work, desk.order(worker.place, work), 2)
    accepted(desk, answer)
    assert configs(store) == [0, 1, 2, 3, 4], "those of the lost answer came with the next"
    again = worker.outbox.handed("a")
    assert again == answer.handed, "the worker does not know yet"
    third = worker.obeys(work, desk.order(worker.place, work), 1)
    assert third.handed is not None
    assert third.handed.mark == 6
    before = {each.id for each in store.records()}
    assert again is not None
    accepted(desk, replace(third, handed=again))
    assert {each.id for each in store.records()} == before, "taken twice, stored once"


def test_a_worker_that_comes_back_brings_records_and_no_champion(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    desk, late, other = Desk(store), node("a"), node("b")
    order = desk.order(late.place, replace(work, parts=()))
    desk.lost(order.claim, "it was silent")
    taken = desk.order(other.place, replace(work, parts=(), turn=1))
    assert accepted(desk, late.obeys(work, order, 2, finals=True)) is None
    assert store.champions() == []
    assert configs(store) == [0, 1]
    done = accepted(desk, other.obeys(work, taken, 0, finals=True))
    assert done is not None
    assert done.finished is not None
    (champion,) = store.champions()
    assert champion.record.device.uuid == "b"
    assert len(store.records(role=Role.FINAL)) == 2
    assert desk.refused == 1
    assert [claim.state for claim in Claims(store).of()] == [LOST, DONE]


def test_a_champion_is_dated_by_the_coordinator(
    store: Store, work: Work, node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest champion reigns: the clock of a worker that is an hour late must not decide that."""
    desk, early, late = Desk(store), node("a"), node("b")
    for each, shift in ((early, "2026-01-01T13:00"), (late, "2026-01-01T11:00")):
        order = desk.order(each.place, replace(work, parts=()))
        with monkeypatch.context() as clock:
            clock.setattr("tuner.results.record.datetime", _Clock(shift))
            answer = each.obeys(work, order, 0, finals=True)
        accepted(desk, answer)
    first, second = store.champions(history=True)
    assert (first.record.device.uuid, second.record.device.uuid) == ("a", "b")
    reigning = store.champion(second.record.problem, "Fake board", "cold")
    assert reigning is not None
    assert reigning.record.device.uuid == "b"


class _Clock:
    def __init__(self, text: str) -> None:
        self._text = text

    def now(self, zone: object) -> _Clock:
        return self

    def isoformat(self, timespec: str) -> str:
        return f"{self._text}:00.000000+00:00"


def test_the_next_coordinator_takes_what_the_one_before_did_not(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    killed, worker = Desk(store), node("a")
    order = killed.order(worker.place, replace(work, parts=()))
    worker.obeys(work, order, 3, finals=True)
    assert configs(store) == []
    desk = Desk(store)
    report = _report(worker)
    desk.greeted(worker.place, report)
    assert configs(store) == [0, 1, 2]
    assert len(store.champions()) == 1, "its claim still ran"
    desk.greeted(worker.place, report)
    assert len(store.champions(history=True)) == 1
    accepted(desk, worker.obeys(work, desk.order(worker.place, work), 1))
    assert worker.outbox.kept() == ()
    assert worker.outbox.stored == 4


def test_what_was_given_to_another_meanwhile_is_not_crowned_at_the_next_contact(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    killed, worker, other = Desk(store), node("a"), node("b")
    worker.obeys(work, killed.order(worker.place, replace(work, parts=())), 3, finals=True)
    desk = Desk(store)
    running = desk.order(other.place, work)
    desk.greeted(worker.place, _report(worker))
    assert configs(store) == [0, 1, 2]
    assert store.champions() == []
    assert Claims(store).holds(running.claim)


def test_a_champion_of_another_study_under_a_claims_number_does_not_count(
    store: Store, work: Work, node: Callable[[str], Node]
) -> None:
    """After a power cut a number may be given a second time."""
    desk, worker = Desk(store), node("a")
    order = desk.order(worker.place, work)
    champion = Champion(replace(record(square(64)), study="another study"), None, 0.0, "first", {"total": 1})
    report = replace(_report(worker), champions=((order.claim, lines.line_of(champion)),))
    desk.greeted(worker.place, report)
    assert store.champions() == []
    assert [claim.state for claim in Claims(store).of()] == [RUNNING]


def test_the_end_of_a_night_leaves_no_claim(store: Store, work: Work, node: Callable[[str], Node]) -> None:
    desk, worker = Desk(store), node("a")
    order = desk.order(worker.place, work)
    answer = worker.obeys(work, order, 1)
    accepted(desk, replace(answer, done=Done(lost="interrupted", cut=True)))
    desk.order(worker.place, work)
    desk.close()
    assert [claim.state for claim in Claims(store).of()] == [STOPPED, LOST]


def test_a_mark_from_elsewhere_is_not_believed(node: Callable[[str], Node], work: Work) -> None:
    worker = node("a")
    worker.outbox.store.add(record(square(64)))
    worker.outbox.acknowledge(99)
    assert worker.outbox.stored == 0
    assert worker.outbox.handed("a") is None, "another board's"


def _report(node: Node) -> Report:
    info, outbox = node.place.info, node.outbox
    return Report("host", "fake", info, {}, identity_of(), (), outbox.handed(info.uuid), outbox.kept())


def test_lines_are_packed_without_the_time_of_day() -> None:
    one = record(square(64))
    assert packed([one]) == packed([one])
    assert Handed(packed([one]), 1) == Handed(packed([one]), 1)
