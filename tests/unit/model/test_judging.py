"""What a model says of its losses, set right by problems that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, plain_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.model.calibrate import PRIOR
from tuner.model.evidence import Evidence
from tuner.model.judging import FEWEST, FEWEST_DRAWN, TimedAnswer, calibrated, judged, later_answers, trusted
from tuner.model.predict import Model, Predictor
from tuner.model.stored import from_bytes, to_bytes
from tuner.model.table import Timings
from tuner.results.survey import LIBRARY

#: A model that takes a kernel at any price, and expects every answer to lose 2 %.
MODEL = plain_model(-9.0)
PROBLEMS = [GEMM.problem({"m": 100 + 40 * number, "n": 300, "k": 200}) for number in range(24)]


def drawn(model: Model, losses: Sequence[float], off: Sequence[float] | None = None) -> list[TimedAnswer]:
    """Problems at which the model's answers lose so much, and take so many times what was predicted."""
    predictor, answers = Predictor(model, KERNELS), []
    for problem, loss, factor in zip(PROBLEMS, losses, off or [1.0] * len(losses), strict=False):
        best = predictor.answer(problem).best
        assert best is not None
        time_s = factor * best.time_s
        answers.append(TimedAnswer(problem, best.kernel, best.config, time_s, math.inf, (1 - loss) * time_s))
    return answers


def said(model: Model, problem: Problem = PROBLEMS[0]) -> float:
    return Predictor(model, KERNELS).answer(problem).expected_loss


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 0.6), min_size=FEWEST_DRAWN, max_size=len(PROBLEMS)))
def test_what_is_said_comes_as_near_to_the_truth_as_so_few_cases_allow(losses: list[float]) -> None:
    found, before, now = calibrated(MODEL, KERNELS, drawn(MODEL, losses))
    count = len(losses)
    assert (before.cases, now.cases, found.calibration.drawn) == (count, count, count)
    assert before.said == pytest.approx(0.02)
    assert now.true == before.true == pytest.approx(np.mean(losses))
    assert now.said == pytest.approx((sum(losses) + PRIOR * 0.02) / (count + PRIOR))
    assert now.loss_held >= 0.8 - 1e-9


def test_intervals_hold_four_of_five_drawn_problems() -> None:
    rng = np.random.default_rng(0)
    losses, off = np.abs(rng.normal(0, 0.1, 24)), np.exp(rng.normal(0, 0.3, 24))
    found, before, now = calibrated(MODEL, KERNELS, drawn(MODEL, losses.tolist(), off.tolist()))
    assert before.time_held < 0.6
    assert before.loss_held < 0.4
    assert now.time_held == pytest.approx(0.85, abs=0.05)
    assert now.loss_held == pytest.approx(0.85, abs=0.05)
    told = Predictor(found, KERNELS).answer(PROBLEMS[3])
    assert told.loss_interval[0] <= told.expected_loss <= told.loss_interval[1]


def test_an_interval_ends_at_what_is_expected_or_above_though_nothing_is_lost() -> None:
    found, _, now = calibrated(MODEL, KERNELS, drawn(MODEL, [0.0] * 20))
    told = Predictor(found, KERNELS).answer(PROBLEMS[3])
    assert 0 < told.expected_loss < 0.005
    assert told.loss_interval[1] >= told.expected_loss
    assert now.loss_held == 1.0


def test_answers_stay_and_the_second_time_counts_alone() -> None:
    first, _, _ = calibrated(MODEL, KERNELS, drawn(MODEL, [0.3] * 20))
    answers = drawn(MODEL, [0.01] * 20)
    (again, before, _), (once, _, _) = (calibrated(model, KERNELS, answers) for model in (first, MODEL))
    assert before.said == pytest.approx(said(first))
    assert said(again) == said(once) < said(MODEL) < said(first)
    best = [[Predictor(model, KERNELS).answer(each).best for each in PROBLEMS] for model in (first, MODEL)]
    assert best[0] == best[1]


def test_a_model_keeps_it_in_its_text() -> None:
    found, _, _ = calibrated(MODEL, KERNELS, drawn(MODEL, [0.1] * 20))
    again = from_bytes(to_bytes(found))
    assert said(again) == pytest.approx(said(found))
    assert (again.calibration.drawn, again.calibration.reach) == (20, pytest.approx(found.calibration.reach))


def test_problems_at_which_something_else_is_answered_do_not_count() -> None:
    answers = drawn(MODEL, [0.1] * FEWEST_DRAWN)
    other = next(config for _, config in CONFIGS if config != answers[0].config)
    unknown = replace(answers[0].problem, layout="tt")
    for changed in ({"config": other}, {"problem": unknown}, {"kernel_s": math.inf}):
        with pytest.raises(InputError, match=f"got {FEWEST_DRAWN - 1} of {FEWEST_DRAWN} at which"):
            calibrated(MODEL, KERNELS, [answers[0]._replace(**changed), *answers[1:]])


LATER = [GEMM.problem({"m": 100 + 7 * number, "n": 300, "k": 200}) for number in range(FEWEST)]


def fitted_to(margin: float, problems: Sequence[Problem]) -> Model:
    """A model without trees, at whose problems every config was as fast as the library."""
    count = len(CONFIGS)
    known = Evidence(
        np.log2([[size for _, size in each.shape] for each in problems]), np.zeros(len(problems), np.int32),
        np.zeros(len(problems)), count * np.arange(len(problems) + 1, dtype=np.int32),
        np.tile(np.arange(count, dtype=np.int32), len(problems)), np.zeros(count * len(problems)),
    )  # fmt: skip
    return replace(plain_model(margin), evidence=known)


ELSEWHERE = [GEMM.problem({"m": 9, "n": 9, "k": 9})]
SURE = fitted_to(-9.0, ELSEWHERE)


def timed(problems: list[Problem], behind: float, missing: int = 0, alone: int = 0) -> Timings:
    """What the model answers takes as long as was predicted, and is so much slower than the library.

    Args:
        problems: Where.
        behind: Time of the answer over the library's, minus 1.
        missing: At so many problems other configs were timed instead.
        alone: At so many more the library was timed alone.
    """
    predictor, rows = Predictor(SURE, KERNELS), []
    for number, problem in enumerate(problems):
        best = predictor.answer(problem).best
        assert best is not None
        at = CONFIGS.index((best.kernel, best.config))
        if number < missing:
            at = (at + 1) % len(CONFIGS)
        rows.append((number, LIBRARY, best.time_s / (1 + behind)))
        if not missing <= number < missing + alone:
            rows.append((number, at, best.time_s))
    problem, config, time_s = (np.array(each) for each in zip(*rows, strict=True))
    return Timings(problems, CONFIGS, problem, config, time_s)


def test_only_problems_at_which_the_answer_was_timed_count() -> None:
    found = later_answers(SURE, KERNELS, timed(LATER[:10], 0.0, missing=3, alone=2))
    assert [each.problem for each in found] == LATER[5:10]


def test_problems_that_the_model_was_fitted_to_do_not_count() -> None:
    later = timed(LATER[:10], 0.0)
    assert [each.problem for each in later_answers(SURE, KERNELS, later)] == LATER[:10]
    fitted = fitted_to(-9.0, LATER[:4])
    assert [each.problem for each in later_answers(fitted, KERNELS, later)] == LATER[4:10]


@pytest.mark.parametrize(("behind", "by_library"), [(0.5, True), (-0.5, False)])
def test_a_kernel_is_answered_where_that_costs_least(behind: float, by_library: bool) -> None:
    model = fitted_to(-9.0 if by_library else 9.0, ELSEWHERE)
    answers = later_answers(model, KERNELS, timed(LATER, behind))
    before = judged(model, KERNELS, answers)
    assert before.slower == (len(LATER) if by_library else 0)
    found = trusted(model, KERNELS, answers)
    now = judged(found, KERNELS, answers)
    assert now.slower == 0
    assert now.true < before.true
    libraries = sum(Predictor(found, KERNELS).answer(each).by_library for each in LATER[:50])
    assert libraries == 50 if by_library else libraries < 50


def test_few_problems_choose_nothing() -> None:
    answers = later_answers(SURE, KERNELS, timed(LATER[:-1], 0.0))
    with pytest.raises(InputError, match=r"by 200 problems at least .* got 199; survey more"):
        trusted(SURE, KERNELS, answers)
