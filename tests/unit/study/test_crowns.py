"""The crown log in a database: lookups, matrices, copies and the command line obey it."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fixtures.postgres import Databases
from fixtures.records import BOARD, champion, record, square

from tuner.cli.champions import champions as command
from tuner.errors import InputError, NothingFound
from tuner.lookup import answer
from tuner.results.record import Subject
from tuner.results.verdict import Act, Crown
from tuner.store import Store, matrix
from tuner.study import crowns

PROBLEM = square(64)


def crowned(store: Store, tile: int, day: int, time_s: float) -> str:
    """Crowns a config on a day; returns the champion's id."""
    library = record(PROBLEM, 2e-3, kernel="cuBLAS", config={})
    made = champion(
        record(PROBLEM, time_s, kernel="mine", config={"BM": tile}), f"2026-01-0{day}T12:00:00.000000+00:00",
        baseline=library, speedup=2e-3 / time_s, id=str(uuid.UUID(int=0xABC + day)),
    )  # fmt: skip
    store.crown(made)
    return made.id


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Three champions, in SQLite or where a test asks for it in PostgreSQL."""
    on_server = getattr(request, "param", "sqlite") == "postgresql"
    url = f"sqlite:///{tmp_path}/studies.db"
    with Store.open(Databases(request.getfixturevalue("postgresql")).fresh() if on_server else url) as store:
        for day, tile in enumerate((16, 32, 64), 1):
            crowned(store, tile, day, 1e-3 / day)
        yield store


def tile_of(store: Store, **asked: bool) -> int:
    """The tile that answers, by each of the ways to ask."""
    found = store.champion(PROBLEM, BOARD, "cold", **asked)
    tile = int(found.record.config["BM"])
    if not asked:
        query = Subject("gemm", "float32", "cuda", "cold")
        (row,) = matrix.crowned(store, query)
        assert json.loads(row.record.config) == {"BM": tile}
        (listed,) = store.champions("gemm")
        assert listed.record.config == {"BM": tile}
        assert answer(store, PROBLEM, BOARD).config == {"BM": tile}
    return tile


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
def test_a_rollback_answers_at_once_and_the_next_champion_reigns_again(store: Store) -> None:
    assert tile_of(store) == 64
    crowned(store, 64, 5, 1e-3)  # the same config again: a rollback goes back to another
    crowns.rollback(store, crowns.reign(store, PROBLEM), "slower since the new driver", "me")
    assert tile_of(store) == 32
    crowns.rollback(store, crowns.reign(store, PROBLEM), "that, too", "me")
    assert tile_of(store) == 16
    with pytest.raises(NothingFound, match="an earlier champion of another config to go back to"):
        crowns.rollback(store, crowns.reign(store, PROBLEM), "once more", "me")
    store.crown(champion(record(PROBLEM, 1e-4, config={"BM": 128}), "2030-01-01T00:00:00.000000+00:00"))
    assert len(store.champions("gemm", history=True)) == 5


def test_a_pin_holds_until_it_is_taken_back(store: Store) -> None:
    place = crowns.reign(store, PROBLEM)
    with pytest.raises(NothingFound, match="must be pinned to be unpinned"):
        crowns.unpin(store, place, "")
    with pytest.raises(NothingFound, match="an id names a champion of gemm"):
        crowns.pin(store, place, "nobody", "")
    with pytest.raises(InputError, match="fits 3; give more"):
        crowns.pin(store, place, "00000000", "")
    crowns.pin(store, place, place.history[0].id, "production", "me")
    crowned(store, 256, 6, 1e-5)
    assert tile_of(store) == 16
    crowns.unpin(store, crowns.reign(store, PROBLEM), "done", "me")
    assert tile_of(store) == 256


def test_a_freeze_keeps_later_champions_from_answering(store: Store) -> None:
    frozen = Crown(Act.FREEZE, None, "", "", "", "", "me", made_at="2026-01-02T13:00:00.000000+00:00")
    store.add(frozen)
    assert tile_of(store) == 32
    assert [crowns.reign(store, PROBLEM).state(each) for each in store.champions("gemm", history=True)] == [
        "", "", "frozen out",
    ]  # fmt: skip
    crowns.freeze(store, "over", "me", thaw=True)
    assert tile_of(store) == 64


def test_a_champion_behind_the_library_names_it_until_the_next_or_a_pin(store: Store) -> None:
    def used() -> str:
        return answer(store, PROBLEM, BOARD).use

    place = crowns.reign(store, PROBLEM)
    assert (place.champion, used()) == (place.history[-1], "kernel")
    crowns.enter(store, Act.BEHIND, place.place, place.history[-1].id, "3.5 % slower", "me")
    assert (tile_of(store), used()) == (64, "cuBLAS")
    assert crowns.reign(store, PROBLEM).state(place.history[-1]) == "behind the library"
    crowns.pin(store, place, "", "production", "me")
    assert used() == "kernel"
    crowns.unpin(store, crowns.reign(store, PROBLEM), "done", "me")
    assert used() == "cuBLAS"
    crowned(store, 64, 9, 1e-3)
    assert used() == "kernel"


def test_only_confirmed_champions_on_request(store: Store) -> None:
    place = crowns.reign(store, PROBLEM)
    first, second, _ = place.history
    assert store.champion(PROBLEM, BOARD, "cold", confirmed=True) is None
    crowns.enter(store, Act.CONFIRM, place.place, first.id, "won again")
    crowns.enter(store, Act.DOUBT, place.place, second.id, "did not")
    assert tile_of(store, confirmed=True) == 16
    assert answer(store, PROBLEM, BOARD, confirmed=True).config == {"BM": 16}
    assert tile_of(store) == 64


def test_the_command_line_says_who_and_why(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    with Store.open(url) as store:
        first, _ = (crowned(store, tile, day, 1e-3 / day) for day, tile in enumerate((16, 32), 1))

    def ran(*arguments: str) -> str:
        done = CliRunner().invoke(command, [*arguments, "--db", url], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    problem = ("gemm", "64", "64", "64")
    assert "now answers mine BM=16" in ran("rollback", *problem, "--why", "slow", "--who", "ann")
    (listed,) = json.loads(ran("list", "--json"))
    assert (listed["champion"]["config"], listed["champion"]["confirmed"]) == ({"BM": 16}, False)
    told = json.loads(ran("history", *problem, "--json"))
    assert [each["state"] for each in told["history"]] == [None, "gone back from"]
    assert [(each["act"], each["who"], each["why"]) for each in told["log"]] == [("rollback", "ann", "slow")]
    for arguments, part in (
        (("pin", *problem, "--why", "w", "--who", "bob", "--champion", first), "pin by bob"),
        (("unpin", *problem, "--why", "w", "--who", "bob"), "unpin by bob"),
        (("freeze", "--why", "w"), "frozen by"), (("freeze", "--off", "--why", "w"), "thawed by"),
        (("history", *problem), "rollback"),
    ):  # fmt: skip
        assert part in ran(*arguments)
