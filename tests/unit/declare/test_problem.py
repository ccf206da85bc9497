"""Operations, problems, their work and tolerance."""

import math
from dataclasses import replace
from typing import Any

import pytest
from fixtures.fake_device import TOY
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin, from_file
from tuner.declare.problem import INT32_MAX, Problem
from tuner.errors import DeclarationError, InputError

GEMM = builtin().operation("gemm")
TOYS = from_file(TOY).operation("toy")


def gemm(m: int, n: int, k: int, layout: str = "nn") -> Problem:
    return GEMM.problem({"m": m, "n": n, "k": k}, layout=layout)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(GEMM.layouts))
def test_work_of_gemm_is_that_of_the_definition(m: int, n: int, k: int, layout: str) -> None:
    problem = gemm(m, n, k, layout)
    assert problem.work.flops == 2 * m * n * k
    assert problem.work.bytes == 4 * (m * k + k * n + m * n)
    # Inputs twice as they are and once in float64; the output as it is and twice in float64.
    assert problem.memory_bytes == 16 * (m * k + k * n) + 20 * m * n


@pytest.mark.parametrize(("dims", "more", "message"), [
    *(({"n": value}, {}, "a dim is a whole number of 1 or more, got n=") for value in (0, 1.5, "7", True)),
    ({}, {}, "toy takes N; n missing"),
    ({"n": 3, "N": 4}, {}, "unknown dim of toy 'N'; choose one of: n"),
    ({"n": 3}, {"dtype": "float23"}, "unknown dtype of toy 'float23'; did you mean float32"),
    ({"n": 3}, {"layout": "plan"}, "unknown layout of toy 'plan'; did you mean plain"),
    ({"n": 3}, {"precision": "emulated"}, "'emulated' is for gemm in float32, got toy in float32"),
    ({"n": 3}, {"precision": "emulate"}, "unknown precision 'emulate'; did you mean emulated"),
])  # fmt: skip
def test_a_wrong_problem_is_told(dims: Any, more: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TOYS.problem(dims, **more)


def test_a_dim_beyond_a_32_bit_int_is_refused_where_kernels_take_one() -> None:
    assert TOYS.problem({"n": INT32_MAX}).scalars[0].value == INT32_MAX
    with pytest.raises(InputError, match="n <= 2147483647 must hold"):
        _ = TOYS.problem({"n": INT32_MAX + 1}).scalars


@given(st.integers(1, 10**6))
def test_tolerance_grows_with_the_root_of_what_is_summed(k: int) -> None:
    assert gemm(1, 1, k).tolerance == pytest.approx(8 * 2**-24 * math.sqrt(k))
    # Of a result that is rounded once its own rounding comes on top.
    narrow = GEMM.problem({"m": 4, "n": 4, "k": k}, "bfloat16")
    assert narrow.tolerance == pytest.approx(2.0**-8 + gemm(4, 4, k).tolerance)


@pytest.mark.parametrize(("change", "message"), [
    ({"name": "my op"}, "name is an identifier, got 'my op'"),
    ({"verb": "a-b"}, "verb is an identifier, got 'a-b'"),
    ({"dims": ()}, "needs distinct dims"),
    ({"dims": ("n", "n")}, "needs distinct dims"),
])  # fmt: skip
def test_a_wrong_declaration_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        replace(TOYS, **change)


def test_a_problem_is_named_by_its_words_and_knows_its_tensors() -> None:
    problem = gemm(2, 3, 4, "nt")
    assert problem.to_json() == {
        "operation": "gemm", "shape": {"m": 2, "n": 3, "k": 4}, "dtype": "float32", "layout": "nt",
        "precision": "ieee",
    }  # fmt: skip
    assert (str(problem), problem.m) == ("gemm 2 x 3 x 4 float32 nt", 2)
    assert [(each.name, each.shape) for each in problem.inputs] == [("a", (2, 4)), ("b", (3, 4))]
    assert (problem, hash(problem)) == (gemm(2, 3, 4, "nt"), hash(gemm(2, 3, 4, "nt")))
    emulated = GEMM.problem({"m": 1, "n": 2, "k": 3}, precision="emulated")
    assert str(emulated.at({"m": 4, "n": 4, "k": 4})) == "gemm 4 x 4 x 4 float32 nn emulated"
    assert emulated != gemm(1, 2, 3)
