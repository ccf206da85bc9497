"""Answers at drawn problems, beside a short study and the library, on a fake device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_device import BEST, BEST_S, TOY, database, fault_configs, study, write_device

from tuner.declare import catalogue
from tuner.declare.space import Config
from tuner.devices.detect import DetectedDevice, find
from tuner.lookup.answers import Answer, Loss, Predicted, Question
from tuner.model.quality import answer_at_first_use, case_of, markdown, measured, summary
from tuner.results.record import ProblemKey
from tuner.store import Store
from tuner.study import first_use
from tuner.study.requests import StudyRequest
from tuner.workers.device_worker import Crew

DECLARED = catalogue.from_file(TOY)
PROBLEM = DECLARED.operation("toy").problem({"n": 1000})


def told_of(found: DetectedDevice, config: dict[str, Any], library: str = "") -> Answer:
    """The toy answered with a config, or with the library."""
    return Answer(
        None, "predicted", Loss(0.1, 50, "measured", (0.0, 0.3)),
        question=Question(ProblemKey.of(PROBLEM), found.info),
        default=(DECLARED.of("toy", "cuda")[0].name, Config(config)), library=library,
        predicted=Predicted(BEST_S, 2 * BEST_S, (0.5 * BEST_S, 1.5 * BEST_S)),
    )  # fmt: skip


def test_an_answer_is_compared_with_a_study_and_the_library(tmp_path: Path) -> None:
    """The toy answered by its best config, by the library, and by a config that does not compile."""
    spec = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S, faults=True)
    found, ways = find(spec), [(BEST, ""), (BEST, "library"), (fault_configs()["compile_failed"], "")]
    request = StudyRequest(PROBLEM, DECLARED.of("toy", "cuda"), (found,), seconds=1.0)
    with Crew([found]) as crew:
        best, library, broken = (measured(request, crew, told_of(found, *way)) for way in ways)
    assert (best["why"], best["kernel_time_s"]) == ("", pytest.approx(BEST_S, rel=0.2))
    assert best["loss"] == pytest.approx(0.0, abs=0.1)
    assert best["library_time_s"] / best["kernel_time_s"] == pytest.approx(2.0, rel=0.3)
    assert best["champion"].startswith("blocks BLOCK=")
    assert library["loss"] == pytest.approx(0.5, abs=0.15)
    assert (broken["loss"], broken["kernel_time_s"]) == (1.0, None)
    assert broken["why"] == "the answer's config does not compile, or the device did not survive it"


def drawn(kernel_s: float | None, library: str = "", said: float = 0.05) -> dict[str, Any]:
    """A case whose library takes 2 s and whose champion takes 1 s."""
    answer = replace(
        told_of(find("cpu"), {}, library), loss=Loss(said, 50, "", (0.0, 0.1) if said < 1 else None),
        predicted=Predicted(1.0, 2.0, (0.9, 1.2)) if said < 1 else None,
    )  # fmt: skip
    return case_of(PROBLEM, answer, (kernel_s, 2.0, 1.0), "toy", "" if kernel_s else "it failed")


def test_a_summary_tells_loss_calibration_and_what_is_slower_than_the_library() -> None:
    cases = [drawn(1.0), drawn(1.25), drawn(4.0), drawn(1.0, "cuBLAS", said=1.0)]
    told = summary(cases)
    assert [each["loss"] for each in cases] == pytest.approx([0.0, 0.2, 0.75, 0.5])
    assert told["loss"]["mean"] == pytest.approx(0.3625)
    assert told["loss"]["worst"] == pytest.approx(0.75)
    assert told["slower"] == 1
    assert told["answers"] == pytest.approx((2.0 * 1.6 * 0.5 * 1.0) ** 0.25)
    assert told["champions"] == pytest.approx(2.0)
    assert (told["said"], told["true"]) == (pytest.approx(0.05), pytest.approx(0.95 / 3))
    assert told["loss_held"] == pytest.approx(1 / 3)
    assert told["time_held"] == pytest.approx(1 / 3)


def test_a_page_tells_each_case_and_an_answer_that_fails_loses_all() -> None:
    cases = [drawn(4.0), drawn(None)]
    page = markdown({"title": "Drawn problems", "seconds": 2.0, "cases": cases})
    assert "- more than 3 % slower than the library: 1 of 2" in page
    assert "| toy 1000 float32 plain | predicted | kernel | 5.0% | 4 s | 2 s | 1 s | 75.0% | 0.500 |" in page
    assert "| - | 2 s | 1 s | 100.0% | nan |" in page
    assert page.endswith("toy 1000 float32 plain: it failed\n")
    json.dumps(summary(cases[1:]) | cases[1], allow_nan=False)


def test_answers_after_a_first_use_begin_at_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_device(tmp_path / "device.json", baseline_s=2 * BEST_S)
    monkeypatch.setattr(first_use, "CONFIGS", 1)  # nothing but what is known to be good near by
    study(tmp_path, spec, n=900, trials=30)
    with Store.open(database(tmp_path), read_only=True) as store, Crew([find(spec)]) as crew:
        (near,) = store.champions(operation="toy")
        request = StudyRequest(PROBLEM, DECLARED.of("toy", "cuda"), crew.found)
        found = answer_at_first_use(request, crew, DECLARED, store)
    assert (found.match, dict(found.config)) == ("exact", dict(near.record.config))
    assert found.reasons[-1].startswith("measured at first use, which took ")
