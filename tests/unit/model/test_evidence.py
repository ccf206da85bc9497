"""Answers rest on what was timed near a problem, and on what is beside it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from fixtures.model_survey import CONFIGS, GEMM, KERNELS, WIDE, evidence_of, plain_model, two_kernels

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.model.predict import Model, Predictor

PROBLEM = GEMM.problem({"m": 512, "n": 512, "k": 512})


def test_only_what_was_good_near_by_is_answered() -> None:
    model = replace(plain_model(), evidence=evidence_of([3, 20], 0.5, [0.0, 0.9]))
    fastest = Predictor(model, KERNELS).candidates(PROBLEM)
    assert [candidate.config for candidate in fastest] == [CONFIGS[3][1]]


def test_a_kernel_that_lost_to_the_library_near_by_is_not_preferred_to_it() -> None:
    slow, fast = (replace(plain_model(-9.0), evidence=evidence_of([3], gain)) for gain in (-99.0, 0.5))
    assert Predictor(slow, KERNELS).answer(PROBLEM).by_library
    assert not Predictor(fast, KERNELS).answer(PROBLEM).by_library


def test_good_configs_that_are_illegal_here_are_made_legal() -> None:
    """Loads are wide where rows are whole vectors, else plain: what is good at one is illegal at the other."""
    model, kernels = two_kernels()
    aligned, odd = (GEMM.problem({"m": 512, "n": 512, "k": k}, "float32", "nn") for k in (512, 513))

    def tied(of: Model, known: Mapping[str, Kernel], problem: Problem) -> list[Config]:
        fastest = Predictor(of, known).candidates(problem)
        assert any(candidate.kernel == "blocks" for candidate in fastest)
        return [candidate.config for candidate in fastest if candidate.kernel == "tied"]

    plain = Config({**WIDE, "LOAD": "plain"})
    assert tied(model, kernels, aligned) == [WIDE]
    assert tied(model, kernels, odd) == [plain]
    answer = Predictor(two_kernels(-9.0)[0], kernels).answer(odd)
    assert answer.best is not None
    assert (answer.best.config, answer.by_library) == (plain, False)
    assert tied(model, {"blocks": kernels["blocks"]}, odd) == [], "the kernel is gone"
    poor = replace(model, evidence=replace(model.evidence, behind=np.array([0.0, 0.4])))
    assert tied(poor, kernels, odd) == [], "what was far behind is not worth it"


UNALIGNED = GEMM.problem({"m": 500, "n": 300, "k": 402})


def differing(one: Config, other: Config) -> int:
    return sum(one[name] != other[name] for name in one)


def timed(predictor: Predictor) -> dict[tuple[str, Config], float]:
    """The three best predicted, as if their times were those."""
    return {
        (candidate.kernel, candidate.config): candidate.time_s
        for candidate in predictor.candidates(UNALIGNED, 3)
    }


def test_what_is_predicted_to_be_faster_comes_first_and_is_legal_and_new() -> None:
    predictor = Predictor(plain_model(), KERNELS)
    known = timed(predictor)
    fastest = predictor.beside(UNALIGNED, known, 2, 8)
    assert len(fastest) == 8
    assert [candidate.time_s for candidate in fastest] == sorted(candidate.time_s for candidate in fastest)
    assert not {(candidate.kernel, candidate.config) for candidate in fastest} & set(known)
    # k is no multiple of 4, so no wide loads; configs that the model does not keep come up, too.
    assert {candidate.config["LOAD"] for candidate in fastest} == {"plain"}
    assert any((candidate.kernel, candidate.config) not in CONFIGS for candidate in fastest)
    parents = list(known)[:2]
    assert all(any(differing(config, candidate.config) <= 2 for _, config in parents) for candidate in fastest)
