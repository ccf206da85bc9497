"""Studies of several objectives: what is asked, what is measured, the front, and how it is shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.fake_device import BEST, BEST_S, LEGAL, TOY, database, rule, stored, study, write_device
from hypothesis import given
from hypothesis import strategies as st

from tuner.cli.main import run
from tuner.errors import InputError, UnknownName
from tuner.results.measurement import Error, Measurement, Outcome
from tuner.results.objectives import read_objectives, resolved, values_of
from tuner.search import front
from tuner.store import Store
from tuner.store.publishing import publish
from tuner.study.leaderboard import known_front

Told = Callable[..., tuple[int, str, str]]
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


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("time,power", UnknownName, "unknown objective 'power'"),
        ("energy", InputError, "the objectives are time, or time with .*, got energy; give e.g. time,energy"),
        ("time,error,time", InputError, "each once, got time,error,time; give e.g. time,error"),
    ],
)
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


@given(st.lists(st.floats(1e-9, 1e9), min_size=2, max_size=4), st.floats(0.05, 10))
def test_a_hair_more_exact_is_no_difference(values: list[float], share: float) -> None:
    less = [values[0], *(value / (1 + share) for value in values[1:])]
    assert all(a < b for a, b in zip(resolved(less)[1:], resolved(values)[1:], strict=True))
    near = [values[0], *(value * 1.0001 for value in values[1:])]
    assert all(b - a in (0, 1) for a, b in zip(resolved(values)[1:], resolved(near)[1:], strict=True))
    assert resolved((values[0], 0.0)) < resolved((values[0], values[1]))
    assert resolved(values)[0] == values[0]


# --- studies -----------------------------------------------------------------------------------------------


def test_a_study_of_time_and_energy_keeps_a_front_and_crowns_the_fastest(tmp_path: Path, board: str) -> None:
    result = study(tmp_path, board, objectives=BOTH)
    trials = stored(tmp_path)
    # A config that is slow may save energy: nothing is stopped for its time.
    assert {record.measurement.outcome for record in trials} == {Outcome.MEASURED}
    values = [(r.measurement.time_s, r.measurement.circumstances["energy_j"]) for r in trials]
    assert len(values) == LEGAL
    found = result.front
    assert found is not None
    whole = sorted(values[at] for at in front(values))
    assert {found.values(each) for each in found.points} <= set(whole)
    assert [dict(each.config) for each in found.points] == [BEST, FRUGAL]
    assert found.points[1].energy_j == pytest.approx(50 * 3 * BEST_S, rel=0.01)
    assert sorted(found.beaten) == sorted(set(values) - {found.values(each) for each in found.points})
    assert result.champion is not None
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
    assert both.front is not None
    assert [dict(each.config) for each in both.front.points] == [BEST, EXACT]
    assert both.champion is not None
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


@pytest.fixture
def told(here: Path, board: str, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command on the toy's board: exit code, stdout, stderr."""

    def called(command: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([command, *arguments, "--device", board])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return called


def test_tune_shows_the_front_as_a_table_as_json_and_as_a_plot(told: Told, here: Path) -> None:
    asked = ("tune", str(TOY), "1000", "--sampler", "random", "--trials", str(LEGAL), "--seed", "1")
    code, out, err = told(*asked, "--objective", "energy,time", "-o", "plots")
    assert code == 0, err
    table = out[out.index("The front of time and energy") :]
    for text in ("champion", "500 us", "450 mJ", "900 W", "75 mJ", "50 W", "library", "CuPy"):
        assert text in table
    (plot,) = (here / "plots").iterdir()
    assert plot.name == "front-toy-1000-float32-plain-cold-energy.html"
    assert "Plotly.newPlot" in plot.read_text()
    code, out, _ = told(*asked, "--objective", "time,energy,error", "--json", "--quiet", "-o", "plots")
    assert code == 0
    answer = json.loads(out)
    assert answer["objectives"] == ["time", "energy", "error"]
    assert answer["config"] == BEST
    assert [each["config"] for each in answer["front"]] == [BEST, EXACT, FRUGAL]
    assert [each["champion"] for each in answer["front"]] == [True, False, False]
    assert answer["front"][0]["energy_j"] == pytest.approx(900 * BEST_S, rel=0.01)
    assert set(answer["front"][0]) == {
        "champion", "kernel", "config", "time_s", "noise", "tflops", "gbps", "energy_j", "power_w", "error",
    }  # fmt: skip
    assert len(list((here / "plots").iterdir())) == 2
    # What was measured shows the same front later, for any of its objectives.
    asked = ("front", str(TOY), "1000")
    code, out, err = told(*asked, "--objective", "time,energy,error", "--json", "-o", "later")
    assert code == 0, err
    assert json.loads(out)["front"] == answer["front"]
    assert len(list((here / "later").iterdir())) == 1
    assert "The front of time and error" in told(*asked)[1]
    code, out, err = told(*asked, "--objective", "time")
    assert (code, out) == (2, "")
    assert "a front has several objectives" in err
    code, out, err = told("front", str(TOY), "7")
    assert (code, out) == (1, "")
    assert "nothing is known of toy 7" in err


def test_the_front_of_what_is_published(told: Told, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("tune", str(TOY), "1000", "--sampler", "random", "--trials", str(LEGAL), "--seed", "1")
    assert told(*asked, "--objective", "time,energy,error", "--quiet")[0] == 0
    found = ("front", str(TOY), "1000", "--objective", "time,energy,error", "--json")
    stored = json.loads(told(*found)[1])
    with Store.open("sqlite:///studies.db") as store:
        publish(store, here / "tuned", operation="toy")
    monkeypatch.setattr("tuner.store.published.tuned_folder", lambda: here / "tuned")
    monkeypatch.setattr("tuner.lookup.snapshot.tuned_folder", lambda: here / "tuned")
    code, out, err = told(*found, "--db", f"sqlite:///{here}/none.db")
    assert code == 0, err
    published = json.loads(out)
    assert published["device"] == stored["device"]
    names = [(each["kernel"], each["config"]) for each in published["front"]]
    assert names == [(each["kernel"], each["config"]) for each in stored["front"]]
    assert [each["champion"] for each in published["front"]] == [True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--objective", "time,error", "--sampler", "tpe"], "the sampler tpe minimises one objective"),
        (["-o", "plots"], "-o writes a plot of the front, which takes several objectives, got time alone"),
        (["--objective", "time,error", "-o", "device.json"], "-o takes a folder that can be written"),
    ],
)
def test_what_cannot_be_is_told_before_the_work(told: Told, options: list[str], message: str) -> None:
    code, out, err = told("tune", str(TOY), "5", *options)
    assert (code, out) == (2, "")
    assert message in err
