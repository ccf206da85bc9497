"""Runs CUDA kernels on a caller's arrays, device and stream, for `tuner.python`.

A measurement binds a kernel to its arrays once; a caller passes other arrays with every call. Runs on different
streams may overlap, so a `PreparedRun`, with its workspace and constant memory, is kept for each stream.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch, Packing
from tuner.declare.problem import Problem
from tuner.devices.cuda.device import describe
from tuner.devices.cuda.launching import PreparedRun, load_module
from tuner.devices.cuda.native import NOTED
from tuner.devices.cuda.nvrtc import compiled_code
from tuner.devices.protocol import language_of

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


class _Stream:
    """A stream of any library by its handle, by the CUDA stream protocol.

    Args:
        handle: Its address.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, self._handle


@contextlib.contextmanager
def _on_stream(handle: int) -> Iterator[None]:
    """Makes a stream of any library the current one of CuPy, and then the caller's again.

    ``with stream:`` would not do: where the caller chose a stream by ``use()``, leaving the block makes the
    default stream current, and ends the caller's if nothing else holds it.
    """
    before = cupy.cuda.get_current_stream()
    cupy.cuda.Stream.from_external(_Stream(handle)).use()
    try:
        yield
    finally:
        before.use()


def _is_capturing(handle: int) -> bool:
    """Whether a stream is being captured into a graph, or may not say so because another one is."""
    try:
        return bool(runtime.streamIsCapturing(handle))
    except runtime.CUDARuntimeError:
        return True


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets this thread make memory and load modules while it captures a graph, which is else the capture's end.

    CUDA driver API, cuThreadExchangeStreamCaptureMode.
    """
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(runtime.streamCaptureModeRelaxed)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@contextlib.contextmanager
def _beside_capture() -> Iterator[None]:
    """Makes memory and loads modules for a stream that is captured: on another one, and waits for it."""
    with relaxed():
        beside = cupy.cuda.Stream(non_blocking=True)
        with _on_stream(beside.ptr):
            yield
        beside.synchronize()


def _stream_name(handle: int) -> tuple[int, int]:
    """Tells streams apart: the handle of the per-thread default stream is the same in every thread."""
    return handle, threading.get_ident() if handle == runtime.streamPerThread else 0


#: What a kernel is loaded as, and a stream -> its run there, the oldest first. CuPy reuses dropped memory only
#: on the stream that used it, and thus after the work queued there.
_RUNS: dict[tuple[object, Hashable], PreparedRun] = {}
#: Runs that were made while their stream was captured: a graph may be replayed as long as the process lives.
_OF_GRAPHS: list[PreparedRun] = []
_LOCK = threading.Lock()


def _keep(key: tuple[object, Hashable], run: PreparedRun, most_bytes: int) -> None:
    with _LOCK:
        _RUNS[key] = run
        while sum(kept.bytes for kept in _RUNS.values()) > most_bytes:
            del _RUNS[next(iter(_RUNS))]


def _drop(token: object) -> None:
    with _LOCK:
        for key in [key for key in _RUNS if key[0] is token]:
            del _RUNS[key]


#: What was loaded: rendered kernel, problem where its code is for that alone, GPU -> code, cubin and module.
_MODULES: dict[tuple[str, Problem | None, int], tuple[bytes, bytes, Any]] = {}


def _module(rendered: Rendered, problem: Problem, architecture: str, index: int) -> tuple[Rendered, bytes, Any]:
    """Compiles and loads a kernel, unless another shape already loaded the same one."""
    language = language_of(rendered.target)
    key = rendered.hash, problem if language.by_sizes else None, index
    if key not in _MODULES:
        code = compiled_code(rendered, architecture, problem)
        cubin = language.loadable(rendered, code)[1]
        with cupy.cuda.Device(index), relaxed():
            _MODULES[key] = code, cubin, load_module(cubin)
    code, cubin, module = _MODULES[key]
    return language.loadable(rendered, code)[0], cubin, module


class Loaded:
    """A rendered kernel on one GPU."""

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, index: int) -> None:
        """Compiles the kernel, or takes it from the cache on disk, and loads it.

        Raises:
            CompileFailed: The source does not compile.
        """
        self._problem, self._index = problem, index
        self._scalars = tuple(numpy.dtype(scalar.dtype).type(scalar.value) for scalar in problem.scalars)
        loaded = _module(rendered, problem, device.architecture, index)
        self._rendered, self._code, self._module = loaded
        assert self._rendered.launch is not None, "a kernel for a GPU has a launch"
        self._declared = self._launch = self._rendered.launch
        self._packed: dict[str, Any] = {}
        self._kept_bytes = max(KEPT_BYTES, device.memory_bytes // KEPT_PART)
        self._forget_runs()

    def _forget_runs(self) -> None:
        """Begins with no prepared run; what streams keep for this kernel goes when it does."""
        self._token = object()
        weakref.finalize(self, _drop, self._token)
        #: A run that holds no memory is good for every stream.
        self._run_of_all: PreparedRun | None = None

    def pack(self, packing: Packing, address: int, stream: int | None = None) -> Any:
        """Memory with the packed form of an input.

        Args:
            packing: Of the launch.
            address: Where the input lies, as the problem's layout says.
            stream: Handle of the stream that it is packed on; the current one unless given.
        """
        with cupy.cuda.Device(self._index):
            handle = cupy.cuda.get_current_stream().ptr if stream is None else stream
            with _on_stream(handle):
                memory = cupy.empty(packing.bytes, dtype=cupy.uint8)
                alone = self._declared.packing_alone(packing)
                run = self._prepared(self._module, alone, {packing.region: memory})
                names = [tensor.name for tensor in self._problem.tensors]
                run(handle, *(address if name == packing.tensor else 0 for name in names))
                return memory

    def use_packed(self, packing: Packing, memory: Any) -> None:
        """From now on runs take an input as it was packed in that memory, which stays with them."""
        self._launch, self._packed = self._declared.packed(packing), {packing.region: memory}
        self._forget_runs()

    def with_scalars(self, scalars: Sequence[Any]) -> Loaded:
        """The same kernel with other values for the problem's scalars.

        Args:
            scalars: NumPy's numbers of the dtypes that the problem declares, in its order.
        """
        if tuple(scalars) == self._scalars:
            return self
        other = copy.copy(self)
        other._scalars = tuple(scalars)
        other._forget_runs()
        return other

    def run(self, *arrays: Any) -> None:
        """Queues a run on the current stream; the GPU must be the current device.

        Args:
            arrays: CuPy arrays in the order of the problem's tensors. Their shapes do not matter if the
                elements lie as the problem's layout requires.
        """
        self.run_at(cupy.cuda.get_current_stream().ptr, *(array.data.ptr for array in arrays))

    def run_at(self, stream: int, *addresses: int) -> None:
        """Queues a run on memory at these addresses, on the stream with this handle."""
        if runtime.getDevice() != self._index:
            with cupy.cuda.Device(self._index):
                return self.run_at(stream, *addresses)
        run = self._run_of_all or _RUNS.get((self._token, _stream_name(stream))) or self._run_for(stream)
        for note in NOTED:
            note(run, stream, addresses)
        return run(stream, *addresses)

    def _run_for(self, stream: int) -> PreparedRun:
        """Prepares a run for a stream, and keeps it."""
        own_module, captured = self._launch.pieces is not None, _is_capturing(stream)
        with _beside_capture() if captured else _on_stream(stream):
            module = load_module(self._code) if own_module else self._module
            run = self._prepared(module, self._launch, self._packed)
        run.bytes += len(self._code) + CONSTANT_BYTES if own_module else 0
        if run.bytes:
            _keep((self._token, _stream_name(stream)), run, self._kept_bytes)
        else:
            self._run_of_all = run
        if captured:
            _OF_GRAPHS.append(run)
        return run

    def _prepared(self, module: Any, launch: Launch, elsewhere: Mapping[str, Any]) -> PreparedRun:
        given = {name: memory.data.ptr for name, memory in elsewhere.items()}
        rendered = replace(self._rendered, launch=launch)
        return PreparedRun(rendered, module, self._problem, self._scalars, given)
