"""cuBLAS and cuBLASLt as CuPy has loaded them, called directly: nothing is copied or allocated.

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
from typing import Any

import cupy
import numpy
from cupy_backends.cuda.libs import cublas

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
    call: Callable[..., int] = getattr(library("libcublas"), name)
    return call


@cache
def one_and_zero(dtype: str) -> tuple[Any, Any]:
    """Returns the host addresses of 1 and 0 in a dtype (``float32``, ``float64``)."""
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
