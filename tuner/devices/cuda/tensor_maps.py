"""Makes tensor maps by the driver: CuPy has no function for it.

A map holds a tensor's address, so it is made for each array. Kernels are given it by value, which CuPy does for
NumPy arrays of one element.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy

from tuner.declare.launch import ALIGNMENT_BYTES, TensorMap
from tuner.declare.problem import DTYPE_BYTES, Tensor
from tuner.devices.protocol import LaunchFailed

#: ``CUtensorMapDataType`` by our dtypes.
DATA_TYPES = {
    "uint8": 0, "int32": 3, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
#: ``CUtensorMapSwizzle`` by bytes, and ``CUtensorMapL2promotion``.
SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTION = {128: 2, 256: 3}
#: Bytes of a line of L2.
LINE_BYTES = 128
#: Size and alignment of a ``CUtensorMap``.
MAP_BYTES, MAP_ALIGNMENT_BYTES = 128, 64
#: Maps that are kept for the addresses of earlier runs.
KEPT_MAPS = 4096


@functools.cache
def _encode() -> Any:
    """``cuTensorMapEncodeTiled`` of the driver.

    Raises:
        LaunchFailed: The driver is older than CUDA 12, which brought it.
    """
    try:
        found = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError) as error:
        raise LaunchFailed(f"tensor maps need a driver of CUDA 12 or newer: {error}") from error
    found.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    ]  # fmt: skip
    return found


@functools.lru_cache(KEPT_MAPS)
def encoded(wanted: TensorMap, tensor: Tensor, address: int) -> Any:
    """A tensor map as a kernel's argument.

    Args:
        wanted: Box, swizzle and promotion.
        tensor: Gives shape and dtype; dense and row-major.
        address: Where it lies on the device.

    Returns:
        A NumPy array of one element of 128 bytes.

    Raises:
        LaunchFailed: The driver refuses the map.
    """
    shape, box = tensor.shape[::-1], wanted.box[::-1]  # the driver begins with the contiguous dim
    rank, element = len(shape), DTYPE_BYTES[tensor.dtype]
    pitches = [element * math.prod(shape[: place + 1]) for place in range(rank - 1)]
    if address % ALIGNMENT_BYTES or any(pitch % ALIGNMENT_BYTES for pitch in pitches):
        raise LaunchFailed(
            f"a mapped tensor and its rows begin at multiples of {ALIGNMENT_BYTES} bytes; {tensor.name} of "
            f"shape {tensor.shape} begins at {address:#x} with rows of {pitches} bytes"
        )
    memory = numpy.zeros(MAP_BYTES + MAP_ALIGNMENT_BYTES, dtype=numpy.uint8)
    first = -memory.ctypes.data % MAP_ALIGNMENT_BYTES
    made = memory[first : first + MAP_BYTES]
    whole_lines = all(pitch % LINE_BYTES == 0 for pitch in pitches)
    status = _encode()(
        made.ctypes.data, DATA_TYPES[tensor.dtype], rank, address,
        (ctypes.c_uint64 * rank)(*shape), (ctypes.c_uint64 * max(rank - 1, 1))(*pitches),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*([1] * rank)),
        0, SWIZZLE[wanted.swizzle], PROMOTION[wanted.promotion if whole_lines else LINE_BYTES], 0,
    )  # fmt: skip
    if status:
        raise LaunchFailed(f"the driver refuses the tensor map {wanted} of {tensor} with status {status}")
    return made.view(f"V{MAP_BYTES}")
