"""Who plays the finals, and who wins them."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.commands import Told, told
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, database, rule, stored, study, write_device
from fixtures.records import record, square
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.space import Config
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import CORE_TYPE, NOISE, SEARCH, TAKEN, Error, Measurement, Outcome, doubts
from tuner.results.objectives import read_objectives, values_of
from tuner.results.record import ProblemKey, Record, Role
from tuner.results.verdict import (
    FINALIST_WITHIN,
    FINALISTS,
    Act,
    Crown,
    contradictions,
    judge,
    pairs_of,
    rules_of,
    shortlist,
)
from tuner.search import front
from tuner.store import Store
from tuner.store.published import publish
from tuner.study.leaderboard import known_front

ROUNDS = 10
FAILED = Measurement(Outcome.CRASHED, "killed")


def named(number: int) -> tuple[str, Config]:
    return "blocks", Config({"BLOCK": number})


def took(*samples_s: float) -> Measurement:
    return Measurement(Outcome.MEASURED, samples_s=samples_s * (ROUNDS // len(samples_s)))


leaderboard_drawn = st.dictionaries(
    st.integers(0, 99).map(named), st.floats(1e-6, 1.0), min_size=1, max_size=30
)


@given(leaderboard_drawn, st.none() | st.integers(0, 120).map(named))
def test_the_shortlist_is_the_holder_and_the_best_that_are_near(
    leaderboard: dict[tuple[str, Config], float], holder: tuple[str, Config] | None
) -> None:
    listed = shortlist(leaderboard, holder)
    challengers = [each for each in listed if each != holder]
    best_s = min(leaderboard.values())
    assert len(set(listed)) == len(listed)
    assert len(challengers) <= FINALISTS
    assert (holder is None) or listed[0] == holder
    assert all(leaderboard[each] <= FINALIST_WITHIN * best_s for each in challengers)
    left_out = min((time_s for each, time_s in leaderboard.items() if each not in listed), default=1e9)
    assert all(leaderboard[each] <= left_out for each in challengers)
    assert min(leaderboard, key=lambda each: leaderboard[each]) in listed


@pytest.mark.parametrize(("measured", "reigns", "winner", "verdict"), [
    ([took(2.0), took(1.0)], False, 1, "first"),
    ([took(2.0), took(1.0)], True, 1, "faster"),
    ([took(1.0), took(2.0)], True, 0, "slower"),
    ([took(1.0), took(1.001)], True, 0, "same"),
    ([took(1.0), took(0.999)], True, 0, "same"),
    ([took(1.0), took(0.8, 1.1)], True, 0, "ambiguous"),
    ([took(1.0)], True, 0, "same"),
    ([took(1.0), FAILED], True, 0, "same"),
    ([FAILED, took(3.0), took(2.0)], True, 2, "faster"),
    ([FAILED, took(3.0)], False, 1, "first"),
])  # fmt: skip
def test_the_crown(measured: list[Measurement], reigns: bool, winner: int, verdict: str) -> None:
    judged = judge(measured, reigns, [0.0] * len(measured))
    assert (judged.winner, judged.verdict) == (winner, verdict)


@pytest.mark.parametrize(
    ("burdens", "winner"), [([3, 2, 1], 1), ([2, 3, 1], 0), ([(1, "a"), (1, "b"), (0, "c")], 0)]
)
def test_of_equals_the_simplest_is_crowned_whichever_was_faster(burdens: list[Any], winner: int) -> None:
    for times in ((1.001, 1.0, 1.5), (1.0, 1.001, 1.5)):
        assert judge([took(time_s) for time_s in times], False, burdens).winner == winner


def test_every_two_that_have_times_are_compared_the_winner_first() -> None:
    played = [("best", took(1.0)), ("near", took(1.001)), ("failed", FAILED), ("library", took(0.5))]
    assert [(pair.one, pair.other, pair.time_s, pair.comparison.verdict) for pair in pairs_of(played)] == [
        ("best", "near", 1.001, "same"),
        ("best", "library", 0.5, "slower"),
        ("near", "library", 0.5, "slower"),
    ]


# --- Which champion answers after pins, rollbacks and freezes

PROBLEM = ProblemKey("gemm", (("m", 64), ("n", 64), ("k", 64)), "float32", "nn")
#: Champions a to d, crowned on four days at noon.
HISTORY = [(name, f"2026-01-0{day}T12:00:00.000000+00:00") for day, name in enumerate("abcd", 1)]


def entry(act: Act, champion: str = "", day: float = 5) -> Crown:
    when = f"2026-01-{int(day):02}T{int(day % 1 * 24):02}:00:00.000000+00:00"
    return Crown(act, PROBLEM, "cuda", "NVIDIA H200", "cold", champion, "me", made_at=when)


@pytest.mark.parametrize(("log", "answers"), [
    ([], "d"),
    ([entry(Act.PIN, "b")], "b"),
    ([entry(Act.PIN, "b"), entry(Act.UNPIN, day=6)], "d"),
    ([entry(Act.ROLLBACK, "b")], "b"),
    # One that is crowned after the rollback answers again.
    ([entry(Act.ROLLBACK, "b", day=3.9)], "d"),
    ([entry(Act.ROLLBACK, "b"), entry(Act.PIN, "c", day=6)], "c"),
    ([entry(Act.ROLLBACK, "b"), entry(Act.PIN, "c", day=6), entry(Act.UNPIN, day=7)], "c"),
    ([entry(Act.PIN, "a"), entry(Act.ROLLBACK, "c", day=6)], "c"),
    ([entry(Act.FREEZE, day=2.9)], "b"),
    ([entry(Act.FREEZE, day=2.9), entry(Act.UNFREEZE, day=6)], "d"),
    ([entry(Act.FREEZE, day=2.9), entry(Act.FREEZE, day=6)], "b"),
    ([entry(Act.FREEZE, day=2.9), entry(Act.PIN, "d", day=6)], "d"),
    # A pin of a champion that another database has bars nobody here.
    ([entry(Act.PIN, "elsewhere")], "d"),
    ([entry(Act.CONFIRM, "a"), entry(Act.DOUBT, "d")], "d"),
])  # fmt: skip
def test_who_answers(log: list[Crown], answers: str) -> None:
    assert max(rules_of(log, HISTORY).allowed(HISTORY)) == answers


def test_a_later_doubt_takes_a_confirmation_back() -> None:
    log = [entry(Act.CONFIRM, "a"), entry(Act.CONFIRM, "b"), entry(Act.DOUBT, "a", day=6)]
    assert rules_of(log, HISTORY).confirmed == {"b"}


# --- When a champion is provisional, by numbers


def library(
    time_s: float, core_type: str = "Haswell", threads: str = "2", session: str = "now", kernel: str = "NumPy"
) -> Record:
    versions = {"blas_core_type": core_type, "blas_threads": threads}
    named = {"role": Role.BASELINE, "kernel": kernel, "session": session, "versions": versions}
    return record(square(64), time_s, **named)


FINAL = library(50e-3)


def test_a_library_that_is_far_from_its_best_core_type_is_no_baseline() -> None:
    seen = contradictions(FINAL, [library(50e-3), library(0.785e-3, "SkylakeX")])
    assert seen == {SEARCH: pytest.approx(1.0), CORE_TYPE: pytest.approx(63.7, rel=1e-3)}
    (why,) = doubts(seen)
    assert why == "the library's times as it runs by itself and with another core type are 63.7 x apart"


@pytest.mark.parametrize(("time_s", "session", "doubtful"), [
    (24e-3, "now", True), (26e-3, "now", False), (99e-3, "now", False), (101e-3, "now", True),
    (24e-3, "before", True), (26e-3, "before", False), (1.0, "before", False),
])  # fmt: skip
def test_the_library_takes_as_long_as_it_did(time_s: float, session: str, doubtful: bool) -> None:
    others = [library(time_s, session=session), library(2.0, session="long ago")]
    assert bool(doubts(contradictions(FINAL, others))) is doubtful


def test_other_numbers_of_threads_and_other_libraries_are_not_compared() -> None:
    others = [library(1e-6, threads="1"), library(1e-6, kernel="CuPy")]
    assert contradictions(FINAL, others) == {}


@pytest.mark.parametrize(("seen", "reasons"), [
    ({NOISE: 0.10, TAKEN: 0.10, "load_1min": 9.0}, ()),
    ({NOISE: 0.14}, ("its times have a noise of 14%, more than 10%",)),
    ({TAKEN: 0.5}, ("other processes used 50% of the cores during the finals, more than 10%",)),
])  # fmt: skip
def test_noise_and_taken_cores_are_doubts(seen: dict[str, float], reasons: tuple[str, ...]) -> None:
    assert doubts(seen) == reasons


# --- objectives ----------------------------------------


__all__ = ["told"]
BOTH = ("time", "energy")
#: Slow, but saves energy; `BEST` is fast at the highest power; a rule for each.
FRUGAL = {"BLOCK": 64, "ITEMS": 2, "ORDER": "striped"}
EXACT = {"BLOCK": 128, "ITEMS": 1, "ORDER": "striped"}
RULES = [
    rule(BEST, latency_s=BEST_S, power_w=900.0, error_rel=2e-7),
    rule(FRUGAL, latency_s=3 * BEST_S, power_w=50.0, error_rel=2e-7),
    rule(EXACT, latency_s=2 * BEST_S, power_w=700.0),
    rule({}, latency_s=4 * BEST_S, power_w=500.0, error_rel=2e-7),
]


@pytest.fixture
def board(tmp_path: Path) -> str:
    return write_device(tmp_path / "device.json", rules=RULES, baseline_s=3.5 * BEST_S, power_w=600.0)


# --- what may be asked ---------------------------------------------------------------------------------------


def test_objectives_are_read_in_any_order() -> None:
    asked = itertools.permutations(("time", "energy", "error"))
    assert {read_objectives(",".join(names)) for names in asked} == {("time", "energy", "error")}
    assert read_objectives("time") == ("time",)
    assert read_objectives(["error", "time"]) == read_objectives(" error , time") == ("time", "error")


@pytest.mark.parametrize(("text", "kind", "message"), [
    ("time,power", UnknownName, "unknown objective 'power'"),
    ("energy", InputError, "the objectives are time, or time with .*, got energy; give e.g. time,energy"),
    ("time,error,time", InputError, "each once, got time,error,time; give e.g. time,error"),
])  # fmt: skip
def test_wrong_objectives_are_told(text: str, kind: type[InputError], message: str) -> None:
    with pytest.raises(kind, match=message):
        read_objectives(text)


def test_a_measurement_has_all_objectives_or_none() -> None:
    error = Error(1e-6, 1e-7, 0.5)
    found = Measurement(Outcome.MEASURED, samples_s=(2.0,), error=error, circumstances={"energy_j": 300.0})
    assert values_of(found, ("time", "energy", "error")) == (2.0, 300.0, 1e-7)
    assert values_of(found, ("time",)) == (2.0,)
    assert values_of(Measurement(Outcome.MEASURED, samples_s=(2.0,), error=error), BOTH) is None
    assert values_of(Measurement(Outcome.PRUNED, samples_s=(2.0,), error=error), ("time", "error")) is None


# --- studies -----------------------------------------------------------------------------------------------


def test_a_study_of_time_and_energy_keeps_a_front_and_crowns_the_fastest(tmp_path: Path, board: str) -> None:
    result = study(tmp_path, board, objectives=BOTH)
    trials = stored(tmp_path)
    # A config that is slow may save energy: nothing is stopped for its time.
    assert {record.measurement.outcome for record in trials} == {Outcome.MEASURED}
    values = [(r.measurement.time_s, r.measurement.circumstances["energy_j"]) for r in trials]
    assert len(values) == LEGAL
    found = result.front
    whole = sorted(values[at] for at in front(values))
    assert {found.values(each) for each in found.points} <= set(whole)
    assert [dict(each.config) for each in found.points] == [BEST, FRUGAL]
    assert found.points[1].energy_j == pytest.approx(50 * 3 * BEST_S, rel=0.01)
    assert sorted(found.beaten) == sorted(set(values) - {found.values(each) for each in found.points})
    assert dict(result.champion.record.config) == BEST
    assert found.champion == found.points[0]
    assert found.library is not None
    assert found.values(found.library)[1] == pytest.approx(600 * 3.5 * BEST_S, rel=0.01)


def test_studies_of_other_objectives_share_what_fits_and_do_not_mix(tmp_path: Path, board: str) -> None:
    pruned = study(tmp_path, board).progress.outcomes["PRUNED"]
    both = study(tmp_path, board, objectives=("time", "error"))
    # What was stopped for its time alone is measured to the end; the rest is known.
    assert len(stored(tmp_path)) == LEGAL + pruned
    assert both.progress.outcomes == {"MEASURED": LEGAL}
    assert [dict(each.config) for each in both.front.points] == [BEST, EXACT]
    record = both.champion.record
    with Store.open(database(tmp_path), read_only=True) as store:
        later, _ = known_front(store, record.problem, record.device, record.regime, ("time", "error"))
    assert later.library == both.front.library, "as measured in the search, and not in the finals"
    # No energy was measured so far.
    assert study(tmp_path, board, objectives=BOTH, trials=3).progress.trials == 3
    assert len(stored(tmp_path)) == LEGAL + pruned + 3


def test_energy_takes_a_device_that_tells_its_power(tmp_path: Path) -> None:
    silent = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)
    with pytest.raises(InputError, match="energy needs a device that reports its power, Fake board does not"):
        study(tmp_path, silent, objectives=BOTH)
    assert stored(tmp_path) == []


# --- the command line --------------------------------------------------------------------------------------


def test_the_front_is_shown_by_tune_by_front_and_from_published_results(
    told: Told, here: Path, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = ("--device", board)
    tune = ("tune", str(TOY), "1000", *on, "--sampler", "random", "--trials", str(LEGAL), "--seed", "1")
    code, out, err = told(*tune, "--objective", "energy,time", "-o", "plots")
    assert code == 0, err
    table = out[out.index("The front of time and energy") :]
    for text in ("champion", "500 us", "450 mJ", "900 W", "75 mJ", "50 W", "library", "CuPy"):
        assert text in table
    (plot,) = (here / "plots").iterdir()
    assert "Plotly.newPlot" in plot.read_text()
    answer = json.loads(told(*tune, "--objective", "time,energy,error", "--json", "--quiet")[1])
    assert (answer["objectives"], answer["config"]) == (["time", "energy", "error"], BEST)
    assert [each["config"] for each in answer["front"]] == [BEST, EXACT, FRUGAL]
    assert [each["champion"] for each in answer["front"]] == [True, False, False]
    assert set(answer["front"][0]) == {
        "champion", "kernel", "config", "time_s", "noise", "tflops", "gbps", "energy_j", "power_w", "error",
    }  # fmt: skip
    # What was measured shows the same front later, for any of its objectives.
    front = ("front", str(TOY), "1000", *on)
    every = (*front, "--objective", "time,energy,error", "--json")
    assert json.loads(told(*every)[1])["front"] == answer["front"]
    assert "The front of time and error" in told(*front)[1]
    assert told(*front, "--objective", "time")[0] == 2, "a front has several objectives"
    # So does what is published of it.
    with Store.open("sqlite:///studies.db") as store:
        publish(store, here / "tuned", operation="toy")
    for module in ("tuner.store.published", "tuner.lookup.snapshot"):
        monkeypatch.setattr(f"{module}.tuned_folder", lambda: here / "tuned")
    published = json.loads(told(*front, "--json", "--db", f"sqlite:///{here}/none.db")[1])
    assert [each["config"] for each in published["front"]] == [BEST, EXACT]
