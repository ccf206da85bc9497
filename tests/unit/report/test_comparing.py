"""Two sides are compared problem by problem; a study is found by its name or its problem, and shown."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.browser import browser, may_be_missing
from fixtures.fake_device import TOY, rule, study, write_device
from fixtures.records import champion, record, square

import tuner
from tuner.cli.main import run
from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError, NothingFound
from tuner.report.comparing import read_side
from tuner.report.pages import of_champions, study_figures, write_study
from tuner.report.study_view import StudyView, importance, reasons, recorded_study, seconds_by_stage
from tuner.results.measurement import EARLIER, Measurement, Outcome
from tuner.results.record import ProblemKey, Record, Role
from tuner.store import Store

OLD, NEW = DeviceInfo("Old board", "cuda", "OLD-1"), DeviceInfo("New board", "cuda", "NEW-1")


def final(n: int, time_s: float, device: DeviceInfo = OLD, role: Role = Role.FINAL, **more: Any) -> Record:
    """A record of the toy with small noise, and nothing of the measurement of a baseline."""
    samples = tuple(time_s * (1 + 0.001 * (at % 3 - 1)) for at in range(30))
    made = Record(
        ProblemKey("toy", (("n", n),), "float32", ""), device, "cold", role, "blocks", {"BLOCK": n}, "abc",
        Measurement(Outcome.MEASURED, samples_s=samples), {"flops": 1.0, "bytes": 1.0},
        {"driver": "1.0" if device is OLD else "2.0", "tuner": "3.1"}, f"study {device.name}", device.uuid,
        measured_at="2026-11-20T10:00:00.000000+00:00",
    )  # fmt: skip
    return replace(made, **more)


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder with records of two boards."""
    with Store.open("sqlite:///studies.db") as store:
        store.add(
            [
                final(1, 1e-3), final(2, 1e-3), final(3, 1e-3), final(4, 1e-3),
                final(1, 0.9e-3, NEW), final(2, 2e-3, NEW), final(3, 1.001e-3, NEW), final(5, 1e-3, NEW),
                # Not of the latest finals, and a trial: neither speaks for a board.
                final(1, 0.1e-3, session="before", measured_at="2026-11-19T10:00:00.000000+00:00"),
                final(1, 0.1e-3, role=Role.TRIAL),
                final(1, 4e-3, role=Role.BASELINE), final(1, 2e-3, NEW, Role.BASELINE),
            ]
        )  # fmt: skip
    return here


def test_what_changed_most_comes_first(folder: Path) -> None:
    found = tuner.compare("device:Old board", "New board")
    assert [(row["problem"], row["verdict"]) for row in found.problems] == [
        ("toy 2 float32", "slower"), ("toy 1 float32", "faster"), ("toy 3 float32", "same"),
    ]  # fmt: skip
    assert [row["ratio"] for row in found.problems] == pytest.approx([0.5, 1 / 0.9, 1 / 1.001])
    assert [row["library_ratio"] for row in found.problems] == [None, pytest.approx(2), None]
    assert (found.only_one, found.only_other) == (["toy 4 float32, cold"], ["toy 5 float32, cold"])
    assert found.counts() == {"faster": 1, "same": 1, "slower": 1, "ambiguous": 0}
    assert found.mean == pytest.approx((0.5 / 0.9 / 1.001) ** (1 / 3))
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in found.problems)


@pytest.mark.parametrize(("text", "side"), [
    ("driver:2.0", ("driver", "2.0")), ("2.0", ("driver", "2.0")), ("3.1", ("version", "3.1")),
    ("study Old board", ("study", "study Old board")), ("NEW-1", ("uuid", "NEW-1")),
    ("2026-11-20", ("date", "2026-11-20")), ("night:2026-11-20", ("date", "2026-11-20")),
    ("studies.db", ("db", "sqlite:///studies.db")),
])  # fmt: skip
def test_sides_are_read_as_records_know_them(folder: Path, text: str, side: tuple[str, str]) -> None:
    assert read_side(text, lambda: [final(1, 1.0), final(1, 1.0, NEW)]) == side


def test_days_databases_and_what_they_lack(folder: Path) -> None:
    found = tuner.compare("night:2026-11-19", "date:2026-11-20..2026-11-21")
    assert [row["problem"] for row in found.problems] == ["toy 1 float32"]
    same = tuner.compare("studies.db", "sqlite:///studies.db")
    assert {(row["ratio"], row["timed_in_turn"]) for row in same.problems} == {(1.0, True)}
    with pytest.raises(NothingFound, match=r"night|date 2025-01-01 has 0 problems"):
        tuner.compare("2025-01-01", "New board")
    with pytest.raises(InputError, match=r"a side is a device, .* got 'Newer board'"):
        tuner.compare("Newer board", "New board")


def test_the_command_line_prints_it_in_each_form(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*more: str) -> str:
        assert run(["compare", "driver:1.0", "driver:2.0", *more]) == 0
        return capsys.readouterr().out

    shown = printed()
    assert "geometric mean" in shown
    assert shown.index("toy 2") < shown.index("toy 1")
    rows = list(csv.DictReader(io.StringIO(printed("--csv"))))
    assert [row["verdict"] for row in rows] == ["slower", "faster", "same"]
    assert json.loads(printed("--json"))["counts"]["slower"] == 1
    assert printed("--markdown").splitlines()[2].startswith("| toy 2 float32, cold | 1 ms | 2 ms | 0.500 |")


# --- a study is shown ----------------------------------------


FIGURES = ["history", "importance", "pairs", "parallel", "failures", "time"]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of the toy, some of whose configs fail."""
    made = tmp_path_factory.mktemp("studies")
    failing = [rule({"BLOCK": 64}, fault="wrong_result"), rule({"BLOCK": 32}, fault="compile_failed")]
    study(made, write_device(made / "device.json", baseline_s=1e-3, rules=failing), trials=58)
    return made


@pytest.fixture
def seen(studied: Path, monkeypatch: pytest.MonkeyPatch) -> StudyView:
    monkeypatch.chdir(studied)
    return recorded_study("toy 1000")


def test_a_problem_of_anyones_is_found_and_so_is_its_study(seen: StudyView) -> None:
    assert seen.title.startswith("toy 1000 float32 plain on Fake board, cold, kernels ")
    assert recorded_study(seen.title).trials == seen.trials
    assert (len(seen.trials), seen.kernel) == (58, "blocks")
    assert seen.baseline is not None
    assert seen.champion is not None
    for wrong in ("nothing like it", "toy 1001", "toy 1000 elsewhere"):
        with pytest.raises(NothingFound, match=r"neither a study nor a problem|no trial of"):
            recorded_study(wrong, "another" if "elsewhere" in wrong else "")


def test_its_numbers_add_up(seen: StudyView) -> None:
    failed = {text.partition(":")[0]: count for text, count in reasons(seen).items()}
    assert (failed["wrong result"], failed["compile failed"]) == (10, 10)
    assert sum(failed.values()) + sum(each.measurement.outcome == "MEASURED" for each in seen.trials) == 58
    shares = importance(seen)
    assert shares.keys() == {"BLOCK", "ITEMS", "ORDER"}
    assert 1 >= max(shares.values()) >= min(shares.values()) >= 0
    assert seconds_by_stage(seen).keys() >= {"compile", "verify", "time"}
    spent = seconds_by_stage(replace(seen, spent_s={"thinking": 3.0, "finals": 0.0}))
    assert spent["thinking"] == 3
    assert "finals" not in spent


def test_in_python_it_is_figures(seen: StudyView) -> None:
    found = tuner.show("toy 1000")
    assert list(found) == FIGURES
    assert repr(found) == f"<figures: {', '.join(FIGURES)}>"
    points = sum(len(each.x) for each in found["history"].data if each.mode == "markers")
    assert points == len(seen.timed)


def test_no_pair_has_a_parameter_of_a_single_value() -> None:
    configs = [{"ONE": 1, "BM": bm, "BN": bn} for bm in (8, 16) for bn in (4, 8)]
    trials = [record(square(64), 1e-3 * (1 + at), config=config) for at, config in enumerate(configs)]
    (menu,) = study_figures(StudyView("four", trials))["pairs"].layout.updatemenus
    assert [button.label for button in menu.buttons] in (["BM, BN"], ["BN, BM"])


@pytest.mark.usefixtures("seen")
def test_the_page_needs_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(TOY), "--set", "n=1000", "-o", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "study.html")]
    page = (tmp_path / "study.html").read_text()
    assert page.count("Plotly.newPlot") >= len(FIGURES)
    assert "wrong result" in page


@pytest.mark.skipif(may_be_missing(), reason="Chromium is missing, and this user cannot install it")
def test_the_page_can_be_hovered_and_suits_a_narrow_dark_screen(seen: StudyView, tmp_path: Path) -> None:
    write_study(seen, tmp_path)
    troubles: list[str] = []
    with browser() as opened:
        tab = opened.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("request", lambda asked: troubles.append(asked.url) if asked.url.startswith("http") else None)
        tab.goto((tmp_path / "study.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 25, 27)"
        assert tab.evaluate("document.getElementById('history').layout.font.color") == "#dfe7ea"
        tab.locator("#importance").scroll_into_view_if_needed()
        tab.locator("#importance .bars .point path").first.hover(force=True)
        tab.wait_for_selector("#importance .hoverlayer .hovertext")
        assert "BLOCK" in tab.locator("#importance .hoverlayer .hovertext").first.text_content()
    assert troubles == []


def test_the_terminal_gets_tables(seen: StudyView, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "toy", "1000"]) == 0
    out = capsys.readouterr().out
    for part in ("58, ", "What matters in blocks", "wrong result: ", "compile failed: ", "compile"):
        assert part in out
    assert run(["show", "toy", "1001"]) == 1
    assert "neither a study nor a problem" in capsys.readouterr().err


def test_a_study_without_times_has_what_there_is(seen: StudyView, tmp_path: Path) -> None:
    failed = [each for each in seen.trials if each.measurement.outcome.failed]
    assert list(study_figures(StudyView("failed", failed))) == ["failures", "time"]
    assert list(study_figures(StudyView("empty", []))) == []
    assert [path.name for path in write_study(StudyView("empty", []), tmp_path)] == ["study.html"]


def test_a_provisional_champion_is_hollow_and_one_without_arithmetic_is_on_the_roofline() -> None:
    busy = Measurement(Outcome.MEASURED, samples_s=(1e-3,), circumstances={EARLIER: 9.0})
    champions = [
        champion(record(square(64)), speedup=1.5), champion(record(square(64), measurement=busy), speedup=28.0),
        champion(record(square(64), work={"flops": 0.0, "bytes": 8.0}), speedup=1.0),
    ]  # fmt: skip
    figures = of_champions(champions, {"gbps": 1.0, "tflops": 1.0})
    assert [figure["name"] for figure in figures] == ["speedups", "map", "roofline"]
    (places,) = figures[0]["data"]
    assert places["marker"]["symbol"] == ["circle", "circle-open", "circle"]
    assert places["marker"]["color"] == [1.5, 1.0, 1.0]
    assert len(figures[2]["data"][0]["x"]) == 3
