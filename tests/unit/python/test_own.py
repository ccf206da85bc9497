"""Kernels given as text or function: what is found out, and what is asked."""

from typing import Any

import numpy
import pytest
from fixtures.own_kernels import PARAMS, VECTOR_ADD, add_arguments, double, gather
from numba import njit, prange

from tuner.errors import DeclarationError, InputError, UnknownName
from tuner.python.own_kernel import KernelCode


def own(what: Any, arguments: Any, name: str = "", params: Any = None, **options: Any) -> Any:
    code = KernelCode(what, name, params or PARAMS, options)
    declaration = code.declaration(code.bound(arguments))
    declaration.text()  # where expressions are read
    return declaration


def of_double(arguments: Any = None, params: Any = None, **options: Any) -> Any:
    x = numpy.ones(100, "float32")
    return own(double, arguments or [x, x.copy(), 100], "", params or {"BLOCK": [32, 64]}, **options)


def of_add(arguments: Any = None, params: Any = None, name: str = "vector_add", **options: Any) -> Any:
    options = {"reference": numpy.add, "problem_size": 1000} | options
    return own(VECTOR_ADD, arguments or add_arguments(), name, params, **options)


def of_pair(**options: Any) -> Any:
    return own(two_outputs, [numpy.ones(3)] * 3, params={"CHUNK": [1]}, **options)


def test_a_function_becomes_a_source_of_its_own() -> None:
    found = of_double()
    assert (found.name, found.target, found.dtype) == ("double", "cpu", "float32")
    assert [(each.name, each.output) for each in found.tensors] == [("x", False), ("out", True)]
    assert "def double(x, out, n):" in found.source
    assert "@numba.njit(nogil=True, parallel=False, cache=True)" in found.source
    # Without a reference it is held against itself in float64, at its first config.
    assert (found.reference.name, found.defaults) == ("its_own_result", {"BLOCK": 64})


@njit(fastmath=True)
def in_parallel(n: int, out: Any, x: Any) -> None:
    for i in prange(n):
        for j in range(UNROLL):  # noqa: F821
            out[i] = x[i] + j


def test_threads_order_and_global_parameters() -> None:
    x = numpy.ones(64)
    found = own(in_parallel, [64, x, x], params={"UNROLL": [1, 2], "THREADS": [1, 2]}, reference=numpy.abs)
    for part in ("parallel=THREADS > 1", "fastmath=True", "in_parallel(out, x, n):", "_in_parallel(n, out, x)"):
        assert part in found.source
    assert (found.threads, found.library.title) == ("THREADS", "NumPy")


def test_cuda_launches_are_told_or_follow_kernel_tuners_names() -> None:
    assert of_add().launch == {"block": ("block_size_x",), "grid": ("ceil_div(n, (block_size_x))",)}
    grid = of_add(problem_size=("n", 3), grid_div_x=["block_size_x", 4], grid_div_y=[]).launch["grid"]
    assert grid == ("ceil_div(n, (block_size_x) * (4))", "ceil_div(3, 1)")
    told = of_add(params={"B": numpy.array([32, 64])}, grid="ceil_div(n, B)", block="B", shared_bytes=64)
    assert told.launch == {"grid": ("ceil_div(n, B)",), "block": ("B",), "shared_bytes": ("64",)}
    assert told.parameters == {"B": (32, 64)}


def test_given_numbers_are_kept_where_they_are_needed() -> None:
    places = numpy.arange(5)
    arguments = [numpy.ones(9, "float32"), places, numpy.ones(5, "float32")]
    params = {"CHUNK": [1]}
    assert list(own(gather, arguments, params=params).arrays) == ["places"]
    assert list(own(gather, arguments, params=params, inputs="resampled").arrays) == ["table", "places"]
    fixed = own(gather, arguments, params=params, answer=numpy.ones(5))
    assert (list(fixed.arrays), fixed.inputs) == (["answer:out", "table", "places"], "given")


def two_outputs(x: Any, low: Any, high: Any, CHUNK: int = 1) -> None:
    for i in range(x.size):
        low[i], high[i] = x[i] - CHUNK, x[i] + CHUNK


def rows(x: Any, sums: Any, CHUNK: int = 1) -> None:
    for i in range(len(x)):
        sums[i][0] = CHUNK * 0
        sums[i][1] += x[i]


def test_arrays_whose_elements_are_set_are_outputs() -> None:
    pair = of_pair(restrictions="CHUNK > 0", reference=two_sides)
    assert (pair.outputs, pair.rules) == (("low", "high"), ("CHUNK > 0",))
    nested = own(rows, [numpy.ones(3), numpy.ones((3, 2))], params={"CHUNK": [1]}, reference=lambda x: x)
    assert nested.outputs == ("sums",)


def two_sides(x: Any) -> Any:
    return x - 1, x + 1


def silent(x: Any, CHUNK: int = 1) -> None:
    x.sum(CHUNK)


ONES, FOUR = numpy.ones(3), add_arguments(4)
SILENT = {"what": silent, "arguments": [ONES], "params": {"CHUNK": [1]}}


@pytest.mark.parametrize(("call", "options", "message"), [
    (of_add, {"name": ""}, "CUDA text goes with the name of its function"),
    (of_add, {"arguments": [numpy.ones(4), *FOUR[1:]]}, "c is an array of float32 .* an array of float64"),
    (of_add, {"arguments": [*FOUR[:3], 2.5]}, "n is a number of int32 .* got a number of float64"),
    (of_add, {"reference": None}, "compared with what is right, and nothing tells that"),
    (of_add, {"problem_size": None}, "a launch has a grid .* and a block"),
    (of_add, {"params": {"B": [32]}, "grid": "n // B"}, "a launch has a grid .* and a block"),
    (of_double, {"outputs": "n"}, r"outputs= names arrays \(x, out\), got 'n'"),
    (of_double, {"params": {"BLOK": [1]}}, r"the parameter 'BLOK' \(in capitals there: BLOCK\)"),
    (of_double, {"reference": ONES}, "an array goes to answer="),
    (of_double, {"reference": lambda p, q, r, s: p}, r"takes the kernel's inputs \(x\)"),
    (of_double, {"arguments": ["a", 1, 2]}, "an argument is an array .* x is str"),
    (of_double, {"arguments": [numpy.ones(3, "int8"), ONES, 3]}, "x is int8; convert it"),
    (of_double, {"restrictions": [abs]}, "a restriction is an expression of Python, got '<built-in"),
    (of_pair, {"answer": ONES}, "answer= has an array for each of low, high; give them by name"),
    (own, SILENT, "a kernel writes an array, and nothing tells which of x; name it by outputs="),
])  # fmt: skip
def test_what_is_open_or_wrong_is_told(call: Any, options: Any, message: str) -> None:
    with pytest.raises((InputError, DeclarationError, UnknownName), match=message):
        call(**options)
