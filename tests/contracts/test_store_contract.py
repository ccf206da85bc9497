"""What every store promises, whatever database is behind it."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fixtures.records import BOARD, CPU, champion, full_record, record, square

from tuner.errors import InputError
from tuner.results.measurement import Comparison, Error, Measurement, Outcome
from tuner.results.record import Champion, Pair, ProblemKey, Record, Retraction, Role, Subject, new_id
from tuner.service import snapshots
from tuner.store import Store, listing, matrix, retracting
from tuner.store.listing import Selection

ASKED = Subject("gemm", "float32", "cuda", "cold")


@pytest.fixture
def store(either_store: Store) -> Store:
    """In a file, then on a server."""
    return either_store


def test_a_record_comes_back_as_it_went_in(store: Store, either_url: str) -> None:
    stored = full_record()
    store.add(stored)
    with Store.open(either_url, read_only=True) as reopened:
        for found in (store.record(stored.id), reopened.record(stored.id)):
            assert found == stored
            assert list(found.config) == ["BM", "PAD", "BORDER", "SCALE"]


def test_a_record_is_only_ever_added(store: Store) -> None:
    first = record(square(64), time_s=1e-3)
    second = record(square(64), time_s=2e-3)
    counts = [store.add(some) for some in (first, [replace(first, kernel="another"), second, second], [])]
    assert counts == [1, 1, 0], "what is new is counted"
    assert store.record(first.id) == first
    assert len(store.records()) == 2


def test_records_are_found_by_what_they_are(store: Store) -> None:
    wanted = record(square(64), study="a", session="s1", role=Role.FINAL)
    others = [
        record(square(65), study="a", session="s1"),
        record(square(64, "nt"), study="b", session="s1"),
        record(square(64), study="b", session="s2", device=CPU),
    ]
    store.add([wanted, *others])
    assert len(store.records()) == 4
    assert store.records(study="a", role=Role.FINAL) == [wanted]
    assert store.records(problem=square(64), device=BOARD) == [wanted]
    assert store.records(problem=square(64), device="NVIDIA H200") == [wanted]
    assert store.records(device=CPU) == [others[2]]
    assert store.records(study="c") == []
    times = [each.measured_at for each in store.records()]
    assert times == sorted(times)


def test_the_best_record_is_the_fastest_that_was_measured(store: Store) -> None:
    failed = Measurement(Outcome.WRONG_RESULT, "wrong", samples_s=(1e-9,))
    best = record(square(64), 2e-3, kernel="tiled")
    naive = record(square(64), 5e-3, kernel="naive", source_hash="bbbb")
    library = record(square(64), 1e-3, role=Role.BASELINE, kernel="cuBLAS", config={}, source_hash="")
    others = [record(square(64), measurement=failed), record(square(64), 1e-6, regime="hot")]
    store.add([naive, best, library, record(square(65), 1e-6), record(square(64), 1e-6, device=CPU), *others])
    assert store.best_record(square(64), BOARD, "cold") == best
    assert store.best_record(square(64), BOARD, "cold", role=Role.BASELINE) == library
    now = {"naive": "bbbb", "tiled": "changed since"}
    assert store.best_record(square(64), BOARD, "cold", kernels=now) == naive
    assert store.best_record(square(64), BOARD, "cold", kernels={"tiled": ""}) == best
    assert store.best_record(square(64), BOARD, "cold", kernels={}) is None
    assert store.best_record(square(66), BOARD, "cold") is None


def test_trials_are_counted_by_outcome(store: Store) -> None:
    outcomes = [Outcome.MEASURED, Outcome.MEASURED, Outcome.COMPILE_FAILED, Outcome.PRUNED]
    store.add([record(square(64), measurement=Measurement(outcome)) for outcome in outcomes])
    store.add([record(square(64), role=Role.FINAL), record(square(65))])
    assert store.counts(square(64), BOARD, "cold") == {
        "total": 4, "measured": 2, "failed": 1, "MEASURED": 2, "COMPILE_FAILED": 1, "PRUNED": 1,
    }  # fmt: skip


def test_a_champion_comes_back_with_its_records(store: Store, either_url: str) -> None:
    best, library = full_record(), record(square(64), 2e-3, role=Role.BASELINE, kernel="cuBLAS", config={})
    pair = Pair("tiled BM=64", "cuBLAS", 2e-3, Comparison(1.25, 1.2, 4 / 3, "faster"))
    crowned = champion(
        best, baseline=library, speedup=1.25, verdict="faster", trials={"total": 9, "failed": 1}, pairs=(pair,)
    )
    assert (store.crown([crowned, crowned]), store.crown(crowned)) == (1, 0)
    with Store.open(either_url, read_only=True) as reopened:
        for reader in (store, reopened):
            assert reader.champion(square(64), BOARD, "cold") == crowned
            assert reader.champions(history=True) == [crowned]
            assert reader.record(library.id) == library


def test_the_champion_crowned_last_answers(store: Store) -> None:
    days = [f"2026-01-0{day}T00:00:00.000000+00:00" for day in (1, 3, 2)]
    first, last, middle = (champion(record(square(64)), crowned_at=day) for day in days)
    for each in (first, last, middle):
        store.crown(each)
    assert store.champion(square(64), BOARD, "cold") == last
    assert store.champions("gemm") == [last]
    assert store.champions("gemm", history=True) == [first, middle, last]


def test_a_champion_is_of_one_problem_regime_and_kernel(store: Store) -> None:
    crowned = champion(record(square(64), kernel="tiled"))
    store.crown(crowned)
    assert store.champion(square(64), BOARD, "cold", kernel="tiled") == crowned
    assert store.champion(square(64), BOARD, "cold", kernel="naive") is None
    assert store.champion(square(64), BOARD, "hot") is None
    assert store.champion(square(64, "nt"), BOARD, "cold") is None
    assert store.champion(square(64), CPU, "cold") is None
    assert store.champions("gemv") == []
    for size, device in ((128, BOARD), (64, CPU)):
        store.crown(champion(record(square(size), device=device)))
    found = [(each.record.problem.dims["m"], each.record.device.kind) for each in store.champions("gemm")]
    assert found == [(64, "cpu"), (64, "cuda"), (128, "cuda")], "by problem"


def test_another_board_of_a_kind_answers_unless_the_very_board_can(store: Store) -> None:
    twin = replace(BOARD, uuid="GPU-2")
    namesake = replace(BOARD, kind="cpu", uuid="cpu-2")
    early, late = "2026-01-01T00:00:00.000000+00:00", "2026-01-02T00:00:00.000000+00:00"
    own = champion(record(square(64)), crowned_at=early)
    other = champion(record(square(64), device=twin), crowned_at=late)
    store.crown(own)
    assert store.champion(square(64), twin, "cold") == own
    assert store.champion(square(64), namesake, "cold") is None
    store.crown(other)
    assert store.champion(square(64), BOARD, "cold") == own
    assert store.champion(square(64), twin, "cold") == other
    assert store.champion(square(64), "NVIDIA H200", "cold") == other
    assert store.champion(square(64), "GPU-1", "cold") == own
    assert store.champions(device="NVIDIA H200") == [other]


def test_a_device_is_listed_once_as_it_was_described_last(store: Store) -> None:
    updated = replace(BOARD, driver="590.1")
    store.add([record(square(64)), record(square(64), device=CPU), record(square(64), device=updated)])
    assert store.devices() == [CPU, updated]
    assert len(store.records(device=BOARD)) == 2


def test_texts_and_errors_that_a_database_does_not_take_are_kept_as_near_as_can_be(store: Store) -> None:
    told, error = "a NUL \0 and half a pair \ud800", Error(math.nan, math.inf, -math.inf)
    some = [record(square(64), measurement=Measurement(outcome, told, error=error)) for outcome in Outcome]
    store.add(some)
    for each in some:
        found = store.record(each.id).measurement
        assert found.outcome is each.measurement.outcome
        assert found.reason == "a NUL \N{SYMBOL FOR NULL} and half a pair ?"
        assert str(found.error) == str(error), "not a number is not equal to itself"


def test_all_records_are_streamed_by_id(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "AT_ONCE", 3)
    some = [record(square(64 + n % 2), device=(BOARD, CPU)[n % 3 == 0]) for n in range(10)]
    store.add(some)
    crowned = [champion(each) for each in some]
    store.crown(crowned)
    by_id = sorted(some, key=lambda each: each.id)
    assert list(listing.stream(store, Record, Selection())) == by_id
    assert listing.count(store) == 10
    chosen = Selection("gemm", (64, 64, 64), "NVIDIA H200", "cold")
    fits = [each for each in by_id if each.problem == square(64) and each.device == BOARD]
    assert 0 < len(fits) < 5
    assert list(listing.stream(store, Record, chosen)) == fits
    assert {each.record.id for each in listing.stream(store, Champion, chosen)} == {each.id for each in fits}
    assert list(listing.stream(store, Champion, Selection())) == sorted(crowned, key=lambda each: each.id)
    assert list(listing.stream(store, Record, Selection("gemv"))) == []
    assert [found for _, found in listing.latest(store, Selection(), 4)] == some[:-5:-1]
    assert listing.latest(store, Selection(regime="hot"), 4) == []


def test_a_failed_call_stores_nothing_and_the_next_one_works(store: Store) -> None:
    fresh = replace(BOARD, name="another")
    with pytest.raises(InputError, match=r"is named by its id, a UUID such as .*got 'no'"):
        store.add([record(square(64), device=fresh), record(square(64), id="no")])
    assert store.records() == []
    stored = record(square(64), device=fresh)
    store.add(stored)
    assert store.records() == [stored]


def test_two_stores_write_to_one_database(either_url: str, store: Store) -> None:
    """Each caches numbers of rows, and neither may trust what the other rolls back or adds."""
    with Store.open(either_url) as other:
        batches = [[record(square(size), id=new_id()) for size in range(1, 40)] for _ in range(2)]

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda target, batch: [target.add(each) for each in batch], (store, other), batches))
        assert {each.id for each in other.records()} == {each.id for batch in batches for each in batch}


def test_what_is_taken_back_counts_nowhere_and_undone_it_counts_again(store: Store) -> None:
    kept, gone = record(square(64), 2e-3), record(square(64), 1e-3)
    crowned = [champion(kept), champion(gone, crowned_at="2026-01-02T00:00:00.000000+00:00")]
    store.crown(crowned)
    retraction = Retraction(gone.id, "a NUL \0 in the reason")
    assert store.add([retraction, retraction]) == 1
    assert store.add(retraction) == 0
    assert store.champion(square(64), BOARD, "cold") == crowned[0]
    assert store.champions(history=True) == list(listing.stream(store, Champion, Selection())) == [crowned[0]]
    assert store.records() == list(listing.stream(store, Record, Selection())) == [kept]
    assert store.best_record(square(64), BOARD, "cold") == kept
    assert store.counts(square(64), BOARD, "cold")["total"] == 1
    assert [row.time_s for rows in matrix.fastest(store, ASKED, 100) for row in rows] == [2e-3]
    assert [time.time_s for time, _ in matrix.crowned(store, ASKED)] == [2e-3]
    (tally,) = listing.tallies(store)
    assert (tally["operation"], tally["device"], tally["retracted"]) == ("gemm", "NVIDIA H200", 1)
    (told,) = listing.stream(store, Retraction)
    assert (told.id, told.of) == (retraction.id, gone.id)
    assert retracting.retracted(store, [kept.id, gone.id]) == {gone.id: told}
    assert listing.count(store) == 2
    store.add(Retraction(retraction.id))
    assert store.champion(square(64), BOARD, "cold") == crowned[1]
    assert len(store.records()) == 2
    store.add(Retraction(gone.id))
    assert store.records() == [kept], "it can be taken back once more"
    with pytest.raises(InputError, match="UUID"):
        store.add(Retraction("no"))


def test_a_retraction_may_come_before_what_it_takes_back(store: Store) -> None:
    later = record(square(64))
    store.add(Retraction(later.id))
    store.add(later)
    assert store.records() == []
    assert store.devices() == []


# --- what lookups read of a store -----------------------------------------------------------------------------


def test_the_fastest_times_come_for_each_problem_and_device(store: Store) -> None:
    slow, quick = record(square(64), 2e-3), record(square(64), 1e-3, config={"BM": 32})
    pruned = record(square(64), measurement=Measurement(Outcome.PRUNED, "slow", (9e-3,)))
    failed = record(square(64), measurement=Measurement(Outcome.CRASHED, "signal 11"))
    elsewhere = [
        record(square(64), 1e-9, device=CPU), record(square(64), 1e-9, regime="hot"),
        record(replace(square(64), dtype="float64"), 1e-9), record(replace(square(64), operation="own"), 1e-9),
    ]  # fmt: skip
    other = record(square(128), 5e-3, device=replace(BOARD, name="NVIDIA L4", uuid="GPU-9"))
    store.add([slow, pruned, failed, *elsewhere, other, quick])
    found = matrix.fastest(store, ASKED, 1000)
    assert [[row.time_s for row in rows] for rows in found] == [[1e-3, 2e-3, 9e-3], [5e-3]]
    first = found[0][0]
    assert (first.problem, first.device, first.kernel) == (square(64), BOARD, "tiled")
    assert (first.source_hash, first.config, first.role) == ("aaaa", '{"BM":32}', Role.TRIAL)
    named = matrix.fastest(store, ASKED._replace(device="NVIDIA L4"), 1000)
    assert [[row.problem for row in rows] for rows in named] == [[square(128)]]


def test_the_last_champion_of_each_problem_comes_with_its_speed_up(store: Store) -> None:
    library = record(square(64), 3e-3, role=Role.BASELINE, kernel="cuBLAS", config={}, source_hash="")
    before, after = record(square(64), 2e-3, role=Role.FINAL), record(square(64), 1e-3, role=Role.FINAL)
    alone = record(square(128), 4e-3, role=Role.FINAL)
    store.crown(champion(after, "2026-01-02T00:00:00.000000+00:00", baseline=library, speedup=3.0))
    store.crown(champion(before, "2026-01-01T00:00:00.000000+00:00"))
    store.crown(champion(alone, "2026-01-03T00:00:00.000000+00:00"))
    (first, (_, speedup)), (second, (_, none)) = matrix.crowned(store, ASKED)
    assert (first.time_s, first.kernel, speedup) == (1e-3, "tiled", 3.0)
    assert (second.problem, none) == (square(128), 0.0)
    assert matrix.crowned(store, ASKED._replace(device="nothing")) == []


# --- snapshots ------------------------------------------------------------------------------------------------


def test_a_store_as_of_a_snapshot_stays_as_it_was(store: Store, either_url: str) -> None:
    problem, other = square(64), square(128)
    crowned = champion(record(problem, 2e-3), baseline=record(problem, 3e-3, role=Role.BASELINE), speedup=1.5)
    store.crown(crowned)
    store.add([record(problem, 1e-3), record(other, 5e-3, device=CPU)])
    manifest = snapshots.take(store, "code")
    assert snapshots.take(store, "code") == manifest, "nothing has changed"
    with snapshots.as_of(either_url, manifest.positions) as then:
        before = _all_of(then, problem, other)
        store.crown(champion(record(problem, 1e-4), "2026-02-01T00:00:00.000000+00:00"))
        store.add([record(problem, 1e-5), record(square(256))])
        store.add(Retraction(crowned.record.id))
        assert _all_of(then, problem, other) == before
    later = snapshots.take(store, "code")
    assert later.number > manifest.number
    assert snapshots.manifest_of(store, manifest.number) == manifest
    with (
        snapshots.as_of(either_url, manifest.positions) as again,
        snapshots.as_of(either_url, later.positions) as now,
    ):
        assert _all_of(again, problem, other) == before
        assert _all_of(now, problem, other) == _all_of(store, problem, other) != before
    assert before[0] == crowned
    assert snapshots.changed_problems(store, manifest.positions) == {problem, square(256)}


def _all_of(store: Store, *problems: ProblemKey) -> list[object]:
    """What lookups ask of a store."""
    asked: list[object] = []
    for problem in problems:
        for device in (BOARD, CPU, BOARD.uuid, BOARD.name, replace(BOARD, uuid="GPU-2")):
            for kernel in (None, "tiled", "other"):
                asked.append(store.champion(problem, device, "cold", kernel))
            asked.append(store.best_record(problem, device, "cold"))
            asked.append(store.counts(problem, device, "cold"))
    return [*asked, store.champions(), store.devices(), matrix.stamp(store)[:3]]
