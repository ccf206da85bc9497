"""Runs a CUDA kernel on a caller's arrays, device and stream: what `tuner.callables` needs of a GPU.

A measurement binds a kernel to its arrays once (`tuner.devices.launching`); a caller brings other arrays with
every call. What one run of a kernel must not share with another that may overlap it, which are runs on other
streams, is kept per stream: workspaces, and the constant memory of a module.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from tuner.devices.cuda import DEFAULT_SHARED_BYTES, describe
from tuner.devices.launching import steps_of, three, workspace
from tuner.devices.nvrtc import NvrtcCompiler
from tuner.hardware import DeviceInfo
from tuner.kernel import Rendered
from tuner.problem import Problem

#: What is kept for so many streams at the most; beyond, it is made anew.
STREAMS = 64


def device_info(index: int) -> DeviceInfo:
    """The GPU of that number, as CUDA counts in this process."""
    with cupy.cuda.Device(index):
        return describe(index)


def adopted(array: Any) -> Any:
    """A CuPy array on the memory of another library's, by DLPack or else the CUDA array interface.

    Raises:
        BufferError: The library does not give its memory away.
        TypeError: It offers neither.
    """
    if hasattr(array, "__dlpack__"):
        with contextlib.suppress(BufferError):
            return cupy.from_dlpack(array)
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{type(array).__name__} offers neither DLPack nor the CUDA array interface")
    return cupy.asarray(array)


@dataclass(frozen=True)
class Given:
    """A caller's arrays as `tuner.devices.launching` takes them."""

    problem: Problem
    arrays: Mapping[str, Any]
    scalars: tuple[Any, ...]
    references: Mapping[str, Any]

    def arguments(self) -> Sequence[Any]:
        """Tensors, then scalars."""
        return (*self.arrays.values(), *self.scalars)


class Loaded:
    """A rendered kernel on one GPU.

    Attributes:
        simple: True where a run is one launch with the arrays' addresses, so that how they are shaped does
            not matter.
    """

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, index: int) -> None:
        """Compiles, or takes from the cache on disk, and loads.

        Raises:
            CompileFailed: The source does not compile.
        """
        assert rendered.launch is not None, "a CUDA kernel has a launch"
        self._rendered, self._launch, self._problem, self._index = rendered, rendered.launch, problem, index
        compiler = NvrtcCompiler()
        try:
            self._code = compiler.compile(rendered, device.architecture, problem).code
        finally:
            compiler.close()
        launch = rendered.launch
        self.simple = not launch.padded and launch.pieces is None
        self._grid, self._block = three(launch.grid), three(launch.block)
        self._shared = launch.shared_bytes
        self._scalars = tuple(numpy.dtype(each.dtype).type(each.value) for each in problem.scalars)
        self._of_stream: dict[tuple[int, int], Any] = {}
        self._queueing = threading.Lock()
        with cupy.cuda.Device(index):
            self._module, self._function = self._load()

    def _load(self) -> tuple[Any, Any]:
        module = cupy.cuda.function.Module()
        module.load(self._code)
        function = module.get_function(self._rendered.entry)
        if self._shared > DEFAULT_SHARED_BYTES:
            wanted = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, wanted, self._shared)
        return module, function

    def run(self, *arrays: Any) -> None:
        """Queues a run on CuPy arrays, in the order of the problem's tensors, on CuPy's current stream."""
        if runtime.getDevice() != self._index:
            with cupy.cuda.Device(self._index):
                return self.run(*arrays)
        if not self.simple:
            return self._run_steps(arrays)
        trailing = self._scalars if self._launch.workspace is None else self._with_workspace()
        self._function(self._grid, self._block, (*arrays, *trailing), self._shared)
        return None

    def run_at(self, stream: int, *addresses: int) -> None:
        """Queues a run on memory at addresses, on the stream of that handle."""
        if runtime.getDevice() != self._index:
            with cupy.cuda.Device(self._index):
                return self.run_at(stream, *addresses)
        if self.simple and self._launch.workspace is None:
            given = (*addresses, *self._scalars)
            self._function(self._grid, self._block, given, self._shared, _Handle(stream))
            return None
        with cupy.cuda.ExternalStream(stream, self._index):
            shapes = zip(addresses, self._problem.tensors, strict=True)
            return self.run(
                *(_array_at(address, each.shape, each.dtype, self._index) for address, each in shapes)
            )

    def _with_workspace(self) -> tuple[Any, ...]:
        """The scalars, and the workspace of the current stream."""
        stream = _current_stream()
        found = self._of_stream.get(stream)
        if found is None:
            wanted = self._launch.workspace
            assert wanted is not None
            found = _kept(self._of_stream, stream, (*self._scalars, workspace(wanted)))
        return tuple(found)

    def _run_steps(self, arrays: Sequence[Any]) -> None:
        """A run of several steps; the larger arrays of padded tensors are made for this run alone."""
        module, function = self._module, self._function
        if self._launch.pieces is not None:
            stream = _current_stream()
            module, function = self._of_stream.get(stream) or _kept(self._of_stream, stream, self._load())
        tensors = self._problem.tensors
        named = {
            each.name: cupy.ndarray(each.shape, each.dtype, array.data)
            for each, array in zip(tensors, arrays, strict=True)
        }
        steps = steps_of(module, function, self._launch, Given(self._problem, named, self._scalars, {}))
        # Another thread may use the same stream: what it queues must not come between.
        with self._queueing:
            for step in steps:
                step()


def _current_stream() -> tuple[int, int]:
    """Names CuPy's current stream. The handle of the per-thread default stream is the same in every thread."""
    handle = int(cupy.cuda.get_current_stream().ptr)
    return handle, threading.get_ident() if handle == runtime.streamPerThread else 0


class _Handle:
    """A stream that another library made: all that a launch asks of it is its handle."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def _kept(found: dict[Any, Any], key: Any, value: Any) -> Any:
    """Keeps a value, and lets the oldest go where there are many."""
    while len(found) >= STREAMS:
        with contextlib.suppress(StopIteration, RuntimeError):
            found.pop(next(iter(found)), None)
    return found.setdefault(key, value)


def _array_at(address: int, shape: tuple[int, ...], dtype: str, index: int) -> Any:
    size = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
    memory = cupy.cuda.UnownedMemory(address, size, None, index)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
