"""Runs of CUDA kernels: the launches of a run, and the copies around them, queued on a stream.

A run takes addresses of tensors, so a worker's arrays and those of any caller's library are alike to it.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cupy
import numpy
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import (
    COPY_THREADS,
    UNASKED_SHARED_BYTES,
    Packing,
    Step,
    Workspace,
    copy_rows_grid,
    copy_rows_source,
)
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.devices.cuda.nvrtc import compiled_code, target_architecture
from tuner.devices.cuda.tensor_maps import encoded
from tuner.devices.protocol import Arrays, LaunchFailed
from tuner.results.measurement import memory_reason

#: Queues a launch of a kernel: takes its arguments (addresses, NumPy's numbers, tensor maps) and a stream.
Launcher = Callable[[Sequence[Any], Any], None]
#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION``.
PROGRAMMATIC_STREAM_SERIALIZATION = 6
#: The first driver that captures such launches into graphs, as cuDriverGetVersion tells it: CUDA 12.3.
LEAST_VERSION = 12030
#: A padded output and a workspace start full of NaN, so that elements that are never written show up.
POISON = 0xFF
#: Exceptions that CuPy raises if the driver refuses.
DRIVER_ERRORS: tuple[type[Exception], ...] = (runtime.CUDARuntimeError, driver.CUDADriverError)
#: Modules that a worker keeps loaded: all of a survey's.
KEPT_MODULES = 1 << 14


class Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: its value is a union of 64 bytes, aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


#: The driver only reads it, so all launches share it.
_EARLY = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, (1,))


def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _launch_early() -> Any:
    """``cuLaunchKernelEx`` of the driver; None if the driver is older than CUDA 12.3."""
    try:
        library, version = _library(), ctypes.c_int()
        launch = library.cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    if library.cuDriverGetVersion(ctypes.byref(version)) or version.value < LEAST_VERSION:
        return None
    launch.argtypes = [ctypes.c_void_p] * 4
    return launch


def launcher(function: Any, step: Step, early: bool = False) -> Launcher:
    """Launches a function with a step's geometry.

    Args:
        function: CuPy's.
        step: Grid, block and shared memory.
        early: True if it may start while the launch before it ends. It then waits itself before it reads or
            writes what earlier launches touch. Where the driver is too old, it starts as any other.
    """
    grid, block, shared_bytes = three(step.grid), three(step.block), step.shared_bytes
    launch = _launch_early() if early else None
    if launch is None:
        return lambda arguments, stream: function(grid, block, tuple(arguments), shared_bytes, stream)
    pattern = LaunchConfig(grid, block, shared_bytes, None, ctypes.pointer(_EARLY), 1)

    def launched(arguments: Sequence[Any], stream: Any) -> None:
        # Threads queue at the same time on streams of their own, so each call has its own memory.
        config = LaunchConfig.from_buffer_copy(pattern)
        config.stream = stream.ptr
        values, held = _parameters(arguments)
        status = launch(ctypes.byref(config), function.ptr, values, None)
        del held
        if status:
            driver.check_status(status)

    return launched


def _parameters(arguments: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Where the driver finds the arguments: their addresses, and what must live until the launch is queued."""
    count = len(arguments)
    held: list[Any] = []
    words = (ctypes.c_uint64 * (2 * count))()  # addresses of all arguments, then pointers
    own = ctypes.addressof(words)
    for place, argument in enumerate(arguments):
        if isinstance(argument, int):
            words[count + place] = argument
            words[place] = own + 8 * (count + place)
        else:
            value: Any = numpy.asarray(argument)
            held.append(ctypes.c_char.from_buffer(value))  # NumPy takes four times as long to tell its address
            words[place] = ctypes.addressof(held[-1])
    return words, held


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Completes blocks or threads to x, y and z."""
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z


def load_module(code: bytes) -> Any:
    """A cubin as CuPy's module."""
    module = cupy.cuda.function.Module()
    module.load(code)
    return module


#: Modules of a worker, which has one stream: a survey comes back to a config at hundreds of problems.
_kept_module = functools.lru_cache(maxsize=KEPT_MODULES)(load_module)


def function_of(module: Any, entry: str, shared_bytes: int = 0) -> Any:
    """A function of a module, allowed the dynamic shared memory that it asks for."""
    function = module.get_function(entry)
    if shared_bytes > UNASKED_SHARED_BYTES:
        wanted = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(function.ptr, wanted, shared_bytes)
    return function


def helper(source: str, entry: str) -> Any:
    """A kernel of our own on the current GPU, compiled once for each machine."""
    return _helper(source, entry, runtime.getDevice())


@functools.cache
def _helper(source: str, entry: str, device: int) -> Any:
    capability = int(cupy.cuda.Device(device).compute_capability)
    rendered = Rendered(source, entry, "cuda")
    return load_module(compiled_code(rendered, target_architecture(capability))).get_function(entry)


class PreparedRun:
    """A kernel's run on one stream, ready but for the addresses of its tensors.

    Its launches are given tensors, scalars, a workspace or its regions, a counter, a null pointer and tensor
    maps, by place (`Launch.names`). Memory beside the tensors is made here. Runs on several streams need one
    each; with pieces, also a module each, because its ``__constant__`` array is written by every run.

    Attributes:
        bytes: Size of the memory that it holds.
    """

    def __init__(
        self,
        rendered: Rendered,
        module: Any,
        problem: Problem,
        packing: Packing | None = None,
        alone: bool = False,
    ) -> None:
        """Takes the functions from a module, and makes workspace and larger tensors.

        Args:
            rendered: The kernel.
            module: CuPy's, on the current GPU.
            problem: Names tensors and scalars.
            packing: The input that is packed in memory of its own, which a run is given last; None for none.
            alone: True to pack that input, and no more.
        """
        launch = rendered.launch
        assert launch is not None, "a CUDA kernel has a launch"
        self._launch, self._packing, self._alone = launch, packing, alone
        shapes = {padded.tensor: tuple(padded.shape) for padded in launch.padded}
        self._tensors = [replace(each, shape=shapes.get(each.name, each.shape)) for each in problem.tensors]
        self._larger = {
            place: _LargerTensor(tensor, larger.shape)
            for place, (tensor, larger) in enumerate(zip(problem.tensors, self._tensors, strict=True))
            if tensor.shape != larger.shape
        }
        self._memory = None if launch.workspace is None else workspace(launch.workspace)
        self.bytes = sum(each.array.nbytes for each in self._larger.values())
        self.bytes += launch.workspace.bytes if launch.workspace else 0
        self._own = self._own_addresses()
        whole = Step(rendered.entry, launch.grid, launch.block, launch.shared_bytes)
        steps = [
            step for step in launch.steps or (whole,) if not alone or (packing and step.entry == packing.step)
        ]
        places = self._places(problem) if launch.steps else lambda step: None  # a single launch is given all
        self._launches: list[tuple[Launcher, list[int] | None]] = [
            # What comes before the first step is another run: it may be of any kind.
            (
                launcher(function_of(module, step.entry, step.shared_bytes), step, step.early and number > 0),
                places(step),
            )
            for number, step in enumerate(steps)
        ]
        self._symbol = int(module.get_global_var(launch.pieces.symbol)) if launch.pieces else 0

    def _own_addresses(self) -> list[int]:
        """Regions of the workspace, the counter and a null pointer; or the workspace, if there are no steps."""
        first = 0 if self._memory is None else self._memory.data.ptr
        if not self._launch.steps:
            return [first] if first else []
        regions = self._launch.workspace.regions if self._launch.workspace else ()
        count = counter(runtime.getDevice()).data.ptr if self._launch.counter else 0
        return [*(first + offset for _, offset in regions), count, 0]

    def _places(self, problem: Problem) -> Callable[[Step], list[int]]:
        """Finds where a step's arguments stand among what a run is given."""
        launch, packing = self._launch, self._packing
        names = launch.names(problem)
        place = {name: number for number, name in enumerate(names)}
        if packing is None:
            return lambda step: [place[name] for name in step.arguments]
        hidden = {packing.tensor}
        if self._alone:
            others = [other for other in launch.packings if other.tensor != packing.tensor]
            hidden = {name for other in others for name in (other.tensor, other.region)} | {launch.counter}
        place[packing.region] = len(names)
        packs = place | dict.fromkeys(hidden, place[""])
        return lambda step: [(packs if step.entry == packing.step else place)[each] for each in step.arguments]

    def __call__(
        self, addresses: Sequence[int], scalars: Sequence[Any], stream: Any, packed: Sequence[int] = ()
    ) -> None:
        """Queues a run.

        Args:
            addresses: Of the problem's tensors, which are dense and lie as its layout says.
            scalars: NumPy's numbers of the dtypes that the problem declares.
            stream: Has the stream's handle as ``ptr``.
            packed: Address of the packed input, if there is one.
        """
        tensors = list(addresses)
        for place, larger in self._larger.items():
            tensors[place] = larger.array.data.ptr
            larger.copy_in(addresses[place], stream)
        maps = self._maps(tensors) if self._launch.maps else ()
        given = (*tensors, *scalars, *self._own, *maps, *packed)
        if self._launch.pieces is not None:
            self._queue_pieces(given, stream)
        else:
            for launch, places in self._launches:
                launch(given if places is None else [given[place] for place in places], stream)
        for place, larger in self._larger.items():
            larger.copy_out(addresses[place], stream)

    def _maps(self, addresses: Sequence[int]) -> list[Any]:
        known = {tensor.name: (tensor, at) for tensor, at in zip(self._tensors, addresses, strict=True)}
        return [encoded(each, *known[each.tensor]) for each in self._launch.maps]

    def _queue_pieces(self, given: Sequence[Any], stream: Any) -> None:
        """Per piece a copy to constant memory, then a launch that is told how many elements came before."""
        pieces, (launch, _) = self._launch.pieces, self._launches[0]
        assert pieces is not None
        place = [tensor.name for tensor in self._tensors].index(pieces.tensor)
        tensor = self._tensors[place]
        count, element_bytes = math.prod(tensor.shape), DTYPE_BYTES[tensor.dtype]
        for first in range(0, count, pieces.elements):
            size = min(pieces.elements, count - first) * element_bytes
            source = given[place] + first * element_bytes
            runtime.memcpyAsync(self._symbol, source, size, runtime.memcpyDeviceToDevice, stream.ptr)
            launch([*given, numpy.int32(first)], stream)


class _LargerTensor:
    """A padded tensor: zeros beyond the problem's own elements.

    Args:
        tensor: The problem's.
        shape: Rows and columns with padding.
    """

    def __init__(self, tensor: Any, shape: tuple[int, ...]) -> None:
        self._tensor = tensor
        self.array = cupy.zeros(shape, dtype=tensor.dtype)
        if tensor.output:
            self.array.view(cupy.uint8).fill(POISON)

    def copy_in(self, address: int, stream: Any) -> None:
        """Copies an input's elements to where the kernel reads them."""
        if not self._tensor.output:
            self._copy((self.array.data.ptr, self.array.shape), (address, self._tensor.shape), stream)

    def copy_out(self, address: int, stream: Any) -> None:
        """Copies an output's elements to where they belong."""
        if self._tensor.output:
            self._copy((address, self._tensor.shape), (self.array.data.ptr, self.array.shape), stream)

    def _copy(self, to: tuple[int, Any], source: tuple[int, Any], stream: Any) -> None:
        rows, columns = (min(sizes) for sizes in zip(to[1], source[1], strict=True))
        function = helper(copy_rows_source(self.array.itemsize), "copy_rows")
        long = numpy.int64
        arguments = (to[0], long(to[1][1]), source[0], long(source[1][1]), long(rows), long(columns))
        function((*copy_rows_grid(rows, columns), 1), (COPY_THREADS, 1, 1), arguments, 0, stream)


def workspace(wanted: Workspace) -> Any:
    """Makes a workspace: zeros, then bytes that read as NaN, so that reads before a write show up."""
    memory = cupy.full(wanted.bytes, POISON, dtype=cupy.uint8)
    memory[: wanted.zeroed_bytes] = 0
    return memory


#: GPU -> the word in which kernels count; it stays where it is, for CUDA graphs.
_COUNTERS: dict[int, Any] = {}


def counter(device: int) -> Any:
    """The 32-bit word of a GPU that kernels count in."""
    if device not in _COUNTERS:
        _COUNTERS[device] = cupy.zeros(1, dtype=cupy.uint32)
    return _COUNTERS[device]


def counted() -> int:
    """What kernels of this process have counted on all GPUs; waits for what is queued."""
    return sum(int(word[0]) for word in _COUNTERS.values())


class LoadedKernel:
    """A kernel bound to its arrays; calling it queues one run on the current stream.

    Attributes:
        occupancy: Share of a multiprocessor's threads that are resident while it runs.
    """

    def __init__(self, rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> None:
        """Loads a cubin.

        Raises:
            LaunchFailed: The driver refuses it, or there is not enough memory for it.
        """
        launch = rendered.launch
        assert launch is not None, "a CUDA kernel has a launch"
        try:
            module, threads = _kept_module(code), math.prod(launch.block)
            function = function_of(module, rendered.entry, launch.shared_bytes)
            blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
                function.ptr, threads, launch.shared_bytes
            )
            self.occupancy = float(blocks * threads / device.max_threads_per_sm)
            self._run = PreparedRun(rendered, module, arrays.problem)
        except MemoryError as error:
            # Whatever holds the memory ends with the worker: a context keeps memory that a kernel's stack once
            # took.
            raise LaunchFailed(f"cannot be loaded: {memory_reason(error)}", device_unwell=True) from error
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be loaded: {error}") from error
        self._tensors = [arrays.arrays[tensor.name] for tensor in arrays.problem.tensors]
        self._addresses = [tensor.data.ptr for tensor in self._tensors]
        self._scalars = arrays.arguments()[len(self._tensors) :]

    def __call__(self) -> None:
        """Queues one run."""
        try:
            self._run(self._addresses, self._scalars, cupy.cuda.get_current_stream())
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be launched: {error}", device_unwell=True) from error
