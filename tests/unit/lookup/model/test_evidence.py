"""Answers rest on what was timed near a problem."""

from dataclasses import replace

import numpy as np
from fixtures.lookup_records import BOARD
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, SMALL, WIDE, plain_model, survey, two_kernels

from tuner.lookup.model.evidence import NEAREST, Evidence
from tuner.lookup.model.fit import fit
from tuner.lookup.model.predict import Predictor

PROBLEM = GEMM.problem({"m": 512, "n": 512, "k": 512})


def known(configs: list[int], behind: list[float], library: float = 0.5) -> Evidence:
    """One problem, at which these configs were timed."""
    return Evidence(
        np.array([[9.0, 9.0, 9.0]]), np.array([0]), np.array([library]), np.array([0, len(configs)]),
        np.array(configs), np.array(behind),
    )  # fmt: skip


def test_only_what_was_good_near_by_is_answered() -> None:
    model = replace(plain_model(), evidence=known([3, 20], [0.0, 0.9]))
    found = Predictor(model, KERNELS).candidates(PROBLEM)
    assert [each.config for each in found] == [CONFIGS[3][1]]


def test_a_kernel_that_lost_to_the_library_near_by_is_not_preferred_to_it() -> None:
    slow, fast = (replace(plain_model(-9.0), evidence=known([3], [0.0], gain)) for gain in (-99.0, 0.5))
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
    model = fit(few, KERNELS, BOARD, growth=SMALL)
    assert model.evidence is not None
    kinds = list(model.traits)
    for problem in survey(10, seed=5).problems:
        behind, _ = model.evidence.around(
            problem, kinds.index((problem.dtype, problem.layout)), len(model.configs)
        )
        answer = Predictor(model, KERNELS).answer(problem).best
        assert answer is not None
        at = next(n for n, (_, config) in enumerate(model.configs) if config == answer.config)
        assert np.isfinite(behind[at])


def test_good_configs_of_a_kernel_that_has_none_here_are_told() -> None:
    """Loads are wide where rows are whole vectors, else plain: what is good at one is illegal at the other."""
    model, kernels = two_kernels()
    found = Predictor(model, kernels)
    aligned, odd = (GEMM.problem({"m": 512, "n": 512, "k": k}, "float32", "nn") for k in (512, 513))
    assert found.out_of_place(aligned) == []
    assert found.out_of_place(odd) == [("tied", WIDE)]
    assert [each.kernel for each in found.candidates(odd)] == ["blocks"]
    assert Predictor(replace(model, evidence=None), kernels).out_of_place(odd) == []
    assert Predictor(model, {"blocks": kernels["blocks"]}).out_of_place(odd) == [], "the kernel is gone"
    tied, defaults = kernels["tied"], {"BM": 64, "BN": 64, "SPLIT": 1}
    fewer = replace(tied, parameters=tied.parameters[:-1], constraints=(), defaults=defaults)
    assert Predictor(model, kernels | {"tied": fewer}).out_of_place(odd) == [], "or has other parameters"
