"""cuBLAS's functions and products, and which of them is fastest. No GPU: the libraries are played."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin
from tuner.devices.protocol import LaunchFailed

GEMM = builtin().operation("gemm")
NAME = "tuner.devices.cuda.cublas"
#: Addresses of the arrays that calls are given.
PLACES = {"a": 1, "b": 2, "c": 3, "c_in": 4, "bias": 5, "residual": 6}


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, loaded anew beside a wrapper that machines without a GPU cannot load."""
    played = SimpleNamespace(sgemv="sgemv", dgemv="dgemv", sgeam="sgeam", dgeam="dgeam")
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", played)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setitem(sys.modules, NAME, importlib.import_module(NAME))
    return sys.modules[NAME]


@pytest.fixture
def products(cublas: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cublas.cupy.cuda.runtime, "getDevice", lambda: 0)
    monkeypatch.setattr(cublas, "torch_product", lambda problem: None)
    return cublas


@pytest.fixture
def calls(products: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is queued: products with what cuBLASLt was told, then kernels."""
    queued: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        products, "proposed", lambda of, fused, device: [lambda *places: queued.append(("lt", fused, *places))]
    )
    monkeypatch.setattr(products, "_by_gemm_ex", lambda of, *places: queued.append(("ex", *places)))
    monkeypatch.setattr(
        products, "finishing", lambda of, rest: lambda *places: queued.append((rest.text, *places))
    )
    return queued


def problem(epilogue: str = "") -> Any:
    return GEMM.problem({"m": 4, "n": 6, "k": 8}, "bfloat16", "nn", "", epilogue)


def arrays(of: Any) -> dict[str, Any]:
    return {each.name: SimpleNamespace(data=SimpleNamespace(ptr=PLACES[each.name])) for each in of.tensors}


@pytest.mark.parametrize("layout", GEMM.layouts)
def test_a_row_major_product_is_the_column_major_one_of_the_transposes(
    products: Any, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    queued: list[tuple[Any, ...]] = []
    monkeypatch.setattr(products, "handle", lambda: "handle")
    monkeypatch.setattr(products, "function", lambda name: lambda *given: queued.append((name, *given)) or 0)
    products._by_gemm_ex(GEMM.problem({"m": 3, "n": 5, "k": 7}, "bfloat16", layout), 200, 100, 300)
    name, _, of_b, of_a, *sizes = queued[0][:7]
    assert (name, sizes) == ("cublasGemmEx", [5, 3, 7])
    assert (of_b, of_a) == (int(layout[1] == "t"), int(layout[0] == "t"))
    values = [each.value if isinstance(each, ctypes.c_void_p) else each for each in queued[0][8:]]
    assert values[:6] == [200, 14, 5 if layout[1] == "n" else 7, 100, 14, 7 if layout[0] == "n" else 3]
    assert values[7:] == [300, 14, 5, 68, -1], "sums in float32, the default algorithm"


@pytest.mark.parametrize(
    ("epilogue", "told", "places", "behind"),
    [
        ("bias-col+gelu-tanh", (36, 1.0, 0.0, True), (0, 5), []),
        ("bias-col+relu", (6, 1.0, 0.0, True), (0, 5), []),
        ("alpha+beta+bias-col", (4, 0.75, 0.5, True), (4, 5), []),
        ("bias-col+residual", (4, 1.0, 1.0, True), (6, 5), []),
        ("relu", (2, 1.0, 0.0, False), (0, 0), []),
        ("bias-col+gelu", (4, 1.0, 0.0, True), (0, 5), [("gelu", 3, 5, 0)]),
        ("alpha+bias-row+silu+residual", (1, 0.75, 0.0, False), (0, 5), [("bias-row+silu+residual", 3, 5, 6)]),
    ],
)
def test_cublaslt_does_what_it_can_and_a_kernel_the_rest(
    products: Any, calls: list[Any], epilogue: str, told: tuple, places: tuple, behind: list
) -> None:
    of = problem(epilogue)
    products.best_product(of, arrays(of))
    (_, fused, *given), *after = calls
    assert (*products.fused_terms(of, fused), bool(fused.bias)) == told
    assert given == [2, 1, 3, *places]
    assert after == behind
    by_lt = fused.bias or fused.activation or fused.residual or fused.alpha or fused.beta
    assert ("cublasGemmEx" in products.candidates(of, 0)) is not bool(by_lt)


def test_the_fastest_is_taken_and_one_that_fails_is_passed_over(
    products: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    took = {"lt": 1.0, "ex": 3.0}
    timed: list[str] = []

    def clock(run: Any, flush: Any) -> float:
        run()
        timed.append(calls.pop()[0])
        return took[timed[-1]]

    def broken(*places: int) -> None:
        raise LaunchFailed("cuBLAS failed with status 15")

    cupy = SimpleNamespace(
        empty=lambda *_, **__: None, uint8="uint8", cuda=SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 0),
            Device=lambda index: SimpleNamespace(attributes={"L2CacheSize": 1}),
        ),
    )  # fmt: skip
    monkeypatch.setattr(products, "cupy", cupy)
    monkeypatch.setattr(products, "_timed", clock)
    monkeypatch.setattr(products, "torch_product", lambda of: broken)
    for _ in range(2):
        products.choose(problem(), arrays(problem()))
    products.best_product(problem(), arrays(problem()))
    assert [each[0] for each in calls] == ["lt"]
    assert timed == ["ex", "lt"] * products.SAMPLES, "a second choice times none"


def test_a_proposal_is_laid_out_as_cublaslt_has_it(products: Any) -> None:
    proposal = products.Proposal
    assert (ctypes.sizeof(proposal), proposal.algorithm.offset, proposal.state.offset) == (96, 0, 72)
