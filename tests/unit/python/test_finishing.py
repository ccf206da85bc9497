"""Products with an epilogue: by a kernel where one was measured, else by the library; the same to tolerance."""

from typing import Any

import numpy as np
import pytest
from fixtures.callable_records import crowned
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, on_gpu
from fixtures.operands import normal
from scipy.special import erf

import tuner
from tuner.errors import UnknownName
from tuner.python import calls

pytestmark = pytest.mark.usefixtures("own_records")
M, N, K = 12, 7, 5
DIMS = {"m": M, "n": N, "k": K}
A, B, C, R, BIAS = normal(M, K), normal(K, N), normal(M, N), normal(M, N), normal(N)
ALL = "alpha+beta+bias-col+gelu+residual"


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def everything(alpha: float = 2.0, beta: float = -0.5) -> np.ndarray:
    return gelu(alpha * (A.astype(float) @ B) + beta * C + BIAS) + R


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Problems for which a kernel was prepared."""
    problems: list[str] = []
    prepare = calls.kernel_call
    noted = lambda request, decision: problems.append(str(decision.problem)) or prepare(request, decision)
    monkeypatch.setattr(calls, "kernel_call", noted)
    return problems


GIVEN = {"bias": BIAS, "activation": "gelu", "alpha": 2.0, "beta": -0.5, "c": C, "residual": R}


@pytest.mark.parametrize("champion", [False, True])
def test_it_is_computed_with_any_factors_by_kernel_or_library(champion: bool, kernels: list[str]) -> None:
    if champion:
        crowned("gemm", DIMS, layout="nn", kernel="naive", config={"THREADS": 1}, epilogue=ALL)
    for alpha, beta in ((2.0, -0.5), (0.25, 3.0), (2.0, -0.5)):
        got = tuner.matmul(A, B, **GIVEN | {"alpha": alpha, "beta": beta})
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, everything(alpha, beta), rtol=1e-5, atol=1e-5)
    assert kernels == ([f"gemm 12 x 7 x 5 float32 nn {ALL}"] * 2 if champion else [])


def test_a_champion_without_the_epilogue_computes_it_where_nothing_else_is_known(kernels: list[str]) -> None:
    crowned("gemm", DIMS, layout="nn", kernel="naive", config={"THREADS": 1})
    got = tuner.matmul(A, B, bias=BIAS, activation="relu")
    np.testing.assert_allclose(got, np.maximum(A @ B + BIAS, 0), rtol=1e-5, atol=1e-5)
    assert kernels == ["gemm 12 x 7 x 5 float32 nn bias-col+relu"]
    told = tuner.explain(A, B, epilogue="relu+bias-col")
    assert (told.use, told.match) == ("kernel", "predicted")
    assert "nothing was timed with epilogue bias-col+relu" in told.why


@pytest.mark.parametrize("champion", [False, True])
def test_arrays_may_lie_anyhow_and_out_may_be_an_input(champion: bool) -> None:
    if champion:
        crowned("gemm", DIMS, layout="tt", kernel="naive", config={"THREADS": 1}, epilogue=ALL)
    a, b, c = np.asfortranarray(A), np.asfortranarray(B), np.asfortranarray(C)
    given = GIVEN | {"c": c, "residual": R[::1], "bias": np.repeat(BIAS, 2)[::2]}
    np.testing.assert_allclose(tuner.matmul(a, b, **given), everything(), rtol=1e-5, atol=1e-5)
    for out in (np.empty((M, N), "f"), np.empty((N, M), "f").T, np.empty((M, 2 * N), "f")[:, ::2]):
        assert tuner.matmul(a, b, out, **given) is out
        np.testing.assert_allclose(out, everything(), rtol=1e-5, atol=1e-5)
    own = R.copy()
    tuner.matmul(a, b, own, **given | {"residual": own})
    np.testing.assert_allclose(own, everything(), rtol=1e-5, atol=1e-5)


def test_a_bias_of_one_column_is_for_rows_and_read_only_arrays_are_read() -> None:
    crowned("gemm", DIMS, layout="nn", kernel="naive", config={"THREADS": 1}, epilogue="bias-row+silu")
    rows = C[:, :1].copy()
    rows.flags.writeable = False
    x = A @ B + rows
    got = tuner.matmul(A, B, bias=rows, activation="silu")
    np.testing.assert_allclose(got, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-5)


def test_a_factor_of_one_is_no_part() -> None:
    np.testing.assert_array_equal(tuner.matmul(A, B, alpha=1.0), A @ B)
    np.testing.assert_allclose(tuner.matmul(A, B, c=C), A @ B + C, rtol=1e-6)
    np.testing.assert_array_equal(tuner.matmul(A, B, c=np.full_like(C, np.nan), beta=0.0), A @ B)


def test_batches_and_doubles_are_the_librarys(kernels: list[str]) -> None:
    a = np.stack([A, 2 * A])
    np.testing.assert_allclose(tuner.matmul(a, B, bias=BIAS), a @ B + BIAS, rtol=1e-5, atol=1e-6)
    x = A.astype("d") @ B.astype("d") + BIAS
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    got = tuner.matmul(A.astype("d"), B.astype("d"), bias=BIAS, activation="gelu-tanh")
    np.testing.assert_allclose(got, 0.5 * x * (1 + tanh), rtol=1e-12, atol=1e-12)
    assert kernels == []


WRONG = [
    ({"bias": BIAS[:3]}, ValueError, r"bias has an element for each column, shape \(N,\), .*got shape \(3,\)"),
    ({"activation": "gellu"}, UnknownName, "unknown activation 'gellu'; did you mean gelu"),
    ({"beta": 1.0}, ValueError, "beta multiplies c, got beta=1.0 without c"),
    ({"residual": B}, ValueError, r"residual has the shape of the result, \(12, 7\), got \(5, 7\)"),
    ({"bias": BIAS.astype("i8")}, TypeError, "an epilogue is for floating-point numbers, got int64"),
]


@pytest.mark.parametrize(("given", "kind", "told"), WRONG)
def test_wrong_calls_say_what_is_wrong(given: dict, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        tuner.matmul(A, B, **given)


@pytest.mark.parametrize(
    ("wrap", "dtype"),
    [(CupyArray, "float32"), (CupyArray, "float16"), (TorchTensor, "bfloat16"), (Shared, "float32")],
)
def test_gpu_arrays_are_handed_on_by_address(gpu: Log, wrap: Any, dtype: str) -> None:
    kernel = "tiled" if dtype == "float32" else "half_tiled"
    crowned("gemm", DIMS, dtype, "nn", kernel=kernel, device=H200, epilogue=ALL)
    board = lambda x: wrap(on_gpu(x.astype(dtype))) if isinstance(x, np.ndarray) else x
    got = tuner.matmul(board(A), board(B), **{name: board(each) for name, each in GIVEN.items()})
    rough = 1e-5 if dtype == "float32" else 3e-2
    np.testing.assert_allclose(np.asarray(got.host).astype(float), everything(), rtol=rough, atol=5 * rough)
    assert gpu.runs == [f"gemm 12 x 7 x 5 {dtype} nn {ALL}"]
