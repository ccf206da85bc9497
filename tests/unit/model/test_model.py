"""``tuner model``: from a survey in a file to a model that answers."""

import json
from pathlib import Path

import numpy as np
import pytest
from fixtures.model_survey import survey

import tuner
from tuner.cli.main import run
from tuner.declare.catalogue import builtin
from tuner.lookup import Answer
from tuner.model.predict import Predictor
from tuner.model.stored import MOST_BYTES, from_bytes, models
from tuner.results.measurement import Outcome
from tuner.results.record import ProblemKey
from tuner.results.survey import LIBRARY, SurveyConfig, SurveyPart, Timing
from tuner.store import Store

pytestmark = pytest.mark.usefixtures("few_trees")


def kept(path: Path) -> Path:
    """A survey as a file."""
    timed = survey(40)
    shapes = [[*dict(each.shape).values(), each.layout] for each in timed.problems]
    np.savez(
        path, shape=timed.problem, config=timed.config, time_s=timed.time_s, shapes=json.dumps(shapes),
        configs=json.dumps([[kernel, dict(config)] for kernel, config in timed.configs]),
    )  # fmt: skip
    return path


def test_a_model_is_fitted_to_a_survey_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, output = kept(tmp_path / "survey.npz"), tmp_path / "models" / "gemm.json"
    db = f"sqlite:///{tmp_path}/none.db"
    arguments = ["model", "fit", "gemm", "--device", "NVIDIA H200", "--survey", str(given), "--db", db]
    assert run([*arguments, "--measured-at", "2026-11-20", "-o", str(output)]) == 0
    assert "lost at problems left out" in capsys.readouterr().out
    model = from_bytes(output.read_bytes())
    assert output.stat().st_size <= MOST_BYTES
    assert (model.provenance["survey"], model.provenance["measured_at"]) == ("survey.npz", "2026-11-20")
    assert (model.provenance["problems"], model.provenance["regime"]) == (40, "cold")


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
    (tmp_path / "no.npz").write_text("nothing")
    arguments = ["--device", "h200", "--survey", str(tmp_path / "no.npz"), "-o", str(tmp_path / "x.json")]
    assert run(["model", "fit", "gemm", *arguments, "--db", db]) == 2
    assert "a survey is a NumPy file of shape" in capsys.readouterr().err
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
    assert "true 9.0%" in capsys.readouterr().out
    model = from_bytes(output.read_bytes())
    assert (model.calibration.drawn, model.provenance["drawn_seeds"]) == (16, [7])
    assert run(["model", "show", "gemm", "--device", "h200", "--json", "--db", db]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["drawn"]["problems"] == 16  # the database's, which is the later one
    told = asked(701, db)
    assert 0.06 < told.expected_loss < 0.12
    assert "16 problems drawn after the fit lost against studies" in told.loss.said


def later_survey(db: str, count: int, over_library: float) -> None:
    """Leaves a survey at which the shipped model's answers took what it says, and the library so much more."""
    declared = builtin().operation("transpose")
    (model,) = [each for each in models("transpose") if each.device.name == "NVIDIA H200"]
    kernels = {each.name: each for each in builtin().of("transpose", "cuda")}
    predictor, problems, configs, timings = Predictor(model, kernels), [], [], []
    for number in range(count):
        problem = declared.problem({"m": 1201 + 2 * number, "n": 777})
        best = predictor.answer(problem).best
        assert best is not None
        problems.append(ProblemKey.of(problem))
        timings.append(Timing(number, LIBRARY, Outcome.MEASURED, over_library * best.time_s))
        timings.append(Timing(number, len(configs), Outcome.MEASURED, best.time_s))
        configs.append(SurveyConfig(best.kernel, dict(best.config), kernels[best.kernel].source_hash))
    with Store.open(db) as store:
        part = SurveyPart(model.device, "transpose", "cold", tuple(problems), tuple(configs), tuple(timings))
        store.add(part)


def test_a_later_survey_tells_what_a_model_loses_and_chooses_when_kernels_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    later_survey(db, 205, over_library=0.5)
    arguments = ["model", "check", "transpose", "--device", "NVIDIA H200", "--db", db]
    assert run(arguments) == 0
    assert "205, none of which it was fitted to" in capsys.readouterr().out
    before = tuner.best("transpose 1203 777", "NVIDIA H200", db=db)
    assert before.use == "kernel"
    assert run([*arguments, "--choose", "-o", str(tmp_path / "chosen.json")]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "100.0% more than 3 % slower than the library" in told
    assert "; 0.0% more than 3 % slower" in told
    chosen = from_bytes((tmp_path / "chosen.json").read_bytes())
    assert chosen.provenance["trusted_by"] == 205
    assert tuner.best("transpose 1203 777", "NVIDIA H200", db=db).use != "kernel"


def test_few_later_problems_choose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = f"sqlite:///{tmp_path}/studies.db"
    arguments = ["model", "check", "transpose", "--device", "NVIDIA H200", "--db", db]
    assert run(arguments) == 1
    assert "there is no database" in capsys.readouterr().err
    later_survey(db, 3, over_library=2.0)
    assert run([*arguments, "--choose", "-o", str(tmp_path / "chosen.json")]) == 2
    assert "at which what it answers was timed, got 3; survey more" in capsys.readouterr().err
    assert not (tmp_path / "chosen.json").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"device": "Other"}, "are to be of NVIDIA H200, cold, got Other, cold"),
        ({"cases": []}, "are to be answered by prediction, got 0 others"),
        ({"cases": 3}, "got another file"),
        ({"seed": "x"}, "got another file"),
    ],
)
def test_other_files_set_nothing_right(
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
