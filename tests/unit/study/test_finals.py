"""Finals and crown: who is struck off, and the library with as many threads as the finalists and with all."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fixtures.fake_device import BEST_S, TOY, database, stored, study, write_device
from fixtures.postgres import Databases
from fixtures.records import BOARD, champion, record, square

from tuner.cli.champions import champions as command
from tuner.cli.formatting import answer_rows
from tuner.devices.detect import kind_of
from tuner.errors import InputError, NothingFound
from tuner.lookup import Answer, answer
from tuner.results.measurement import Comparison, Measurement, Outcome
from tuner.results.record import Champion, Role, Subject, new_id
from tuner.results.verdict import Act, Crown
from tuner.store import Store, matrix
from tuner.study import crowns


def crowned(folder: Path, threads: int, baseline_s: Any) -> Champion:
    """The champion of a study of a kernel that uses so many threads."""
    threads_choice = f'choice("THREADS", {threads})'
    declared = TOY.read_text().replace('choice("FUSED", False, True)', threads_choice)
    declared = declared.replace('target="cpu",', 'target="cpu", threads="THREADS",')
    (folder / "toy.py").write_text(declared)
    for source in ("toy.cu", "toy.numba.py"):
        (folder / source).write_text(TOY.with_name(source).read_text())
    info = {"kind": "cpu", "name": "Fake CPU", "cores": 8}
    rules = [{"where": {"CHUNK": 256}, "latency_s": BEST_S}]
    data = {"info": info, "landscape_seed": 3, "base_s": 1e-3, "rules": rules, "baseline_s": baseline_s}
    (folder / "cpu.json").write_text(json.dumps(data))
    result = study(folder, f"fake:{folder}/cpu.json", file=folder / "toy.py")
    assert result.champion is not None
    return result.champion


def libraries(champion: Champion) -> dict[str, tuple[float, str]]:
    """Library and threads -> its time over the champion's, and the champion's verdict."""
    return {
        pair.other: (pytest.approx(pair.comparison.ratio, rel=0.01), pair.comparison.verdict)
        for pair in champion.own_pairs
        if pair.other.startswith("NumPy")
    }


@pytest.mark.parametrize(("one_s", "eight_s"), [(1.5, 3.0), (3.0, 0.5)])
def test_the_speedup_is_over_the_better_count_of_threads(tmp_path: Path, one_s: float, eight_s: float) -> None:
    champion = crowned(tmp_path, 1, {"1": one_s * BEST_S, "2": 1e-9, "8": eight_s * BEST_S})
    assert dict(champion.record.config) == {"CHUNK": 256, "THREADS": 1}
    assert champion.speedup == pytest.approx(min(one_s, eight_s), rel=0.01)
    assert champion.baseline.versions["blas_threads"] == ("1" if one_s < eight_s else "8")
    verdicts = {True: "faster", False: "slower"}
    assert libraries(champion) == {
        "NumPy, 8 threads": (eight_s, verdicts[eight_s > 1]),
        "NumPy, 1 thread": (one_s, verdicts[one_s > 1]),
    }
    # Before the search with its default, then both in the finals; each record says its threads.
    threads = [each.versions["blas_threads"] for each in stored(tmp_path, Role.BASELINE)]
    assert sorted(threads) == ["1", "8", "8"]


def stored_library(folder: Path, like: Champion, time_s: float, core_type: str = "") -> None:
    """Stores a run of the library from before, under a core type."""
    core = {"blas_core_type": core_type} if core_type else {}
    earlier = replace(
        like.baseline, id=new_id(), session="before", versions={**like.baseline.versions, **core},
        measurement=Measurement(Outcome.MEASURED, samples_s=(time_s,) * 10),
    )  # fmt: skip
    with Store.open(database(folder)) as store:
        store.add(earlier)


def test_a_champion_of_all_threads_meets_the_library_once_and_quiet_is_not_provisional(tmp_path: Path) -> None:
    champion = crowned(tmp_path, 8, {"1": 1.5 * BEST_S, "8": 2 * BEST_S})
    assert champion.speedup == pytest.approx(2.0, rel=0.01)
    assert list(libraries(champion)) == ["NumPy, 8 threads"]
    assert champion.doubts == ()
    assert champion.hardest.comparison.ratio == pytest.approx(2.0, rel=0.01)
    circumstances = champion.record.measurement.circumstances
    assert circumstances["baseline_apart_from_search"] == pytest.approx(1.0, rel=0.01)
    assert 0 < circumstances["finals_noise"] < 0.01


def test_a_library_that_was_faster_before_makes_champions_provisional_and_comes_first(tmp_path: Path) -> None:
    stored_library(tmp_path, crowned(tmp_path, 8, {"8": 50 * BEST_S}), 0.785 * BEST_S, "SkylakeX")
    champion = crowned(tmp_path, 8, {"8": 50 * BEST_S})
    assert champion.speedup == pytest.approx(50, rel=0.01)
    assert "63." in champion.doubts[0]
    with Store.open(database(tmp_path), read_only=True) as store:
        (found,) = store.champions(operation="toy")
    assert found.doubts == champion.doubts
    hardest = champion.hardest
    assert hardest.other == "NumPy, SkylakeX, 8 threads, not in the finals"
    assert hardest.comparison.ratio == pytest.approx(0.785, rel=0.01)
    rows = dict(answer_rows(Answer(champion).to_json()))
    assert rows["speed-up"].startswith("slower than NumPy, SkylakeX, 8 threads, not in the finals: 0.78")
    assert "63." in rows["provisional"]


def test_a_champion_is_no_faster_than_in_the_state_of_a_program_that_suits_it_least(tmp_path: Path) -> None:
    states = {"back_to_back": 1.9, "in_turn": 0.8, "after_idling": 1.5}
    device = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S, states=states)
    champion = study(tmp_path, device).champion
    assert champion.record.measurement.states == states
    assert champion.speedup == 0.8
    answer = Answer(champion).to_json()
    assert (answer["use"], answer["in_programs"]) == ("CuPy", states)
    assert dict(answer_rows(answer))["in programs"] == (
        "1.900 x back to back, 0.800 x in turn, 1.500 x after idling"
    )
    # The rounds of the finals found twice the library's speed: no one figure is right.
    assert dict(answer_rows(answer))["speed-up"].startswith("as fast as CuPy (0.800 to ")


def test_the_library_by_itself_and_at_its_best_are_both_told(tmp_path: Path) -> None:
    champion = study(tmp_path, write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)).champion
    (pair, *_), of = champion.own_pairs, Comparison(1.25, 1.24, 1.26, "faster")
    best = replace(pair, other="cublaslt PROPOSAL=3", comparison=of)
    other = replace(best, other="cublaslt PROPOSAL=1", comparison=replace(of, ratio=1.3))
    champion = replace(champion, speedup=2.0, pairs=(other, best, *champion.own_pairs))
    rows = dict(answer_rows(Answer(champion).to_json()))
    assert rows["at its best"] == "1.250 x cublaslt PROPOSAL=3"
    assert champion.leads == "2.000 x CuPy, 1.250 x the best of cublaslt"


# The third are called as programs call them, for which each needs seconds.
@pytest.mark.parametrize(("finals_s", "states_s", "others"), [(5.0, 0.0, 3), (0.0, 0.0, 0), (5.0, 4.0, 0)])
def test_with_little_time_for_the_finals_fewer_are_checked_and_play(
    tmp_path: Path, finals_s: float, states_s: float, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_of("cuda"), "states_s", states_s)
    rules = [{"where": {}, "latency_s": BEST_S}]
    device = write_device(tmp_path / "device.json", rules=rules, baseline_s=BEST_S)
    result = study(tmp_path, device, trials=6, finals_s=finals_s)
    assert len([pair for pair in result.champion.own_pairs if pair.other != "CuPy"]) == others


def test_finals_compile_nothing_again(tmp_path: Path) -> None:
    compiled = tmp_path / "compiled"
    rules = [{"where": {}, "latency_s": BEST_S}]
    device = write_device(tmp_path / "device.json", rules=rules, baseline_s=BEST_S, compiled=str(compiled))
    champion = study(tmp_path, device, trials=6, finals_s=5.0).champion
    assert len(champion.own_pairs) > 2
    hashes = compiled.read_text().split()
    assert len(set(hashes)) == len(hashes) == 6


# --- the crown log ----------------------------------------


PROBLEM = square(64)


def crown(store: Store, tile: int, day: int, time_s: float) -> str:
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
            crown(store, tile, day, 1e-3 / day)
        yield store


def tile_of(store: Store, **asked: bool) -> int:
    """The tile that answers, by each of the ways to ask."""
    found = store.champion(PROBLEM, BOARD, "cold", **asked)
    tile = int(found.record.config["BM"])
    if not asked:
        query = Subject("gemm", "float32", "cuda", "cold")
        ((time, _),) = matrix.crowned(store, query)
        assert json.loads(time.config) == {"BM": tile}
        (listed,) = store.champions("gemm")
        assert listed.record.config == {"BM": tile}
        assert answer(store, PROBLEM, BOARD).config == {"BM": tile}
    return tile


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
def test_a_rollback_answers_at_once_and_the_next_champion_reigns_again(store: Store) -> None:
    assert tile_of(store) == 64
    crown(store, 64, 5, 1e-3)  # the same config again: a rollback goes back to another
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
    crown(store, 256, 6, 1e-5)
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
    crown(store, 64, 9, 1e-3)
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
        first, _ = (crown(store, tile, day, 1e-3 / day) for day, tile in enumerate((16, 32), 1))

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
