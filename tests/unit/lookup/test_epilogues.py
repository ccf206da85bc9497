"""Lookups of problems with an epilogue: their own records first, then what is known without it."""

from dataclasses import replace

from fixtures.lookup_records import BOARD, NAIVE, answer, crown, gemm, library, record, source_hash, tiled

from tuner.lookup import best
from tuner.lookup.answers import EXACT
from tuner.results.record import ProblemKey, Role
from tuner.store import Store

PLAIN = gemm(1024, 512, 256)
FINISHED = replace(PLAIN, epilogue="bias-col+gelu")


def final(problem: ProblemKey, kernel: str = "naive", time_s: float = 1e-3) -> object:
    config = NAIVE if kernel == "naive" else tiled(16) if kernel == "tiled" else {}
    return record(
        problem, time_s, role=Role.FINAL, kernel=kernel, config=config, source_hash=source_hash(kernel)
    )


def test_its_own_champion_answers_and_no_other_problem_is_told_of_it(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 2.0)
    crown(store, final(FINISHED, "tiled"), library(FINISHED), 3.0)
    found, plain = answer(store, FINISHED, BOARD), answer(store, PLAIN, BOARD)
    assert (found.match, found.kernel, found.to_json()["epilogue"]) == (EXACT, "tiled", "bias-col+gelu")
    assert (plain.match, plain.kernel, "epilogue" in plain.to_json()) == (EXACT, "naive", False)


def test_the_problem_without_it_answers_and_says_so(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 2.0)
    found = answer(store, FINISHED, BOARD)
    assert (found.match, found.kernel, found.use) == ("predicted", "naive", "kernel")
    assert "nothing was timed with epilogue bias-col+gelu" in found.reasons[0]
    assert "without bias-col+gelu" in found.loss.said
    assert found.record.problem == PLAIN


def test_the_library_stays_the_library(store: Store) -> None:
    crown(store, final(PLAIN), library(PLAIN), 0.5)
    assert answer(store, FINISHED, BOARD).use == "cuBLASLt's first choice + element-wise"


def test_a_model_answers_without_it() -> None:
    """Published results of the H200 have a model; the words of a problem may have the epilogue."""
    found = best("gemm 3000 2000 1000 nt gelu+bias-col", "NVIDIA H200", db="sqlite:////nothing/here.db")
    assert found.question.problem.epilogue == "bias-col+gelu"
    assert found.match == "predicted"
    assert any("answered without it" in reason for reason in found.reasons)
    assert found.kernel in ("tiled", "register_tiled", "warp_tiled")
