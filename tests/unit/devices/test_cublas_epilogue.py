"""cuBLASLt's epilogues, and the kernel behind a product. No GPU: the libraries are played."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin
from tuner.devices.protocol import LaunchFailed

GEMM = builtin().operation("gemm")
NAMES = ("tuner.devices.cuda.cublas", "tuner.devices.cuda.cublas", "tuner.devices.cuda.cublas_epilogue")
#: Addresses of the arrays that calls are given.
PLACES = {"a": 1, "b": 2, "c": 3, "c_in": 4, "bias": 5, "residual": 6}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, loaded anew beside wrappers that machines without a GPU cannot load."""
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", SimpleNamespace())
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    found = sys.modules[NAMES[-1]]
    monkeypatch.setattr(found.cupy.cuda.runtime, "getDevice", lambda: 0)
    return found


def problem(epilogue: str, dtype: str = "bfloat16") -> Any:
    return GEMM.problem({"m": 4, "n": 6, "k": 8}, dtype, "nn", "", epilogue)


def played(library: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is queued: products with what cuBLASLt was told, then kernels."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        library, "proposed", lambda of, fused: [lambda *places: calls.append(("lt", fused, *places))]
    )
    monkeypatch.setattr(
        library, "candidates", lambda of: {"cublasGemmEx": lambda *places: calls.append(("ex", *places))}
    )
    monkeypatch.setattr(
        library, "_element_wise", lambda of, rest: lambda *places: calls.append((rest.text, *places))
    )
    return calls


def run(library: Any, of: Any) -> None:
    arrays = {each.name: SimpleNamespace(data=SimpleNamespace(ptr=PLACES[each.name])) for each in of.tensors}
    library.best_product(of, arrays)


@pytest.mark.parametrize(
    ("epilogue", "told", "places", "behind"),
    [
        ("bias-col+gelu-tanh", (36, 1.0, 0.0, True), (2, 1, 3, 0, 5), []),
        ("bias-col+relu", (6, 1.0, 0.0, True), (2, 1, 3, 0, 5), []),
        ("alpha+beta+bias-col", (4, 0.75, 0.5, True), (2, 1, 3, 4, 5), []),
        ("bias-col+residual", (4, 1.0, 1.0, True), (2, 1, 3, 6, 5), []),
        ("relu", (2, 1.0, 0.0, False), (2, 1, 3), []),
        ("bias-col+gelu", (4, 1.0, 0.0, True), (2, 1, 3, 0, 5), [("gelu", 3, 5, 0)]),
        ("bias-row+silu+residual", (1, 1.0, 0.0, False), (2, 1, 3), [("bias-row+silu+residual", 3, 5, 6)]),
    ],
)
def test_cublaslt_does_what_it_can_and_a_kernel_the_rest(
    library: Any, monkeypatch: pytest.MonkeyPatch, epilogue: str, told: tuple, places: tuple, behind: list
) -> None:
    calls = played(library, monkeypatch)
    run(library, problem(epilogue))
    (_, fused, *given), *after = calls
    assert (fused.epilogue, fused.alpha, fused.beta, fused.biased) == told
    assert tuple(given) == places
    assert after == behind


def test_the_fastest_is_taken_and_gemm_ex_competes_where_a_kernel_does_it_all(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = played(library, monkeypatch)
    of = problem("silu")
    asked: list[list[str]] = []

    def fastest(products: dict[str, Any], places: tuple[int, ...]) -> Any:
        asked.append(list(products))
        return products["cublasGemmEx"]

    monkeypatch.setattr(library, "fastest", fastest)
    arrays = {each.name: SimpleNamespace(data=SimpleNamespace(ptr=PLACES[each.name])) for each in of.tensors}
    for _ in range(2):
        library.choose(of, arrays)
    library.best_product(of, arrays)
    assert asked == [["cublasLtMatmul 0", "cublasGemmEx"]]
    assert calls == [("ex", 2, 1, 3), ("silu", 3, 0, 0)]


def test_nothing_that_computes_it_is_told(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "proposed", lambda of, fused: [])
    with pytest.raises(LaunchFailed, match="neither cublasGemmEx nor cuBLASLt"):
        run(library, problem("bias-col+relu"))
