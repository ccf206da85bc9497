"""Operations, problems, their work and tolerance."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fixtures.fake_device import TOY
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin, from_file
from tuner.declare.epilogue import ACTIVATIONS, BIASES, WORDS, Epilogue
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


# --- epilogues ----------------------------------------


EPILOGUES = st.builds(
    Epilogue, st.booleans(), st.booleans(), st.sampled_from(["", *BIASES]), st.sampled_from(["", *ACTIVATIONS]),
    st.booleans(),
)  # fmt: skip
DIMS = {"m": 5, "n": 7, "k": 3}


@given(EPILOGUES, st.randoms())
def test_words_in_any_order_are_one_text(epilogue: Epilogue, random: object) -> None:
    words = epilogue.text.split("+") if epilogue.text else []
    random.shuffle(words)
    assert Epilogue.read(" + ".join(words)) == epilogue
    assert [WORDS.index(word) for word in epilogue.text.split("+") if word] == sorted(map(WORDS.index, words))
    assert bool(epilogue) == bool(words)


@pytest.mark.parametrize(("operation", "dtype", "text", "message"), [
    *(("gemm", "", text, "each part once, at most one bias and one activation")
      for text in ("bias-row+bias-col", "relu+gelu", "alpha+alpha")),
    ("gemm", "", "bias-col+gellu", "unknown part of an epilogue 'gellu'; did you mean gelu"),
    ("gemm", "float64", "relu", r"epilogue 'relu' is for gemm in .*, got gemm in float64; leave"),
    ("gemv", "", "relu", "epilogue 'relu' is for gemm, got gemv in float32"),
])  # fmt: skip
def test_what_cannot_be_is_told(operation: str, dtype: str, text: str, message: str) -> None:
    declared = builtin().operation(operation)
    with pytest.raises(InputError, match=message):
        declared.problem(dict.fromkeys(declared.dims, 3), dtype, epilogue=text)


def test_a_problem_with_one_takes_its_operands_and_factors() -> None:
    problem = GEMM.problem(DIMS, "bfloat16", epilogue="residual+gelu+bias-row+beta+alpha")
    assert problem.epilogue == "alpha+beta+bias-row+gelu+residual"
    assert str(problem) == "gemm 5 x 7 x 3 bfloat16 nn alpha+beta+bias-row+gelu+residual"
    assert [(each.name, each.shape) for each in problem.tensors[2:]] == [
        ("c_in", (5, 7)), ("bias", (5,)), ("residual", (5, 7)), ("c", (5, 7)),
    ]  # fmt: skip
    assert [each.name for each in problem.scalars if each.given] == ["alpha", "beta"]
    assert problem.at({"m": 1, "n": 2, "k": 3}).epilogue == problem.epilogue
    assert "epilogue" not in GEMM.problem(DIMS).to_json()
    assert problem.with_values({"alpha": 3.0}) == problem
    assert [each.value for each in problem.with_values({"alpha": 3.0}).scalars[3:]] == [3.0, 0.5]


FORMULAS = {
    "": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@given(EPILOGUES, st.integers(0, 2**31))
def test_the_reference_is_the_formula(epilogue: Epilogue, seed: int) -> None:
    if not epilogue:
        return
    problem = GEMM.problem(DIMS, epilogue=epilogue.text)
    rng = np.random.default_rng(seed)
    arrays = {each.name: rng.standard_normal(each.shape).astype("float32") for each in problem.inputs}
    got = GEMM.reference(np, problem, arrays)
    for i, j in ((0, 0), (4, 6), (2, 3)):
        x = float(arrays["a"][i].astype(float) @ arrays["b"][:, j].astype(float))
        x = (0.75 if epilogue.alpha else 1.0) * x + (
            0.5 * float(arrays["c_in"][i, j]) if epilogue.beta else 0.0
        )
        x += float(arrays["bias"][i if epilogue.bias == "bias-row" else j]) if epilogue.bias else 0.0
        x = FORMULAS[epilogue.activation](x) + (float(arrays["residual"][i, j]) if epilogue.residual else 0.0)
        assert got[i, j] == pytest.approx(x, rel=1e-12, abs=1e-12)


@given(st.sampled_from(list(ACTIVATIONS)), st.floats(1e-3, 1e3))
def test_errors_grow_by_no_more_than_the_tolerance_says(activation: str, size: float) -> None:
    """Slope times the rms before, over the rms after."""
    x = np.linspace(-6, 6, 4001) * size
    weight = np.exp(-((x / size) ** 2) / 2)
    y = Epilogue(activation=activation).of(np, x.copy(), {})
    slope = np.abs(np.gradient(y, x)).max()
    after, before = (math.sqrt(np.sum(weight * v**2) / np.sum(weight)) for v in (y, x))
    assert slope * before / after <= ACTIVATIONS[activation] * 1.01
