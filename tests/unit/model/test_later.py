"""A model beside problems of a survey that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, plain_model

from tuner.declare.problem import Problem
from tuner.errors import InputError
from tuner.model.drawn import figures
from tuner.model.evidence import Evidence
from tuner.model.fitted import Model
from tuner.model.later import FEWEST, later_cases, trusted
from tuner.model.predict import Predictor
from tuner.model.table import LIBRARY, Timings

PROBLEMS = [GEMM.problem({"m": 100 + 7 * number, "n": 300, "k": 200}) for number in range(FEWEST)]


def model_of(margin: float, problems: Sequence[Problem] = (GEMM.problem({"m": 9, "n": 9, "k": 9}),)) -> Model:
    """A model without trees, at whose problems every config was as fast as the library."""
    count = len(CONFIGS)
    known = Evidence(
        np.log2([[size for _, size in each.shape] for each in problems]), np.zeros(len(problems), np.int32),
        np.zeros(len(problems)), count * np.arange(len(problems) + 1, dtype=np.int32),
        np.tile(np.arange(count, dtype=np.int32), len(problems)), np.zeros(count * len(problems)),
    )  # fmt: skip
    return replace(plain_model(margin), evidence=known)


#: It takes a kernel at any price.
MODEL = model_of(-9.0)


def timed(problems: list[Problem], behind: float, missing: int = 0, alone: int = 0) -> Timings:
    """What the model answers takes as long as was predicted, and is so much slower than the library.

    Args:
        problems: Where.
        behind: Time of the answer over the library's, minus 1.
        missing: At so many problems other configs were timed instead.
        alone: At so many more the library was timed alone.
    """
    predictor, rows = Predictor(MODEL, KERNELS), []
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
    found = later_cases(MODEL, KERNELS, timed(PROBLEMS[:10], 0.0, missing=3, alone=2))
    assert [each.problem for each in found] == PROBLEMS[5:10]


def test_problems_that_the_model_was_fitted_to_do_not_count() -> None:
    later = timed(PROBLEMS[:10], 0.0)
    assert [each.problem for each in later_cases(MODEL, KERNELS, later)] == PROBLEMS[:10]
    fitted = model_of(-9.0, PROBLEMS[:4])
    assert [each.problem for each in later_cases(fitted, KERNELS, later)] == PROBLEMS[4:10]


def test_a_model_that_does_not_tell_what_it_was_fitted_to_is_not_judged() -> None:
    with pytest.raises(InputError, match="is of a version that did not; fit it again"):
        later_cases(plain_model(), KERNELS, timed(PROBLEMS[:10], 0.0))


@pytest.mark.parametrize(("behind", "by_library"), [(0.5, True), (-0.5, False)])
def test_a_kernel_is_answered_where_that_costs_least(behind: float, by_library: bool) -> None:
    model = model_of(-9.0 if by_library else 9.0)
    cases = later_cases(model, KERNELS, timed(PROBLEMS, behind))
    assert figures(model, KERNELS, cases).slower == float(by_library)
    found = trusted(model, KERNELS, cases)
    now = figures(found, KERNELS, cases)
    assert now.slower == 0
    assert now.true < figures(model, KERNELS, cases).true
    libraries = sum(Predictor(found, KERNELS).answer(each).by_library for each in PROBLEMS[:50])
    assert libraries == 50 if by_library else libraries < 50


def test_few_problems_choose_nothing() -> None:
    cases = later_cases(MODEL, KERNELS, timed(PROBLEMS[:-1], 0.0))
    with pytest.raises(InputError, match=r"by 200 problems at least .* got 199; survey more"):
        trusted(MODEL, KERNELS, cases)
