"""cuBLAS functions called directly, for baselines.

CuPy's wrappers refuse to run while a stream is captured into a graph, and cost more on the host than a
small product takes on the device. The handle is CuPy's, set to the current stream beforehand.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
from cupy_backends.cuda.libs import cublas

from tuner.devices.protocol import LaunchFailed

#: Operand as stored, or transposed (cublasOperation_t).
OPERATION = {"n": 0, "t": 1}


@functools.cache
def function(name: str) -> Callable[..., int]:
    """A function of the cuBLAS that this process has loaded, e.g. ``cublasSgemm_v2``."""
    cupy.cuda.device.get_cublas_handle()
    loaded = re.search(r"\S+/libcublas\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    if loaded is None:
        raise LaunchFailed("cuBLAS is not loaded")
    found: Callable[..., int] = getattr(ctypes.CDLL(loaded[0]), name)
    return found


@functools.cache
def one_and_zero(dtype: str) -> tuple[Any, Any]:
    """Host addresses of 1 and 0 in a dtype (``float32``, ``float64``)."""
    kind = {"float32": ctypes.c_float, "float64": ctypes.c_double}[dtype]
    return ctypes.byref(kind(1)), ctypes.byref(kind(0))


def handle() -> ctypes.c_void_p:
    """CuPy's handle, on the current stream."""
    found = cupy.cuda.device.get_cublas_handle()
    stream = cupy.cuda.get_current_stream()
    if not stream.is_capturing():
        cublas.setStream(found, stream.ptr)
    return ctypes.c_void_p(found)


def check(status: int) -> None:
    """Raises where a call did not succeed.

    Raises:
        LaunchFailed: With cuBLAS's status.
    """
    if status:
        raise LaunchFailed(f"cuBLAS failed with status {status}")
