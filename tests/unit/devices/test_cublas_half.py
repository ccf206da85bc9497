"""cuBLAS's products of 16-bit matrices, and which is fastest. No GPU: the libraries are played."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin
from tuner.devices.protocol import LaunchFailed

GEMM = builtin().operation("gemm")


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, loaded anew beside wrappers that machines without a GPU cannot load."""
    played = SimpleNamespace()
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", played)
    name = "tuner.devices.cuda.cublas"
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return sys.modules["tuner.devices.cuda.cublas"]


@pytest.mark.parametrize("layout", GEMM.layouts)
def test_a_row_major_product_is_the_column_major_one_of_the_transposes(
    half: Any, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(half, "handle", lambda: "handle")
    monkeypatch.setattr(half, "function", lambda name: lambda *given: calls.append((name, *given)) or 0)
    problem = GEMM.problem({"m": 3, "n": 5, "k": 7}, "bfloat16", layout)
    half._by_gemm_ex(problem, 200, 100, 300)
    name, _, of_b, of_a, *sizes = calls[0][:7]
    assert (name, sizes) == ("cublasGemmEx", [5, 3, 7])
    assert (of_b, of_a) == (int(layout[1] == "t"), int(layout[0] == "t"))
    values = [each.value if isinstance(each, ctypes.c_void_p) else each for each in calls[0][8:]]
    assert values[:6] == [200, 14, 5 if layout[1] == "n" else 7, 100, 14, 7 if layout[0] == "n" else 3]
    assert values[7:] == [300, 14, 5, 68, -1], "sums in float32, the default algorithm"


def test_the_fastest_is_kept_for_its_problem(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"first": 3.0, "second": 1.0, "third": 2.0}
    clock = {"now": "", "timed": 0}

    def product(name: str) -> Any:
        def run(*addresses: int) -> None:
            if name == "third":
                raise LaunchFailed("cuBLAS failed with status 15")
            clock["now"] = name

        return run

    def timed(run: Any, flush: Any) -> float:
        run()
        clock["timed"] += 1
        return took[clock["now"]]

    played = SimpleNamespace(
        empty=lambda *_, **__: None, uint8="uint8", cuda=SimpleNamespace(
            runtime=SimpleNamespace(getDevice=lambda: 0),
            Device=lambda index: SimpleNamespace(attributes={"L2CacheSize": 1}),
        ),
    )  # fmt: skip
    monkeypatch.setattr(half, "cupy", played)
    monkeypatch.setattr(half, "_timed", timed)
    monkeypatch.setattr(half, "candidates", lambda problem: {name: product(name) for name in took})
    problem = GEMM.problem({"m": 8, "n": 8, "k": 8}, "float16")
    arrays = [SimpleNamespace(data=SimpleNamespace(ptr=place)) for place in range(3)]
    for _ in range(2):
        half.choose(problem, *arrays)
        half.best_product(problem, *arrays)
        assert clock["now"] == "second"
    assert clock["timed"] == 2 * half.SAMPLES, "the one that fails is not timed; a second choice times none"


def test_a_proposal_is_laid_out_as_cublaslt_has_it(half: Any) -> None:
    proposal = half._Proposal
    assert (ctypes.sizeof(proposal), proposal.algorithm.offset, proposal.state.offset) == (96, 0, 72)


def test_pytorch_is_one_more_where_it_is_installed(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = GEMM.problem({"m": 3, "n": 5, "k": 7}, "bfloat16", "nt")
    monkeypatch.setattr(half, "proposed", lambda of: [])
    monkeypatch.setitem(sys.modules, "torch", None)
    assert list(half.candidates(problem)) == ["cublasGemmEx"]
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert list(half.candidates(problem)) == ["cublasGemmEx", "torch.matmul"]
    torch.cuda.is_available = lambda: False
    assert list(half.candidates(problem)) == ["cublasGemmEx"]
