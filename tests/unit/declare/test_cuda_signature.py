"""What a CUDA function takes is read from its source."""

from __future__ import annotations

import pytest

from tuner.declare.own_source import callable_from_c, taken_by
from tuner.declare.shapes import KernelArgument
from tuner.errors import DeclarationError

SOURCE = """
// __global__ void add(int wrong)
template <int N> __device__ float twice(float x) { return 2 * x; }
__global__ void __launch_bounds__(256) add(
    float *__restrict__ out, const float *a, float const * __restrict__ b,  // b is read
    const int n, double alpha, const unsigned char flags[], REAL *any, long long big)
{ if (n) out[0] = a[0]; }
"""


def test_pointers_numbers_and_their_types_are_found() -> None:
    taken = taken_by(SOURCE, "add")
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
        taken_by(SOURCE, "sub")
    with pytest.raises(DeclarationError, match="takes pointers and numbers, f takes 'float & x'"):
        taken_by("__global__ void f(float & x) {}", "f")


def test_a_function_can_be_called_by_its_name() -> None:
    once = callable_from_c(SOURCE, "add")
    assert 'extern "C" __global__ void __launch_bounds__(256) add(' in once
    assert callable_from_c(once, "add") == once
