"""Answers rest on what was timed near a problem."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from fixtures.lookup_records import BOARD
from fixtures.model_survey import (
    CONFIGS,
    GEMM,
    KERNELS,
    SMALL,
    WIDE,
    evidence_of,
    plain_model,
    survey,
    two_kernels,
)

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.model.evidence import NEAREST, AdaptedConfigs, Evidence
from tuner.model.fit import fit
from tuner.model.fitted import Model
from tuner.model.predict import Predictor

pytestmark = pytest.mark.usefixtures("one_tree_thread")
PROBLEM = GEMM.problem({"m": 512, "n": 512, "k": 512})


def test_only_what_was_good_near_by_is_answered() -> None:
    model = replace(plain_model(), evidence=evidence_of([3, 20], 0.5, [0.0, 0.9]))
    found = Predictor(model, KERNELS).candidates(PROBLEM)
    assert [each.config for each in found] == [CONFIGS[3][1]]


def test_a_kernel_that_lost_to_the_library_near_by_is_not_preferred_to_it() -> None:
    slow, fast = (replace(plain_model(-9.0), evidence=evidence_of([3], gain)) for gain in (-99.0, 0.5))
    assert Predictor(slow, KERNELS).answer(PROBLEM).by_library
    assert not Predictor(fast, KERNELS).answer(PROBLEM).by_library


def test_near_problems_of_the_same_layout_speak() -> None:
    places = np.repeat(np.log2([[512.0] * 3]), 2 * NEAREST, axis=0)
    kinds = np.repeat([0, 1], NEAREST)
    found = Evidence(
        places, kinds, np.zeros(2 * NEAREST), np.arange(2 * NEAREST + 1), kinds.copy(), np.zeros(2 * NEAREST)
    )
    behind, gains = found.around(PROBLEM, 1, 3)
    assert behind.tolist() == [np.inf, 0.0, np.inf]
    assert gains[1] == 0
    assert np.isneginf(gains[[0, 2]]).all()


def test_a_fitted_model_answers_with_configs_of_near_problems() -> None:
    few = survey(60)
    model = fit(few, KERNELS, BOARD, recipe=SMALL)
    kinds = list(model.traits)
    for problem in survey(10, seed=5).problems:
        behind, _ = model.evidence.around(
            problem, kinds.index((problem.dtype, problem.layout)), len(model.configs)
        )
        answer = Predictor(model, KERNELS).answer(problem).best
        assert answer is not None
        at = next(n for n, (_, config) in enumerate(model.configs) if config == answer.config)
        assert np.isfinite(behind[at])


def test_good_configs_that_are_illegal_here_are_made_legal() -> None:
    """Loads are wide where rows are whole vectors, else plain: what is good at one is illegal at the other."""
    model, kernels = two_kernels()
    aligned, odd = (GEMM.problem({"m": 512, "n": 512, "k": k}, "float32", "nn") for k in (512, 513))

    def tied(of: Model, known: Mapping[str, Kernel], problem: Problem) -> list[Config]:
        found = Predictor(of, known).candidates(problem)
        assert any(each.kernel == "blocks" for each in found)
        return [each.config for each in found if each.kernel == "tied"]

    plain = Config({**WIDE, "LOAD": "plain"})
    assert tied(model, kernels, aligned) == [WIDE]
    assert tied(model, kernels, odd) == [plain]
    answer = Predictor(two_kernels(-9.0)[0], kernels).answer(odd)
    assert answer.best is not None
    assert (answer.best.config, answer.by_library) == (plain, False)
    assert tied(model, {"blocks": kernels["blocks"]}, odd) == [], "the kernel is gone"
    of_tied, defaults = kernels["tied"], {"BM": 64, "BN": 64, "SPLIT": 1}
    fewer = replace(of_tied, parameters=of_tied.parameters[:-1], constraints=(), defaults=defaults)
    assert tied(model, kernels | {"tied": fewer}, odd) == [], "or has other parameters"
    poor = replace(model, evidence=replace(model.evidence, behind=np.array([0.0, 0.4])))
    assert tied(poor, kernels, odd) == [], "what was far behind is not worth it"


def test_what_is_made_is_predicted_as_if_it_had_been_kept() -> None:
    model, kernels = two_kernels()
    odd = GEMM.problem({"m": 512, "n": 512, "k": 513}, "float32", "nn")
    lot = model.made(AdaptedConfigs([("tied", WIDE)], np.array([1])), kernels, odd, BOARD)
    kept = model.lot(odd, BOARD).some(np.array([1]))
    np.testing.assert_array_equal(lot.traits.values, kept.traits.values)
    np.testing.assert_array_equal(lot.bits, kept.bits)


def test_a_shortlist_that_misses_a_surveyed_kernel_does_not_tell_its_columns() -> None:
    model, _ = two_kernels()
    assert model.columns is not None
    assert model.columns.kernels == ["blocks", "tied"]
    other = replace(model, configs=model.configs[1:], parameters=model.parameters[:, 1:])
    assert other.columns is None
