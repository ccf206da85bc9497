"""``tuner model``: from a survey in a file to a model that answers."""

import json
from pathlib import Path

import numpy as np
import pytest
from fixtures.model_survey import survey

from tuner.cli.main import run
from tuner.lookup.model.stored import MOST_BYTES, from_bytes

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
