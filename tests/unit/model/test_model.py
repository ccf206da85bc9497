"""``tuner model``: from a survey in a file to a model that answers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.model_survey import BLOCKS, survey

import tuner
from tuner.cli.main import run
from tuner.declare.catalogue import Catalogue, builtin
from tuner.lookup import Answer
from tuner.lookup.asking import kept_open
from tuner.model.stored import from_bytes
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey
from tuner.results.survey import SurveyConfig, SurveyPart, Timing
from tuner.store import Store
from tuner.study.dry_run import device_of

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.mark.parametrize("option", [("precision", "emulated"), ("epilogue", "relu")])
def test_a_model_is_fitted_to_a_survey_of_its_arithmetic_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: tuple[str, str]
) -> None:
    declared = Catalogue(builtin().operations, (BLOCKS,))
    monkeypatch.setattr("tuner.model.commands.builtin_now", lambda: declared)
    db, output = f"sqlite:///{tmp_path}/studies.db", tmp_path / "models" / "gemm.json"
    timed = survey(40)
    own = [replace(problem, **dict([option])) for problem in timed.problems]
    configs = tuple(SurveyConfig(name, BLOCKS.source_hash, "", 0, dict(each)) for name, each in timed.configs)
    timings = tuple(
        Timing(at, config, Outcome.MEASURED, time_s)
        for at, times in enumerate(timed.times_s)
        for config, time_s in times.items()
    )
    problems, where = tuple(map(ProblemKey.of, own)), device_of("NVIDIA H200", kept_open())
    with Store.open(db) as store:
        store.add(SurveyPart(where, "gemm", "cold", problems, configs, timings))
    arguments = ["gemm", f"--{option[0]}", option[1], "--device", "NVIDIA H200", "--db", db]
    assert run(["model", "fit", *arguments, "-o", str(output)]) == 0
    assert "loss" in capsys.readouterr().out
    model = from_bytes(output.read_bytes())
    assert (model.provenance["problems"], model.provenance["regime"]) == (40, "cold")
    assert [model.knows(of[0]) for of in (own, timed.problems)] == [True, False]
    assert run(["model", "show", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["provenance"]["problems"] == 40, (
        "the database's is the later one"
    )


def test_the_shipped_model_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = f"sqlite:///{tmp_path}/none.db"
    assert run(["model", "show", "gemm", "--device", "h200", "--json", "--db", db]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["device"] == "NVIDIA H200"
    assert 0 < told["loss"]["median"] + told["loss"]["mean"] < 0.2
    assert told["provenance"]["timings"] > 10_000


def test_bad_input_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = f"sqlite:///{tmp_path}/none.db"
    assert run(["model", "show", "gemv", "--device", "h200", "--regime", "hot", "--db", db]) == 1
    assert "there is no model of gemv in float32, hot, for NVIDIA H200" in capsys.readouterr().err
    assert run(["model", "fit", "gemv", "--device", "h200", "--db", db, "-o", str(tmp_path / "x.json")]) == 1
    assert "there is none of gemv (float32, cold) on NVIDIA H200" in capsys.readouterr().err
    assert run(["lookup-quality", "gemm", "--drawn", "2", "--db", db]) == 2
    assert (
        "answers are timed on the device, which takes it for minutes; say so by --measure"
        in capsys.readouterr().err
    )


def asked(m: int, db: str) -> Answer:
    return tuner.best(f"gemm {m} 900 1100", "NVIDIA H200", db=db)


def page(path: Path, db: str, count: int = 16, **more: object) -> Path:
    """What a draw leaves of answers of the shipped model, each of which loses 9 % and was predicted exactly."""
    cases, names = [], ("operation", "shape", "dtype", "layout", "match", "kernel", "config")
    for number in range(count):
        told = asked(700 + number, db).to_json()
        time_s = told["predicted"]["kernel_time_s"]
        cases.append({
            **{name: told[name] for name in names},
            "kernel_time_s": time_s, "library_time_s": time_s, "champion_time_s": 0.91 * time_s,
        })  # fmt: skip
    path.write_text(json.dumps({"device": "NVIDIA H200", "regime": "cold", "seed": 7, "cases": cases} | more))
    return path


def test_drawn_problems_set_right_what_a_model_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    given, output = page(tmp_path / "drawn.json", db), tmp_path / "gemm.json"
    arguments = ["model", "calibrate", "gemm", str(given), "--device", "NVIDIA H200", "--db", db]
    assert run([*arguments, "-o", str(output)]) == 0
    assert "16 answers lost 9.0% in the mean" in capsys.readouterr().out
    model = from_bytes(output.read_bytes())
    assert (model.calibration.drawn, model.provenance["drawn_seeds"]) == (16, [7])
    assert run(["model", "show", "gemm", "--device", "h200", "--json", "--db", db]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["drawn"]["problems"] == 16  # the database's, which is the later one
    told = asked(701, db)
    assert 0.06 < told.expected_loss < 0.12
    assert "16 problems drawn after the fit lost against studies" in told.loss.said


@pytest.mark.parametrize(("more", "why"), [
    ({"device": "Other"}, "are to be of NVIDIA H200, cold, got Other, cold"),
    ({"cases": []}, "drawn problems tell of losses from 16 on, got 0"),
    ({"cases": [3]}, "drawn problems are as"),
    ({"seed": "x"}, "got another file"),
])  # fmt: skip
def test_other_files_help_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, object], why: str
) -> None:
    db = f"sqlite:///{tmp_path}/none.db"
    given = page(tmp_path / "drawn.json", db, 1, **more)
    arguments = ["--device", "NVIDIA H200", "--db", db, "-o", str(tmp_path / "x.json")]
    assert run(["model", "calibrate", "gemm", str(given), *arguments]) == 2
    assert why in capsys.readouterr().err
    assert run(["model", "calibrate", "gemm", str(tmp_path / "none.json"), *arguments]) == 2
    assert "got another file" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
