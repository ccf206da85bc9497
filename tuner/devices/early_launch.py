"""Launches that may start while the launch before them ends (programmatic dependent launch).

CuPy's functions launch without attributes, so these launches go to the driver.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy
from cupy_backends.cuda.api import driver

#: Queues a launch: takes arguments as CuPy's functions do, then the stream; the current one if none is given.
Launched = Callable[..., None]
#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``.
PROGRAMMATIC_STREAM_SERIALIZATION = 6
#: What NumPy has is handed over by value.
BY_VALUE = (numpy.generic, numpy.ndarray)
#: The first driver that captures such launches into graphs, as cuDriverGetVersion tells it: CUDA 12.3.
LEAST_VERSION = 12030


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: its value is a union of 64 bytes, aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


#: The driver only reads it, so all launches share it.
_EARLY = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, (1,))


def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _launch() -> Any:
    """``cuLaunchKernelEx`` of the driver; None if the driver is older than CUDA 12.3."""
    try:
        library, version = _library(), ctypes.c_int()
        found = library.cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    if library.cuDriverGetVersion(ctypes.byref(version)) or version.value < LEAST_VERSION:
        return None
    found.argtypes = [ctypes.c_void_p] * 4
    return found


def ordinary(
    function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
) -> Launched:
    """A launch that starts when all before it on its stream has ended.

    Args:
        function: CuPy's.
        grid: Blocks.
        block: Threads.
        shared_bytes: Dynamic shared memory of a block.
    """

    def launched(arguments: Sequence[Any], *stream: Any) -> None:
        function(grid, block, arguments, shared_bytes, *stream)

    return launched


def early(
    function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
) -> Launched:
    """A launch that may start while the one before it ends; an ordinary one where the driver is too old.

    Args:
        function: CuPy's. It waits itself before it reads or writes what earlier launches touch.
        grid: Blocks.
        block: Threads.
        shared_bytes: Dynamic shared memory of a block.
    """
    launch = _launch()
    if launch is None:
        return ordinary(function, grid, block, shared_bytes)
    pattern = Config(grid, block, shared_bytes, None, ctypes.pointer(_EARLY), 1)

    def launched(arguments: Sequence[Any], *stream: Any) -> None:
        # Threads queue at the same time on streams of their own, so each call has its own memory.
        config = Config.from_buffer_copy(pattern)
        config.stream = (stream[0] if stream else cupy.cuda.get_current_stream()).ptr
        values, held = _parameters(arguments)
        status = launch(ctypes.byref(config), function.ptr, values, None)
        del held
        if status:
            driver.check_status(status)

    return launched


def _parameters(arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Where the driver finds the arguments: their addresses, and what must live until the launch is queued.

    Args:
        arguments: Arrays of CuPy; addresses; numbers of NumPy, and its arrays of one element, by value.
    """
    count = len(arguments)
    held: list[Any] = []
    words = (ctypes.c_uint64 * (2 * count))()  # addresses of all arguments, then pointers and whole numbers
    own = ctypes.addressof(words)
    for at, each in enumerate(arguments):
        if isinstance(each, BY_VALUE):
            value: Any = numpy.asarray(each)
            held.append(ctypes.c_char.from_buffer(value))  # NumPy takes four times as long to tell its address
            words[at] = ctypes.addressof(held[-1])
        else:
            words[count + at] = each if isinstance(each, int) else each.data.ptr
            words[at] = own + 8 * (count + at)
    return words, held
