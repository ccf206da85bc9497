"""What a model says of its losses, set right by problems that it was not fitted to."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixtures.lookup_records import BOARD
from fixtures.model_survey import GEMM, KERNELS, plain_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.lookup.answers import PREDICTED, Answer, Question
from tuner.model.calibrate import FEWEST_DRAWN, PRIOR
from tuner.model.commands import KnownModel, cases_of
from tuner.model.predict import Model, Predictor
from tuner.model.quality import case_of
from tuner.results.record import ProblemKey

#: A model that takes a kernel at any price, and expects every answer to lose 2 %.
MODEL = plain_model(-9.0)
PROBLEMS = [GEMM.problem({"m": 100 + 40 * number, "n": 300, "k": 200}) for number in range(24)]


def drawn(model: Model, losses: Sequence[float], off: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Problems at which the model's answers lose so much, and take so many times what was predicted."""
    predictor, cases = Predictor(model, KERNELS), []
    for problem, loss, factor in zip(PROBLEMS, losses, off or [1.0] * len(losses), strict=False):
        best = predictor.answer(problem).best
        answer = Answer(None, PREDICTED, default=best[:2], question=Question(ProblemKey.of(problem), BOARD))
        time_s = factor * best.time_s
        cases.append(case_of(problem, answer, (time_s, None, (1 - loss) * time_s)))
    return cases


def corrected(model: Model, answers: Sequence[dict[str, Any]]) -> tuple[Model, dict[str, float]]:
    """A model set right by drawn problems; and the mean loss there, said before and now, and true."""
    calibration, losses = model.calibration.corrected(cases_of(KnownModel(model, GEMM, KERNELS), answers))
    return replace(model, calibration=calibration), losses


def said(model: Model, problem: Problem = PROBLEMS[0]) -> float:
    return Predictor(model, KERNELS).answer(problem).expected_loss


def held(model: Model, losses: Sequence[float], off: Sequence[float]) -> tuple[float, float]:
    """Shares of the intervals of the losses, and of the times, that hold."""
    of_loss, of_time = [], []
    for problem, loss, factor in zip(PROBLEMS, losses, off, strict=True):
        answer = Predictor(model, KERNELS).answer(problem)
        low_s, high_s = answer.time_interval_s
        of_loss.append(loss <= answer.loss_interval[1])
        of_time.append(low_s <= factor * answer.best.time_s <= high_s)
    return float(np.mean(of_loss)), float(np.mean(of_time))


@settings(max_examples=20)
@given(st.lists(st.floats(0.0, 0.6), min_size=FEWEST_DRAWN, max_size=len(PROBLEMS)))
def test_what_is_said_comes_as_near_to_the_truth_as_so_few_cases_allow(losses: list[float]) -> None:
    model, means = corrected(MODEL, drawn(MODEL, losses))
    assert model.calibration.drawn == len(losses)
    assert means["before"] == pytest.approx(0.02)
    assert means["true"] == pytest.approx(np.mean(losses))
    expected = (sum(losses) + PRIOR * 0.02) / (len(losses) + PRIOR)
    assert (means["now"], said(model)) == pytest.approx((expected, expected))


def test_intervals_hold_four_of_five_drawn_problems() -> None:
    rng = np.random.default_rng(0)
    losses, off = np.abs(rng.normal(0, 0.1, 24)).tolist(), np.exp(rng.normal(0, 0.3, 24)).tolist()
    before, now = (
        held(model, losses, off) for model in (MODEL, corrected(MODEL, drawn(MODEL, losses, off))[0])
    )
    assert before[0] < 0.4
    assert before[1] < 0.6
    assert now == pytest.approx((0.85, 0.85), abs=0.05)


def test_answers_stay_and_the_second_time_counts_alone() -> None:
    first, _ = corrected(MODEL, drawn(MODEL, [0.3] * 20))
    answers = drawn(MODEL, [0.01] * 20)
    (again, means), (once, _) = (corrected(model, answers) for model in (first, MODEL))
    assert means["before"] == pytest.approx(said(first))
    assert said(again) == said(once) < said(MODEL) < said(first)
    best = [[Predictor(model, KERNELS).answer(of).best for of in PROBLEMS] for model in (first, MODEL)]
    assert best[0] == best[1]


@pytest.mark.parametrize(
    "changed", [{"config": {"BM": 1}}, {"layout": "tt"}, {"kernel_time_s": None}, {"match": "exact"}]
)
def test_problems_at_which_something_else_is_answered_do_not_count(changed: dict[str, Any]) -> None:
    first, *others = drawn(MODEL, [0.1] * FEWEST_DRAWN)
    with pytest.raises(InputError, match=f"got {FEWEST_DRAWN - 1} at which"):
        corrected(MODEL, [first | changed, *others])
