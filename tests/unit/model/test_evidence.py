"""Answers rest on what was timed near a problem, and on what is beside it."""

from dataclasses import replace

from fixtures.model_survey import CONFIGS, GEMM, KERNELS, evidence_of, plain_model

from tuner.declare.space import Config
from tuner.model.predict import Predictor

PROBLEM = GEMM.problem({"m": 512, "n": 512, "k": 512})


def test_only_what_was_good_near_by_is_answered() -> None:
    model = replace(plain_model(), evidence=evidence_of([3, 20], 0.5, [0.0, 0.9]))
    fastest = Predictor(model, KERNELS).candidates(PROBLEM)
    assert [candidate.config for candidate in fastest] == [CONFIGS[3][1]]


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
