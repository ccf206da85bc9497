"""cuBLAS as CuPy has loaded it, called directly: nothing is copied or allocated.

A library as baseline is called by `ctypes`, which works while a stream is captured; callers' arrays go by
CuPy's wrappers, which are faster to call.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import cupy
import numpy
from cupy_backends.cuda.libs import cublas

from tuner.declare.problem import Problem
from tuner.devices.protocol import LaunchFailed

#: Operand as stored, or transposed (cublasOperation_t).
OPERATION = {"n": 0, "t": 1}
#: First letter of a function in a dtype.
LETTER = {"float32": "s", "float64": "d"}


@cache
def library(name: str) -> Any:
    """``libcublas`` or ``libcublasLt``, which this process has loaded."""
    cupy.cuda.device.get_cublas_handle()
    loaded = re.search(rf"\S+/{name}\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise LaunchFailed(f"{name} is not loaded")
    return ctypes.CDLL(loaded[0])


def function(name: str) -> Callable[..., int]:
    """Returns a function of cuBLAS, e.g. ``cublasSgemm_v2``."""
    return cast(Callable[..., int], getattr(library("libcublas"), name))


@cache
def one_and_zero(dtype: str) -> tuple[Any, Any]:
    """Returns references to 1 and 0 in a dtype (``float32``, ``float64``), for the host."""
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    return ctypes.byref(kind(1)), ctypes.byref(kind(0))


def handle() -> ctypes.c_void_p:
    """CuPy's handle, on the current stream."""
    own = cupy.cuda.device.get_cublas_handle()
    stream = cupy.cuda.get_current_stream()
    if not stream.is_capturing():
        cublas.setStream(own, stream.ptr)
    return ctypes.c_void_p(own)


def check(status: int) -> None:
    """Raises an error if a call failed.

    Raises:
        LaunchFailed: The call failed; the message has cuBLAS's status.
    """
    if status:
        raise LaunchFailed(f"cuBLAS failed with status {status}")


@dataclass(frozen=True)
class Bound:
    """A cuBLAS function in one dtype; callers pass addresses of arrays.

    Attributes:
        call: CuPy's wrapper; it takes a handle first, as the C function does.
        one: Host address of 1.
        zero: Host address of 0.
        factors: Memory of both, which lives as long.
    """

    call: Callable[..., None]
    one: int
    zero: int
    factors: Any

    @staticmethod
    def handle() -> int:
        """CuPy's handle for the current device."""
        return int(cupy.cuda.device.get_cublas_handle())


@cache
def bound(name: str, dtype: str) -> Bound:
    """Binds a cuBLAS function to a dtype.

    Args:
        name: The function without its dtype's letter, e.g. ``gemv``.
        dtype: ``float32`` or ``float64``.
    """
    factors = numpy.array([1, 0], dtype)
    one = factors.ctypes.data
    return Bound(getattr(cublas, LETTER[dtype] + name), one, one + factors.itemsize, factors)


#: ``cudaDataType``, ``cublasComputeType`` and ``cublasGemmAlgo_t`` (library_types.h, cublas_api.h).
DATA_TYPES = {"float16": 2, "bfloat16": 14}
COMPUTE_32F, DEFAULT_ALGORITHM = 68, -1


def gemm_ex(problem: Problem, a: int, b: int, c: int) -> None:
    """Queues a product in 16 bits that sums in float32, of arrays at these addresses.

    cuBLAS is column-major: a row-major C is its C transposed, so B comes first and the letters swap.

    Raises:
        LaunchFailed: The call failed.
    """
    kind, left, right = DATA_TYPES[problem.dtype], problem.layout[0], problem.layout[1]
    m, n, k = problem.m, problem.n, problem.k
    one, zero = one_and_zero("float32")
    status = function("cublasGemmEx")(
        handle(), OPERATION[right], OPERATION[left], n, m, k,
        one, ctypes.c_void_p(b), kind, n if right == "n" else k,
        ctypes.c_void_p(a), kind, k if left == "n" else m,
        zero, ctypes.c_void_p(c), kind, n, COMPUTE_32F, DEFAULT_ALGORITHM,
    )  # fmt: skip
    check(status)
