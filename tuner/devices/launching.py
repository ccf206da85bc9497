"""What a run of a CUDA kernel queues on the present stream: its launch, and the copies that belong to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime

from tuner.devices.protocol import Arrays
from tuner.kernel import Launch, Pieces, Workspace

DEVICE_TO_DEVICE = runtime.memcpyDeviceToDevice
#: A padded output is full of NaN at first, so that elements that are never written show; so is a workspace.
POISON = 0xFF
Step = Callable[[], None]


def steps_of(module: Any, function: Any, launch: Launch, arrays: Arrays) -> list[Step]:
    """What one run queues, in order.

    Args:
        module: CuPy's module that holds the kernel; it has its ``__constant__`` arrays.
        function: The kernel.
        launch: Geometry, padded tensors, pieces, workspace.
        arrays: What the kernel computes on.
    """
    arguments = list(arrays.arguments())
    before: list[Step] = []
    after: list[Step] = []
    wanted = {each.tensor: tuple(each.shape) for each in launch.padded}
    for number, tensor in enumerate(arrays.problem.tensors):
        array = arguments[number]
        if wanted.get(tensor.name, array.shape) == array.shape:
            continue
        larger = arguments[number] = cupy.zeros(wanted[tensor.name], dtype=tensor.dtype)
        if tensor.output:
            larger.view(cupy.uint8).fill(POISON)
            after.append(_copying(array, larger))
        else:
            before.append(_copying(larger, array))
    if launch.workspace is not None:
        arguments.append(workspace(launch.workspace))
    grid, block, shared = three(launch.grid), three(launch.block), launch.shared_bytes

    def launched(*more: Any) -> None:
        function(grid, block, (*arguments, *more), shared)

    if launch.pieces is None:
        return [*before, launched, *after]
    return [*before, *_in_pieces(module, launch.pieces, arrays, launched), *after]


def _copying(target: Any, source: Any) -> Step:
    """Copies the rows and columns that two arrays have in common."""
    rows, columns = (min(sizes) for sizes in zip(target.shape, source.shape, strict=True))
    width = columns * source.itemsize

    def copy() -> None:
        runtime.memcpy2DAsync(
            target.data.ptr, target.strides[0], source.data.ptr, source.strides[0], width, rows,
            DEVICE_TO_DEVICE, cupy.cuda.get_current_stream().ptr,
        )  # fmt: skip

    return copy


def workspace(wanted: Workspace) -> Any:
    """Zeros, then bytes that are NaN as numbers, so that what is read before it was written shows."""
    memory = cupy.full(wanted.bytes, POISON, dtype=cupy.uint8)
    memory[: wanted.zeroed_bytes] = 0
    return memory


def _in_pieces(module: Any, pieces: Pieces, arrays: Arrays, launch: Callable[..., None]) -> list[Step]:
    """For each piece a copy to constant memory, then a launch that is told how many elements came before."""
    symbol, source = int(module.get_global_var(pieces.symbol)), arrays.arrays[pieces.tensor]

    def copy(first: int) -> None:
        address = source.data.ptr + first * source.itemsize
        size = min(pieces.elements, source.size - first) * source.itemsize
        runtime.memcpyAsync(symbol, address, size, DEVICE_TO_DEVICE, cupy.cuda.get_current_stream().ptr)

    steps: list[Step] = []
    for first in range(0, source.size, pieces.elements):
        steps += [partial(copy, first), partial(launch, numpy.int32(first))]
    return steps


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Blocks or threads in x, y and z."""
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z
