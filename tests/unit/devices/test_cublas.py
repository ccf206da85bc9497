"""cuBLAS functions that callables are bound to. No GPU: CuPy's wrapper is played."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cupy")

from tuner.declare.catalogue import builtin


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, loaded anew beside a wrapper that machines without a GPU cannot load."""
    played = SimpleNamespace(sgemv="sgemv", dgemv="dgemv", sgeam="sgeam", dgeam="dgeam")
    monkeypatch.setitem(vars(importlib.import_module("cupy_backends.cuda.libs")), "cublas", played)
    monkeypatch.delitem(sys.modules, "tuner.devices.cuda.cublas", raising=False)
    found = importlib.import_module("tuner.devices.cuda.cublas")
    monkeypatch.setitem(sys.modules, "tuner.devices.cuda.cublas", found)
    return found


@pytest.mark.parametrize(("dtype", "kind"), [("float32", ctypes.c_float), ("float64", ctypes.c_double)])
def test_a_function_is_bound_in_its_dtype_with_factors_that_stay(cublas: Any, dtype: str, kind: Any) -> None:
    for name in ("gemv", "geam"):
        bound = cublas.bound(name, dtype)
        assert bound.call == dtype.replace("float32", "s").replace("float64", "d") + name
        assert (kind.from_address(bound.one).value, kind.from_address(bound.zero).value) == (1.0, 0.0)


def test_operations_declare_functions_that_array_libraries_do_not_call(cublas: Any) -> None:
    catalogue = builtin()
    for name, dtype, has in (
        ("gemm", "float32", False), ("gemv", "float32", True), ("gemv", "float64", True),
        ("transpose", "float32", True), ("transpose", "int32", False),
    ):  # fmt: skip
        operation = catalogue.operation(name)
        problem = operation.problem(dict.fromkeys(operation.dims, 2), dtype)
        assert (operation.baselines["cuda"].bind(problem) is not None) == has
        assert operation.baselines["cpu"].bind(problem) is None
