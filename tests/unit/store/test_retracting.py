"""What is taken back answers, teaches and travels no more; nothing is deleted, and it can be undone."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fixtures.commands import caller
from fixtures.records import BOARD, CPU, champion, record, square

from tuner.errors import NothingFound
from tuner.lookup.snapshot import Snapshot
from tuner.results.record import Champion, Record, Retraction, Role, Subject
from tuner.store import Store, exchange, listing, matrix, published, retracting
from tuner.store.retracting import Chosen, give_back, take_back

BOGUS, HONEST = {"BM": 7, "VECTOR": 1}, {"BM": 64, "VECTOR": 4}
DAYS = [f"2026-01-0{day}T00:00:00.000000+00:00" for day in (1, 2, 3)]
GEMM = Subject("gemm", "float32", "cuda", "cold")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An honest champion, then a bogus one, with the trials of both."""
    with Store.open(f"sqlite:///{tmp_path}/studies.db") as store:
        for config, time_s, day in ((HONEST, 1e-3, DAYS[0]), (BOGUS, 1e-6, DAYS[1])):
            store.add(record(square(64), time_s, config=config, measured_at=day))
            final = record(square(64), time_s, config=config, role=Role.FINAL, measured_at=day)
            library = record(square(64), 2e-3, role=Role.BASELINE, kernel="cuBLAS", measured_at=day)
            store.crown(champion(final, crowned_at=day, baseline=library))
        yield store


def reigning(store: Store) -> Champion:
    found = store.champion(square(64), BOARD, "cold")
    assert found is not None
    return found


def configs(store: Store) -> list[object]:
    """Which config each way of asking gives first."""
    best = store.best_record(square(64), BOARD, "cold")
    kernels = [row for rows in matrix.fastest(store, GEMM, 100) for row in rows if row.role != "baseline"]
    return [
        reigning(store).record.config, store.champions()[-1].record.config, best.config if best else None,
        json.loads(matrix.crowned(store, GEMM)[-1][0].config), json.loads(kernels[0].config),
    ]  # fmt: skip


def test_a_bogus_champion_that_is_taken_back_gives_way_to_the_one_before(store: Store) -> None:
    assert configs(store) == [BOGUS] * 5
    stamp = matrix.stamp(store)
    bogus = reigning(store)
    assert take_back(store, Chosen((bogus.record.id,)), "zeroes its input") == 2, "its trial tells the same lie"
    assert configs(store) == [HONEST] * 5
    assert matrix.stamp(store) != stamp, "what lookups keep is read anew"
    assert store.record(bogus.record.id) == bogus.record, "nothing is deleted"
    # Again changes nothing; undone, it counts as before, and can be taken back once more.
    assert take_back(store, Chosen((bogus.record.id,))) == 0
    assert give_back(store, Chosen((bogus.record.id,))) == 2
    assert configs(store) == [BOGUS] * 5
    assert take_back(store, Chosen((bogus.id,))) == 3, "by the champion's own id, which is taken back, too"
    assert configs(store) == [HONEST] * 5


def test_a_champion_falls_with_the_library_that_it_was_held_against(store: Store) -> None:
    library = reigning(store).baseline
    take_back(store, Chosen((library.id,), alone=True))
    assert reigning(store).record.config == HONEST


def test_by_time_and_by_device(store: Store) -> None:
    store.crown(champion(record(square(64), device=CPU, measured_at=DAYS[2]), crowned_at=DAYS[2]))
    assert take_back(store, Chosen(before=DAYS[1])) == 3
    assert [each.record.config for each in store.champions(device=BOARD, history=True)] == [BOGUS]
    assert take_back(store, Chosen(device=CPU.name)) == 1
    assert store.devices() == [BOARD]
    assert store.champions(device=CPU) == []
    assert take_back(store, Chosen(after=DAYS[0], device=BOARD.name)) == 3
    assert store.devices() == []
    assert list(matrix.crowned(store, GEMM)) == []
    (tally, *_) = [each for each in listing.tallies(store) if each["device"] == BOARD.name]
    assert [tally[name] for name in ("trials", "finals", "champions", "retracted")] == [0, 0, 0, 6]
    assert give_back(store, Chosen(before=DAYS[1])) == 3
    assert reigning(store).record.config == HONEST
    with pytest.raises(NothingFound, match="no record or champion here has the id"):
        take_back(store, Chosen((record(square(64)).id,)))


def test_retractions_travel_instead_of_records(store: Store, tmp_path: Path, subtests: pytest.Subtests) -> None:
    everything = tmp_path / "before.jsonl.gz"
    exchange.export(store, everything)
    take_back(store, Chosen((reigning(store).record.id,)))
    counts = exchange.export(store, tmp_path / "after.jsonl")
    assert (counts.records, counts.champions, counts.retractions) == (4, 1, 2)
    assert BOGUS not in [each.config for each in listing.stream(store, Record, listing.Selection())]
    orders = ([everything, tmp_path / "after.jsonl"], [tmp_path / "after.jsonl", everything])
    for number, order in enumerate(orders):
        with subtests.test(number), Store.open(f"sqlite:///{tmp_path}/there{number}.db") as there:
            for path in order:
                exchange.take(there, path)
            assert configs(there) == [HONEST] * 5
    with Store.open(f"sqlite:///{tmp_path}/merged.db") as there:
        exchange.take(there, everything)
        assert exchange.merge(there, store).retractions == 2
        assert configs(there) == [HONEST] * 5
        # Undone at one place, it is undone at the other once they are merged.
        gone = [retraction.of for retraction in listing.stream(store, Retraction)]
        give_back(store, Chosen((store.records()[0].id, *gone)))
        exchange.merge(there, store)
        assert configs(there) == [BOGUS] * 5


def test_published_results_obey(store: Store, tmp_path: Path) -> None:
    folder, bogus = tmp_path / "tuned", reigning(store)
    (path,) = published.publish(store, folder)
    (entry,) = published.entries("gemm", folder)
    assert entry.champion.record.config == BOGUS
    take_back(store, Chosen((bogus.record.id,)))
    assert published.standing([entry], None) == [entry]
    assert Snapshot.open(store, folder).standing("gemm") == []
    assert Snapshot.open(None, folder).standing("gemm") == [entry]
    assert published.publish(store, folder) == [path]
    (entry,) = published.entries("gemm", folder)
    assert entry.champion.record.config == HONEST
    assert BOGUS not in [each.config for each in entry.runners_up]
    # Nothing of the problem is left.
    take_back(store, Chosen(device=BOARD.name))
    assert published.publish(store, folder) == [path]
    assert not path.exists()


def test_the_command_marks_what_is_taken_back(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    told, bogus = caller(capsys), reigning(store).record
    code, out, _ = told("records", "forget", bogus.id, "--reason", "zeroes its input")
    assert (code, out) == (0, "2 records taken back; the same command with --undo lets them count again\n")
    assert told("records", "list")[1].count("taken") == 2
    listed = {each["id"]: each["taken_back"] for each in json.loads(told("records", "list", "--json")[1])}
    assert listed[bogus.id].endswith("zeroes its input")
    assert sum(each is not None for each in listed.values()) == 2
    assert "zeroes its input" in told("records", "show", bogus.id)[1]
    assert "taken back" in told("records", "stats")[1]
    assert json.loads(told("records", "forget", bogus.id, "--undo", "--json")[1]) == {"undone": 2}
    assert json.loads(told("records", "forget", "--before", "2026-01-02", "--json")[1]) == {"taken_back": 3}


# ---- a clock that stood ahead

AHEAD = (datetime.now(UTC) + timedelta(days=2000)).isoformat(timespec="microseconds")


def test_a_clock_that_stood_ahead_holds_no_champion_for_years(store: Store, tmp_path: Path) -> None:
    assert retracting.ahead(store) is None
    early = champion(record(square(64), 9e-3, config={"BM": 1}, measured_at=AHEAD), crowned_at=AHEAD)
    store.crown([early, champion(record(square(32), measured_at=AHEAD), crowned_at=AHEAD)])
    assert reigning(store).record.config == BOGUS, "one of a clock that is believed goes before"
    assert {each.record.problem.dims["m"]: each.record.config for each in store.champions()} == {
        32: HONEST, 64: BOGUS,
    }  # fmt: skip
    answering = [json.loads(time.config)["BM"] for time, _ in matrix.crowned(store, GEMM)]
    assert sorted(answering) == [7, 64]
    assert store.champion(square(32), BOARD, "cold") is not None, "it answers where there is no other"
    found = retracting.ahead(store)
    assert found is not None
    assert "2 records are dated in the future" in found
    take_back(store, Chosen(after=datetime.now(UTC).isoformat()))
    assert retracting.ahead(store) is None
    assert store.champion(square(32), BOARD, "cold") is None
