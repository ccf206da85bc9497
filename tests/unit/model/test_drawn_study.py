"""Answers at drawn problems, beside a short study and the library, on a fake device."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, write_device

from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice, find
from tuner.lookup.answers import Answer, Loss, Predicted, Question
from tuner.model.quality import DrawnProblem, measured, summary
from tuner.model.quality_command import lines
from tuner.results.record import ProblemKey

DECLARED = catalogue.from_file(TOY)
PROBLEM = DECLARED.operation("toy").problem({"n": 1000})


def case(config: dict[str, Any], tmp_path: Path, library: str = "") -> DrawnProblem:
    """The toy with this answer."""
    found = find(write_device(tmp_path / "device.json", baseline_s=2 * BEST_S))
    told = told_of(found, config, library)
    ((only,),) = measured([PROBLEM], [lambda problem, crew: told], DECLARED, found, seconds=4.0)
    return only


def told_of(found: DetectedDevice, config: dict[str, Any], library: str = "") -> Answer:
    """The toy answered with a config, or with the library."""
    return Answer(
        None, "predicted", Loss(0.1, 50, "measured", (0.0, 0.3)),
        question=Question(ProblemKey.of(PROBLEM), found.info),
        default=(DECLARED.of("toy", "cuda")[0].name, Config(config)), library=library,
        predicted=Predicted(BEST_S, 2 * BEST_S, (0.5 * BEST_S, 1.5 * BEST_S)),
    )  # fmt: skip


def test_the_best_config_loses_nothing(tmp_path: Path) -> None:
    found = case(BEST, tmp_path)
    assert found.why == ""
    assert found.kernel_s == pytest.approx(BEST_S, rel=0.2)
    assert found.loss == pytest.approx(0.0, abs=0.1)
    assert found.over_library(found.answered_s) == pytest.approx(2.0, rel=0.3)


def test_the_library_as_an_answer_loses_what_the_champion_gains(tmp_path: Path) -> None:
    found = case(BEST, tmp_path, library="library")
    assert found.by_library
    assert found.loss == pytest.approx(0.5, abs=0.15)


def test_several_answers_are_compared_with_one_study(tmp_path: Path) -> None:
    found = find(write_device(tmp_path / "device.json", baseline_s=2 * BEST_S))
    worse = {**BEST, "BLOCK": 128}
    answers = [lambda problem, crew, config=config: told_of(found, config) for config in (BEST, worse)]
    ((good, bad),) = measured([PROBLEM], answers, DECLARED, found, seconds=4.0)
    assert (good.champion, good.champion_s, good.library_s) == (bad.champion, bad.champion_s, bad.library_s)
    assert good.loss == pytest.approx(0.0, abs=0.1)
    assert bad.loss > 0.1


def drawn(kernel_s: float | None, use: str = "kernel", said: float = 0.05) -> DrawnProblem:
    """A case whose library takes 2 s and whose champion takes 1 s."""
    answer = {
        "match": "predicted", "use": use, "kernel": "toy", "config": {}, "expected_loss": said,
        "expected_loss_interval": [0.0, 0.1] if said < 1 else None,
        "predicted": {"time_interval_s": [0.9, 1.2]} if said < 1 else None,
    }  # fmt: skip
    return DrawnProblem(PROBLEM, answer, kernel_s, 2.0, 1.0, "toy")


def test_a_summary_tells_loss_calibration_and_what_is_slower_than_the_library() -> None:
    cases = [drawn(1.0), drawn(1.25), drawn(4.0), drawn(1.0, use="cuBLAS", said=1.0)]
    told = summary(cases)
    assert [each.loss for each in cases] == pytest.approx([0.0, 0.2, 0.75, 0.5])
    assert told.loss["mean"] == pytest.approx(0.3625)
    assert told.loss["worst"] == pytest.approx(0.75)
    assert told.slower == 1
    assert told.answers == pytest.approx((2.0 * 1.6 * 0.5 * 1.0) ** 0.25)
    assert told.champions == pytest.approx(2.0)
    assert (told.said, told.true) == (pytest.approx(0.05), pytest.approx(0.95 / 3))
    assert told.loss_held == pytest.approx(1 / 3)
    assert told.time_held == pytest.approx(1 / 3)
    assert any("slower than the library: 1 of 4" in line for line in lines(told))
    assert "said 5.0%, true 31.7%" in " ".join(lines(told))


def test_an_answer_that_fails_loses_all() -> None:
    failed = drawn(None)
    assert (failed.loss, math.isinf(failed.answered_s)) == (1.0, True)
    assert math.isnan(failed.over_library(failed.answered_s))
    json.dumps(summary([failed]).to_json() | failed.to_json(), allow_nan=False)
