"""What claims promise, whatever database is behind them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixtures.postgres import Databases
from fixtures.records import champion, record, square

from tuner.errors import LockedByAnother, StoreTrouble
from tuner.night.claims import DONE, LOST, RUNNING, Claims, FencedStore, PatientStore, patiently
from tuner.store import Store

NIGHT = "b8f0d4c2-0000-4000-8000-000000000001"


@pytest.fixture
def take(either_store: Store) -> Callable[..., int]:
    def taken(study: str = "a study", worker: str = "node1") -> int:
        return Claims(either_store).take(NIGHT, study, "slice", worker, "NVIDIA H200", "GPU-1")

    return taken


def test_a_claim_says_who_works_on_what(either_store: Store, take: Callable[..., int]) -> None:
    number = take()
    (claim,) = Claims(either_store).of(NIGHT)
    assert (claim.number, claim.study, claim.what) == (number, "a study", "slice")
    assert (claim.worker, claim.device, claim.board) == ("node1", "NVIDIA H200", "GPU-1")
    assert (claim.state, claim.trials, claim.ended_at) == (RUNNING, 0, "")
    assert Claims(either_store).end(number, DONE, "space covered", 17)
    (claim,) = Claims(either_store).of()
    assert (claim.state, claim.trials, claim.why) == (DONE, 17, "space covered")
    assert claim.started_at <= claim.progressed_at <= claim.ended_at
    assert Claims(either_store).of("another night") == []


def test_a_study_given_away_is_taken_from_its_owner(either_store: Store, take: Callable[..., int]) -> None:
    claims = Claims(either_store)
    first, second = take(worker="node1"), take(worker="node2")
    assert second > first
    assert not claims.end(first, DONE), "its end does not count"
    lost, running = claims.of()
    assert (lost.state, lost.why, lost.trials) == (LOST, "the study was given to node2", 0)
    assert claims.end(running.number, DONE)
    assert not claims.end(running.number, DONE), "a claim ends once"
    take("another study")
    assert claims.abandon("the coordinator was killed") == 1
    assert claims.of()[-1].state == LOST


def test_a_worker_whose_claim_was_lost_stores_records_and_crowns_nothing(
    either_url: str, either_store: Store, take: Callable[..., int]
) -> None:
    with FencedStore.open(either_url) as fenced:
        assert isinstance(fenced, FencedStore)
        crowned = champion(record(square(64)))
        assert fenced.crown(crowned) == 0, "without a claim"
        fenced.claim = take()
        take(worker="node2")
        again = champion(record(square(64)))
        assert fenced.crown(again) == 0
        assert {each.id for each in either_store.records()} >= {crowned.record.id, again.record.id}
        assert either_store.champions() == []
        fenced.claim = take(worker="node3")
        assert fenced.crown(again) == 1
        assert [each.id for each in either_store.champions()] == [again.id]


def test_claims_of_many_threads_leave_one_running(either_url: str) -> None:
    def taking(worker: str) -> list[int]:
        with Store.open(either_url) as own:
            return [Claims(own).take(NIGHT, "a study", "slice", worker, "", "") for _ in range(5)]

    with ThreadPoolExecutor(3) as pool:
        numbers = [number for taken in pool.map(taking, ("node0", "node1", "node2")) for number in taken]
    with Store.open(either_url) as store:
        found = Claims(store).of()
        assert sorted(numbers) == [each.number for each in found]
        assert [each.number for each in found if each.state == RUNNING] == [max(numbers)]


def test_one_coordinator_at_a_time_works_with_a_server(postgresql: str) -> None:
    databases = Databases(postgresql)
    url = databases.fresh()
    with Store.open(url) as one, Store.open(url) as other:
        with Claims(one).coordinating():
            with (
                pytest.raises(LockedByAnother, match=r"one coordinator at a time"),
                Claims(other).coordinating(),
            ):
                pass
            assert one.records() == []
        with Claims(other).coordinating(), databases.slow_to_unlock(url, 0.5):
            pass
        with Claims(one).coordinating():
            databases.disconnect(url)
        with Claims(one).coordinating():
            assert one.records() == [], "an end of its connection is no trouble"


def test_a_store_waits_for_its_server(postgresql: str) -> None:
    """The server ends all connections while a thread stores; nothing is lost or doubled."""
    databases = Databases(postgresql)
    url = databases.fresh()
    stored = [record(square(64)) for _ in range(20)]
    with PatientStore.open(url) as store:
        ended = threading.Event()

        def ending() -> None:
            while not ended.wait(0.2):
                databases.disconnect(url)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(ending)
            try:
                for each in stored:
                    store.add(each)
                    ended.wait(0.02)
            finally:
                ended.set()
        assert {each.id for each in store.records()} == {each.id for each in stored}


def test_what_a_database_refuses_is_not_tried_again() -> None:
    tried: list[int] = []

    def refusing() -> None:
        tried.append(1)
        raise StoreTrouble("no") from ValueError("never")

    with pytest.raises(StoreTrouble, match="no"):
        patiently(refusing)
    assert tried == [1]


def test_patience_ends() -> None:
    with (
        pytest.raises(StoreTrouble, match="its server does not answer"),
        PatientStore.open("postgresql://nobody@127.0.0.1:9/none") as store,
    ):
        store.records()
