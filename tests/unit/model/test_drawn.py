"""What a model says of its losses, set right by drawn problems."""

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
from tuner.model.drawn import FEWEST, DrawnCase, calibrated
from tuner.model.fitted import Model
from tuner.model.predict import Predictor
from tuner.model.stored import from_bytes, to_bytes

#: A model that takes a kernel at any price, and expects every answer to lose 2 %.
MODEL = plain_model(-9.0)
PROBLEMS = [GEMM.problem({"m": 100 + 40 * number, "n": 300, "k": 200}) for number in range(24)]


def drawn(model: Model, losses: Sequence[float], off: Sequence[float] | None = None) -> list[DrawnCase]:
    """Problems at which the model's answers lose so much, and take so many times what was predicted."""
    predictor, found = Predictor(model, KERNELS), []
    for problem, loss, factor in zip(PROBLEMS, losses, off or [1.0] * len(losses), strict=False):
        best = predictor.answer(problem).best
        assert best is not None
        time_s = factor * best.time_s
        found.append(DrawnCase(problem, best.kernel, best.config, time_s, math.inf, (1 - loss) * time_s))
    return found


def said(model: Model, problem: Problem = PROBLEMS[0]) -> float:
    return Predictor(model, KERNELS).answer(problem).expected_loss


@settings(max_examples=30)
@given(st.lists(st.floats(0.0, 0.6), min_size=FEWEST, max_size=len(PROBLEMS)))
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
    assert now.time_held == pytest.approx(0.8, abs=0.05)
    assert now.loss_held == pytest.approx(0.8, abs=0.05)
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
    cases = drawn(MODEL, [0.01] * 20)
    (again, before, _), (once, _, _) = (calibrated(each, KERNELS, cases) for each in (first, MODEL))
    assert before.said == pytest.approx(said(first))
    assert said(again) == said(once) < said(MODEL) < said(first)
    answers = [
        [Predictor(each, KERNELS).answer(problem).best for problem in PROBLEMS] for each in (first, MODEL)
    ]
    assert answers[0] == answers[1]


def test_a_model_keeps_it_in_its_text() -> None:
    found, _, _ = calibrated(MODEL, KERNELS, drawn(MODEL, [0.1] * 20))
    again = from_bytes(to_bytes(found))
    assert said(again) == pytest.approx(said(found))
    assert (again.calibration.drawn, again.calibration.held) == (20, pytest.approx(found.calibration.held))
    assert from_bytes(to_bytes(MODEL)).calibration.drawn == 0


def test_problems_at_which_something_else_is_answered_do_not_count() -> None:
    cases = drawn(MODEL, [0.1] * FEWEST)
    other = next(config for _, config in CONFIGS if config != cases[0].config)
    changed = [replace(cases[0], config=other), *cases[1:]]
    with pytest.raises(InputError, match=f"from {FEWEST} on, got {FEWEST - 1} of {FEWEST} at which"):
        calibrated(MODEL, KERNELS, changed)
    unknown = [replace(cases[0], problem=replace(cases[0].problem, layout="tt")), *cases[1:]]
    with pytest.raises(InputError, match=f"got {FEWEST - 1} of {FEWEST} at which"):
        calibrated(MODEL, KERNELS, unknown)
    failed = [replace(cases[0], kernel_s=math.inf), *cases[1:]]
    with pytest.raises(InputError, match=f"got {FEWEST - 1} of {FEWEST} at which"):
        calibrated(MODEL, KERNELS, failed)
