"""Runs CUDA kernels on a caller's arrays, device and stream, for `tuner.python`.

A measurement binds a kernel to its arrays once (`tuner.devices.cuda.launching`); a caller passes other arrays
with every call. Runs on different streams may overlap, so they must not share workspaces or a module's constant
memory; these are kept for each stream.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Packing
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.devices.cuda.device import describe
from tuner.devices.cuda.launching import Series, function_of, regions_of, steps_of, three, workspace
from tuner.devices.cuda.nvrtc import NvrtcCompiler
from tuner.devices.cuda.tensor_maps import maps_of

#: Workspaces, modules and larger arrays are kept up to this total size, or this part of a GPU's memory if that
#: is more; the oldest are dropped first.
KEPT_BYTES, KEPT_PART = 1 << 30, 16
#: Largest constant memory of a module (CUDA C++ Programming Guide, compute capabilities).
CONSTANT_BYTES = 64 << 10


def device_info(index: int) -> DeviceInfo:
    """Describes the GPU with this number, as CUDA counts in this process."""
    with cupy.cuda.Device(index):
        return describe(index)


def adopted(array: Any) -> Any:
    """Wraps another library's array as a CuPy array on the same memory, by DLPack or the CUDA array interface.

    Raises:
        BufferError: The library does not export its memory.
        TypeError: The array supports neither.
    """
    if hasattr(array, "__dlpack__"):
        with contextlib.suppress(BufferError):
            return cupy.from_dlpack(array)
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{type(array).__name__} offers neither DLPack nor the CUDA array interface")
    return cupy.asarray(array)


def to_gpu(array: Any, index: int) -> Any:
    """A CuPy array with the content of one of NumPy, on the GPU with this number."""
    with cupy.cuda.Device(index):
        return cupy.asarray(array)


def to_host(array: Any, into: Any) -> None:
    """Copies a CuPy array into one of NumPy, after the work that is queued on the current stream."""
    with array.device:
        array.get(out=into)


class _StreamHandle:
    """A stream of another library, by the CUDA stream protocol.

    Args:
        handle: Its address.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the address."""
        return 0, self._handle


@dataclass(frozen=True)
class CallArguments:
    """A caller's arrays in the form that `tuner.devices.cuda.launching` takes."""

    problem: Problem
    arrays: Mapping[str, Any]
    scalars: tuple[Any, ...]
    references: Mapping[str, Any]

    def arguments(self) -> Sequence[Any]:
        """Tensors, then scalars."""
        return (*self.arrays.values(), *self.scalars)


class _Kept:
    """Data that kernels keep for each stream, bounded in bytes.

    CuPy reuses dropped memory only on the stream that used it, and thus after the work queued there.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, tuple[Any, int]] = {}
        self._lock = threading.Lock()
        self.memory_bytes = 0  # of the largest GPU that a kernel was loaded for

    def get(self, key: Hashable, make: Callable[[], tuple[Any, int]]) -> Any:
        """Returns the value of a key; if it is missing, makes it, with its size in bytes."""
        found = self._values.get(key)
        if found is None:
            found = make()
            with self._lock:
                total = found[1] + sum(size for _, size in self._values.values())
                most = max(KEPT_BYTES, self.memory_bytes // KEPT_PART)
                while self._values and total > most:
                    total -= self._values.pop(next(iter(self._values)))[1]
                if found[1] <= most:
                    self._values[key] = found
        return found[0]

    def drop(self, owner: object) -> None:
        """Drops what is kept for an owner, the second part of a key."""
        with self._lock:
            for key in [key for key in self._values if isinstance(key, tuple) and key[1] is owner]:
                del self._values[key]


_KEPT = _Kept()


def _forget(token: object) -> None:
    _KEPT.drop(token)


#: What was loaded: rendered kernel, dynamic shared memory it may have, GPU -> cubin, module, function.
_FUNCTIONS: dict[tuple[str, int, int], tuple[bytes, Any, Any]] = {}


def _function(rendered: Rendered, problem: Problem, architecture: str, index: int) -> tuple[bytes, Any, Any]:
    """Compiles and loads a kernel, unless another shape already loaded the same one."""
    assert rendered.launch is not None, "a CUDA kernel has a launch"
    key = rendered.hash, rendered.launch.shared_bytes, index
    if key not in _FUNCTIONS:
        compiler = NvrtcCompiler()
        try:
            code = compiler.compile(rendered, architecture, problem).code
        finally:
            compiler.close()
        with cupy.cuda.Device(index):
            _FUNCTIONS[key] = (code, *function_of(rendered, code))
    return _FUNCTIONS[key]


class Loaded:
    """A rendered kernel on one GPU.

    Attributes:
        simple: True if a run is one launch with the arrays' addresses, so that their shapes do not matter.
    """

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, index: int) -> None:
        """Compiles the kernel, or takes it from the cache on disk, and loads it.

        Raises:
            CompileFailed: The source does not compile.
        """
        assert rendered.launch is not None, "a CUDA kernel has a launch"
        self._rendered, self._launch, self._problem, self._index = rendered, rendered.launch, problem, index
        launch, shapes = rendered.launch, {tensor.name: tensor.shape for tensor in problem.tensors}
        self._larger_bytes = sum(
            math.prod(each.shape) * DTYPE_BYTES[problem.dtype]
            for each in launch.padded
            if tuple(each.shape) != shapes[each.tensor]
        )
        self.simple = not self._larger_bytes and launch.pieces is None
        self._grid, self._block = three(launch.grid), three(launch.block)
        self._shared = launch.shared_bytes
        self._scalars = tuple(numpy.dtype(each.dtype).type(each.value) for each in problem.scalars)
        self._queueing = threading.Lock()
        self._code, self._module, self._function = _function(rendered, problem, device.architecture, index)
        with cupy.cuda.Device(index):
            self._series = Series(self._module, launch, problem) if launch.steps else None
        self._packed: tuple[Any, ...] = ()
        # What streams keep for this kernel goes when it does, and does not keep it.
        self._token = object()
        _KEPT.memory_bytes = max(_KEPT.memory_bytes, device.memory_bytes)
        weakref.finalize(self, _forget, self._token)

    def pack(self, packing: Packing, address: int, stream: int | None = None) -> Any:
        """Memory with the packed form of an input.

        Args:
            packing: Of the launch.
            address: Where the input lies, as the problem's layout says.
            stream: Handle of the stream that it is packed on; the current one unless given.
        """
        with cupy.cuda.Device(self._index):
            if stream is not None:
                with cupy.cuda.Stream.from_external(_StreamHandle(stream)):
                    return self.pack(packing, address)
            memory = cupy.empty(packing.bytes, dtype=cupy.uint8)
            series = Series(self._module, self._launch, self._problem, packing, alone=True)
            tensors = [address if each.name == packing.tensor else 0 for each in self._problem.tensors]
            trailing = _KEPT.get(("workspace", self._token, _current_stream()), self._with_workspace)
            with self._queueing:
                series.queue((*tensors, *trailing, memory))
            return memory

    def use_packed(self, packing: Packing, memory: Any) -> None:
        """From now on runs take an input as it was packed in that memory, which stays with them."""
        self._series = Series(self._module, self._launch, self._problem, packing)
        self._packed = (memory,)

    def with_scalars(self, scalars: Sequence[Any]) -> Loaded:
        """The same kernel with other values for the problem's scalars.

        Args:
            scalars: NumPy's numbers of the dtypes that the problem declares, in its order.
        """
        if tuple(scalars) == self._scalars:
            return self
        other = copy.copy(self)
        other._scalars, other._token = (
            tuple(scalars),
            object(),
        )  # what is kept for a stream has the scalars in it
        weakref.finalize(other, _forget, other._token)
        return other

    def run(self, *arrays: Any) -> None:
        """Queues a run on the current stream; the GPU must be the current device.

        Args:
            arrays: CuPy arrays in the order of the problem's tensors. Their shapes do not matter if the
                elements lie as the problem's layout requires.
        """
        if not self.simple:
            self._run_steps(arrays)
        elif self._series is not None:
            trailing = _KEPT.get(("workspace", self._token, _current_stream()), self._with_workspace)
            with self._queueing:  # another thread may use the same stream, and the workspace with it
                maps = maps_of(self._launch, self._problem, arrays)
                self._series.queue((*arrays, *trailing, *maps, *self._packed))
        elif self._launch.workspace is None:
            self._function(self._grid, self._block, (*arrays, *self._scalars), self._shared)
        else:
            trailing = _KEPT.get(("workspace", self._token, _current_stream()), self._with_workspace)
            self._function(self._grid, self._block, (*arrays, *trailing), self._shared)

    @property
    def shortest_run(self) -> Callable[..., None]:
        """As `run`, with as little around the launch as can be."""
        if not self.simple or self._launch.workspace is not None or self._series is not None:
            return self.run
        function, grid, block, shared = self._function, self._grid, self._block, self._shared
        if self._scalars:
            scalars = self._scalars
            return lambda *arrays: function(grid, block, (*arrays, *scalars), shared)
        return lambda *arrays: function(grid, block, arrays, shared)

    def run_at(self, stream: int, *addresses: int) -> None:
        """Queues a run on memory at these addresses, on the stream with this handle."""
        if runtime.getDevice() != self._index:
            with cupy.cuda.Device(self._index):
                return self.run_at(stream, *addresses)
        if self.simple and self._launch.workspace is None and self._series is None:
            given = (*addresses, *self._scalars)
            self._function(self._grid, self._block, given, self._shared, _Handle(stream))
            return None
        with cupy.cuda.Stream.from_external(_StreamHandle(stream)):
            shapes = zip(addresses, self._problem.tensors, strict=True)
            return self.run(
                *(_array_at(address, each.shape, each.dtype, self._index) for address, each in shapes)
            )

    def _with_workspace(self) -> tuple[Any, int]:
        """The scalars, and a workspace for the current stream, in regions where there are steps."""
        wanted = self._launch.workspace
        memory = None if wanted is None else workspace(wanted)
        own = [memory] if self._series is None else regions_of(memory, self._launch)
        return (*self._scalars, *own), wanted.bytes if wanted else 0

    def _run_steps(self, arrays: Sequence[Any]) -> None:
        """Queues a run of several steps, with constant memory and larger arrays of the current stream."""
        stream, module, function = _current_stream(), self._module, self._function
        if self._launch.pieces is not None:
            size = len(self._code) + CONSTANT_BYTES
            module, function = _KEPT.get(
                ("module", self._token, stream), lambda: (function_of(self._rendered, self._code), size)
            )
        beside = self._larger_bytes + (self._launch.workspace.bytes if self._launch.workspace else 0)
        made: dict[str, Any] = _KEPT.get(("larger", self._token, stream), lambda: ({}, beside))
        tensors = self._problem.tensors
        named = {
            each.name: cupy.ndarray(each.shape, each.dtype, array.data)
            for each, array in zip(tensors, arrays, strict=True)
        }
        given = CallArguments(self._problem, named, self._scalars, {})
        # Another thread may use the same stream; its work must not come in between.
        with self._queueing:
            for step in steps_of(module, function, self._launch, given, made):
                step()


def _current_stream() -> tuple[int, int]:
    """Names CuPy's current stream. The handle of the per-thread default stream is the same in every thread."""
    handle = int(cupy.cuda.get_current_stream().ptr)
    return handle, threading.get_ident() if handle == runtime.streamPerThread else 0


class _Handle:
    """A stream made by another library. A launch needs only its handle."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def _array_at(address: int, shape: tuple[int, ...], dtype: str, index: int) -> Any:
    size = math.prod(shape) * DTYPE_BYTES[dtype]
    memory = cupy.cuda.UnownedMemory(address, size, None, index)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
