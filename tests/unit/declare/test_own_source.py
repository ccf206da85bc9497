"""Functions are written down with whatever they use; what a CUDA function takes is read from its source."""

import math
from collections.abc import Callable
from typing import Any

import numpy
import numpy as np
import pytest
from numba import njit, prange

from tuner.declare.own_source import Module, callable_from_c, definition, taken_by, unwrapped
from tuner.declare.own_source import njit as compiled
from tuner.declare.shapes import KernelArgument
from tuner.errors import DeclarationError

SCALE, SHIFTS = 3.0, (1, 2)


def helper(x: Any) -> Any:
    """Twice as much."""
    return 2 * x


def uses_all(a: Any, b: Any = 1) -> Any:
    """A docstring that goes."""
    return helper(a) * SCALE + np.float32(b) + SHIFTS[0] + math.sqrt(4)


@njit(fastmath=True)
def fast(x: Any) -> Any:
    return helper_of_fast(x) + 1


@njit
def helper_of_fast(x: Any) -> Any:
    return x * 2


def parallel(out: Any) -> None:
    for i in prange(out.size):
        out[i] = fast(i)


def loaded(function: Callable[..., Any], name: str = "found") -> Any:
    module = Module()
    module.take(function, name)
    namespace: dict[str, Any] = {}
    exec("import numba\n" + module.text, namespace)
    return namespace[name], module.text


def test_what_a_function_uses_comes_with_it() -> None:
    function, text = loaded(uses_all)
    assert function(5.0, 2) == uses_all(5.0, 2)
    assert "docstring" not in text
    assert "import numpy as np" in text


def test_lambdas_closures_and_members_of_libraries() -> None:
    def made(factor: float) -> Callable[[float], float]:
        return lambda x: x * factor

    assert loaded(made(1.5))[0](4.0) == 6.0
    assert loaded(lambda a, b: a @ b + numpy.ones(2))[0](numpy.eye(2), numpy.eye(2))[0, 0] == 2
    assert loaded(numpy.hypot)[0] is numpy.hypot
    assert loaded(math.hypot)[0](3, 4) == 5


def test_compiled_functions_keep_their_options() -> None:
    inner, options = unwrapped(fast)
    assert (inner.__name__, options) == ("fast", {"fastmath": True})
    assert compiled(options or {}) == "@numba.njit(fastmath=True, cache=True)"
    module = Module()
    module.take(parallel, "found")
    text = module.text
    assert "from numba import prange as prange" in text
    assert "@numba.njit(fastmath=True, cache=True)\ndef fast(x):" in text


def test_two_lambdas_alike_on_a_line_are_told_apart_by_nobody() -> None:
    pair = (lambda x: x + 1, lambda x: x + 2)
    with pytest.raises(DeclarationError, match="a function is one of its kind on its line, found 2"):
        definition(pair[0])


OPEN_FILE = open(__file__)  # noqa: SIM115, PTH123
OPEN_FILE.close()


def uses_a_file() -> Any:
    return OPEN_FILE


def test_what_cannot_be_written_down_is_told() -> None:
    with pytest.raises(
        DeclarationError, match="uses_a_file uses 'OPEN_FILE', TextIOWrapper; pass it as an arg"
    ):
        loaded(uses_a_file)
    namespace: dict[str, Any] = {}
    exec("def hidden(): pass", namespace)
    with pytest.raises(DeclarationError, match="a function's source must be found, that of hidden cannot be"):
        loaded(namespace["hidden"])


CUDA = """
// __global__ void add(int wrong)
template <int N> __device__ float twice(float x) { return 2 * x; }
__global__ void __launch_bounds__(256) add(
    float *__restrict__ out, const float *a, float const * __restrict__ b,  // b is read
    const int n, double alpha, const unsigned char flags[], REAL *any, long long big)
{ if (n) out[0] = a[0]; }
"""


def test_pointers_numbers_and_their_types_are_found() -> None:
    taken = taken_by(CUDA, "add")
    arrays = [(each.name, each.dtype, each.output) for each in taken if each.shape is not None]
    assert arrays == [
        ("out", "float32", True), ("a", "float32", False), ("b", "float32", False), ("flags", "uint8", False),
        ("any", "", True),
    ]  # fmt: skip
    numbers = [each for each in taken if each.shape is None]
    assert numbers == [
        KernelArgument("n", "int32"), KernelArgument("alpha", "float64"), KernelArgument("big", "int64"),
    ]  # fmt: skip


def test_what_is_not_there_or_cannot_be_taken_is_told() -> None:
    with pytest.raises(DeclarationError, match="has a __global__ function 'sub'"):
        taken_by(CUDA, "sub")
    with pytest.raises(DeclarationError, match="takes pointers and numbers, f takes 'float & x'"):
        taken_by("__global__ void f(float & x) {}", "f")


def test_a_function_can_be_called_by_its_name() -> None:
    once = callable_from_c(CUDA, "add")
    assert 'extern "C" __global__ void __launch_bounds__(256) add(' in once
    assert callable_from_c(once, "add") == once
