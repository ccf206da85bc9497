"""A model fitted to a survey of a device whose costs are known."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.lookup_records import BOARD
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, geometric_mean, library_s, plain_model, survey, time_s

from tuner.errors import InputError, TunerError
from tuner.lookup.snapshot import Snapshot
from tuner.model import stored
from tuner.model.fit import fit
from tuner.model.predict import Model, Predictor
from tuner.model.stored import from_bytes, models, name_of, path_of, to_bytes
from tuner.results.survey import LIBRARY
from tuner.store import Store, watched

pytestmark = pytest.mark.usefixtures("few_trees")


@cache
def fitted() -> Model:
    return fit(survey(), KERNELS, BOARD)


@cache
def fresh() -> tuple[tuple[float, float, float], ...]:
    """At problems drawn anew: time of the answer, of the library, of the best."""
    predictor, found = Predictor(fitted(), KERNELS), []
    for problem in survey(60, seed=1).problems:
        answer = predictor.answer(problem)
        library = library_s(problem)
        times = [time_s(problem, each) for _, each in CONFIGS if each["LOAD"] == "plain" or problem.k % 4 == 0]
        answered = library if answer.by_library else time_s(problem, answer.best.config)
        found.append((answered, library, min(*times, library)))
    return tuple(found)


def test_answers_at_problems_never_seen_lose_little() -> None:
    answered, library, best = np.array(fresh()).T
    assert np.mean(answered / best - 1) < 0.06
    assert np.median(answered / best - 1) < 0.03
    assert geometric_mean(library / answered) > 0.95 * geometric_mean(library / best)
    assert np.mean(answered > 1.03 * library) < 0.05


def test_expected_loss_is_what_fresh_answers_lose() -> None:
    predictor, cases = Predictor(fitted(), KERNELS), fresh()
    answers = [predictor.answer(problem) for problem in survey(60, seed=1).problems]
    true = np.array([answered / best - 1 for answered, _, best in cases])
    said = np.mean([each.expected_loss for each in answers])
    assert abs(said - true.mean()) < 0.015  # noise of 1 % is part of what is said
    held = np.mean([loss <= each.loss_interval[1] for loss, each in zip(true, answers, strict=True)])
    assert 0.65 <= held <= 1


def test_losses_against_few_timings_are_said_to_be_larger() -> None:
    """The more configs are timed at a problem, the more an answer loses there."""
    many, rng = survey(), np.random.default_rng(0)
    few = [{at: s for at, s in times.items() if at == LIBRARY or rng.random() < 0.2} for times in many.times_s]
    thin = fit(replace(many, times_s=few), KERNELS, BOARD)
    assert fitted().calibration.scale < 1.2 < thin.calibration.scale <= 3


def test_a_fit_is_repeatable_and_keeps_where_it_comes_from() -> None:
    few = survey(25)
    texts = [to_bytes(fit(few, KERNELS, BOARD)) for _ in range(2)]
    assert texts[0] == texts[1]
    told = from_bytes(texts[0]).provenance
    assert (told["problems"], told["measured_at"]) == (25, "2026-11-20")
    assert told["timings"] == sum(map(len, few.times_s))
    assert told["sources"] == {"blocks": KERNELS["blocks"].source_hash}


def test_a_survey_without_a_library_gives_kernels_alone() -> None:
    every = survey(30)
    alone = [{at: s for at, s in times.items() if at != LIBRARY} for times in every.times_s]
    predictor = Predictor(fit(replace(every, times_s=alone), KERNELS, BOARD), KERNELS)
    answer = predictor.answer(every.problems[0])
    assert not answer.by_library
    assert answer.library_s == np.inf


def test_too_few_problems_with_a_config_are_refused() -> None:
    library_alone = [{LIBRARY: times[LIBRARY]} for times in survey(20).times_s]
    with pytest.raises(InputError, match="20 problems, got 0"):
        fit(replace(survey(20), times_s=library_alone), KERNELS, BOARD)


def test_without_lightgbm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(TunerError, match=r"pip install '.\[model\]'"):
        fit(survey(20), KERNELS, BOARD)


# --- stored models ----------------------------------------


PROBLEM = GEMM.problem({"m": 1000, "n": 500, "k": 300})


def times(model: Model) -> Any:
    """Seconds of every config, by the model."""
    return [candidate.time_s for candidate in Predictor(model, KERNELS).candidates(PROBLEM, None)]


def test_a_model_that_was_read_answers_as_the_one_that_was_written() -> None:
    model = plain_model()
    again = from_bytes(to_bytes(model))
    np.testing.assert_allclose(times(again), times(model), rtol=1e-6)
    assert again.provenance == model.provenance
    assert list(again.configs) == CONFIGS
    assert Predictor(again, KERNELS).answer(PROBLEM).best == Predictor(again, KERNELS).answer(PROBLEM).best
    assert to_bytes(again) == to_bytes(model)


@pytest.mark.parametrize("at", [0.02, 0.3, 0.97])
def test_a_damaged_model_is_refused(at: float) -> None:
    text = bytearray(to_bytes(plain_model()))
    text[int(at * len(text))] ^= 1
    with pytest.raises(InputError, match=r"fit (it|the model) again"):
        from_bytes(bytes(text))


def test_another_format_is_refused() -> None:
    body = json.loads(to_bytes(plain_model()))
    with pytest.raises(InputError, match="update the tuner or fit the model again"):
        from_bytes(json.dumps({**body, "format": stored.FORMAT + 1}).encode())


def test_of_published_and_own_models_the_last_fitted_answers(tmp_path: Path) -> None:
    store, model = Store.open(f"sqlite:///{tmp_path}/models.db"), plain_model()
    before = Snapshot.open(store, tmp_path).state
    watched.add_model(store, "gemm", model.device.name, "cold", to_bytes(model))
    assert Snapshot.open(store, tmp_path).state != before, "what was answered before is not told again"
    folder = tmp_path / "board" / "models"
    folder.mkdir(parents=True)
    for fitted_at, own in (("2999-01-01T00:00:00+00:00", False), ("2001-01-01T00:00:00+00:00", True)):
        published = plain_model()
        object.__setattr__(published, "provenance", {"fitted_at": fitted_at, "published": True})
        (folder / "gemm.json").write_bytes(to_bytes(published))
        [found] = models("gemm", directory=tmp_path, store=store)
        assert ("published" not in found.provenance) is own


def test_models_of_two_dtypes_answer_beside_each_other(tmp_path: Path) -> None:
    store, single = Store.open(f"sqlite:///{tmp_path}/models.db"), plain_model()
    half = replace(single, traits={("bfloat16", "nn"): single.traits["float32", "nn"]})
    for model, dtype in ((single, "float32"), (half, "bfloat16")):
        watched.add_model(store, name_of(GEMM, dtype), model.device.name, "cold", to_bytes(model))
    single_or_half = {"float32": "float32", "bfloat16": "bfloat16", "float64": "float32", "": "float32"}
    for dtype, expected in single_or_half.items():
        [found] = models("gemm", directory=tmp_path, store=store, arithmetic=dtype)
        assert list(found.traits) == [(expected, "nn")], "one of another dtype stands in"
    published = path_of(name_of(GEMM, "bfloat16"), half.device.name, tmp_path)
    assert published.name == "gemm-bfloat16.json"
    published.parent.mkdir(parents=True)
    published.write_bytes(to_bytes(half))
    [found] = models("gemm", directory=tmp_path, arithmetic="bfloat16")
    assert list(found.traits) == [("bfloat16", "nn")]
    assert models("gemm", directory=tmp_path) == []
