"""Epilogues: their words, and what they compute, against formulas written out here."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.declare.catalogue import builtin
from tuner.declare.epilogue import ACTIVATIONS, BIASES, WORDS, Epilogue
from tuner.errors import InputError

GEMM = builtin().operation("gemm")
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
