"""Studies of several objectives: what is asked, what is measured, the front, and how it is shown."""

import itertools
import json
from pathlib import Path

import pytest
from fixtures.commands import Told, told
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, database, rule, stored, study, write_device

from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Error, Measurement, Outcome
from tuner.results.objectives import read_objectives, values_of
from tuner.search import front
from tuner.store import Store
from tuner.store.publishing import publish
from tuner.study.leaderboard import known_front

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
