"""Configs beside those that were timed: which of them a model takes for the fastest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, plain_model

from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.model.predict import Predictor

PROBLEM = GEMM.problem({"m": 500, "n": 300, "k": 402})


def differing(one: Config, other: Config) -> int:
    return sum(one[name] != other[name] for name in one)


def timed(predictor: Predictor) -> dict[tuple[str, Config], float]:
    """The three best predicted, as if their times were those."""
    return {(each.kernel, each.config): each.time_s for each in predictor.candidates(PROBLEM, 3)}


def test_what_is_predicted_to_be_faster_comes_first_and_is_legal_and_new() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    known = timed(predictor)
    found = predictor.beside(PROBLEM, known, 2, 8)
    assert len(found) == 8
    assert [each.time_s for each in found] == sorted(each.time_s for each in found)
    assert not {(each.kernel, each.config) for each in found} & set(known)
    # k is no multiple of 4, so no wide loads; configs that the model does not keep come up, too.
    assert {each.config["LOAD"] for each in found} == {"plain"}
    assert any((each.kernel, each.config) not in CONFIGS for each in found)
    parents = list(known)[:2]
    assert all(any(differing(config, each.config) <= 2 for _, config in parents) for each in found)


def test_what_the_model_is_off_by_where_it_was_timed_does_not_count() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    known = timed(predictor)
    slower = {named: 3 * time_s for named, time_s in known.items()}
    before, after = (predictor.beside(PROBLEM, each, 3, 5) for each in (known, slower))
    assert [each.config for each in before] == [each.config for each in after]
    assert [each.time_s for each in after] == pytest.approx([3 * each.time_s for each in before])


def test_nothing_is_found_beside_what_failed_or_is_of_no_kernel_here() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    ((failed, _), *_) = timed(predictor).items()
    assert predictor.beside(PROBLEM, {failed: math.inf}, 4) == []
    assert predictor.beside(PROBLEM, {("gone", failed[1]): 1e-6}, 4) == []


def test_a_model_that_knows_its_own_configs_alone_finds_nothing_beside_them() -> None:
    model = plain_model()
    earlier = replace(model, parameters=model.parameters[:-1])  # its numbers do not tell what they stand for
    assert earlier.columns is None
    known = timed(Predictor(model, KERNELS))
    assert Predictor(earlier, KERNELS).beside(PROBLEM, known, 3) == []


def test_a_problem_that_the_model_does_not_know_is_refused() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    other = replace(PROBLEM, layout="tt")
    with pytest.raises(InputError, match=r"which gemm .* is not; survey that, too"):
        predictor.beside(other, timed(predictor), 1)
