"""Binds a CUDA kernel to its arrays. A run queues its launch and the copies around it on the current stream."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
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
    Launch,
    Packing,
    Pieces,
    Step,
    Workspace,
    copy_rows_grid,
    copy_rows_source,
)
from tuner.declare.problem import Problem
from tuner.devices.cuda.nvrtc import compile_cubin, target_architecture
from tuner.devices.cuda.tensor_maps import maps_of
from tuner.devices.protocol import Arrays, LaunchFailed
from tuner.results.measurement import memory_reason

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


class LaunchConfig(ctypes.Structure):
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
    pattern = LaunchConfig(grid, block, shared_bytes, None, ctypes.pointer(_EARLY), 1)

    def launched(arguments: Sequence[Any], *stream: Any) -> None:
        # Threads queue at the same time on streams of their own, so each call has its own memory.
        config = LaunchConfig.from_buffer_copy(pattern)
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


DEVICE_TO_DEVICE = runtime.memcpyDeviceToDevice
#: A padded output and a workspace start full of NaN, so that elements that are never written show up.
POISON = 0xFF
#: Exceptions that CuPy raises if the driver refuses.
DRIVER_ERRORS: tuple[type[Exception], ...] = (runtime.CUDARuntimeError, driver.CUDADriverError)
#: A null pointer as an argument.
NULL = numpy.uint64(0)
#: Something that a run queues.
Queued = Callable[[], None]
#: Modules that a worker keeps loaded: all of a survey's.
KEPT_MODULES = 1 << 14


class LoadedKernel:
    """A kernel bound to its arrays; calling it queues one run.

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
            module, function = function_of(rendered, code, _kept(code))
            threads, shared = math.prod(launch.block), launch.shared_bytes
            blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared)
            self.occupancy = float(blocks * threads / device.max_threads_per_sm)
            self._steps = steps_of(module, function, launch, arrays)
        except MemoryError as error:
            # Whatever holds the memory ends with the worker: a context keeps memory that a kernel's stack once
            # took.
            raise LaunchFailed(f"cannot be loaded: {memory_reason(error)}", device_unwell=True) from error
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be loaded: {error}") from error

    def __call__(self) -> None:
        """Queues one run."""
        try:
            for step in self._steps:
                step()
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be launched: {error}", device_unwell=True) from error


def _module(code: bytes) -> Any:
    """A cubin as the driver has it."""
    module = cupy.cuda.function.Module()
    module.load(code)
    return module


#: Modules of a worker, which has one stream: a survey comes back to a config at hundreds of problems.
_kept = functools.lru_cache(maxsize=KEPT_MODULES)(_module)


def function_of(rendered: Rendered, code: bytes, module: Any = None) -> tuple[Any, Any]:
    """Returns CuPy's module of a cubin and its kernel, with the shared memory that it needs allowed.

    Args:
        rendered: The kernel.
        code: The cubin.
        module: One that is loaded already. Runs on several streams need one each: its ``__constant__`` arrays
            are written by each run.
    """
    module = _module(code) if module is None else module
    launch = rendered.launch
    return module, _with_shared(module, rendered.entry, launch.shared_bytes if launch else 0)


def _with_shared(module: Any, entry: str, shared_bytes: int) -> Any:
    """A function of a module, allowed the dynamic shared memory that it asks for."""
    function = module.get_function(entry)
    if shared_bytes > UNASKED_SHARED_BYTES:
        wanted = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(function.ptr, wanted, shared_bytes)
    return function


class Series:
    """The launches of a run that is several, ready but for the memory that they are given."""

    def __init__(
        self, module: Any, launch: Launch, problem: Problem, packing: Packing | None = None, alone: bool = False
    ) -> None:
        """Takes the steps' functions from a loaded module.

        Args:
            module: CuPy's.
            launch: Has the steps.
            problem: Names tensors and scalars.
            packing: The input that is packed in memory of its own, which a run is given last; None for none.
            alone: True to pack that input, and no more.
        """
        steps = [step for step in launch.steps if not alone or (packing and step.entry == packing.step)]
        self._launches = [
            (
                # What comes before the first one is another run: it may be of any kind.
                (early if step.early and number > 0 else ordinary)(
                    _with_shared(module, step.entry, step.shared_bytes),
                    three(step.grid),
                    three(step.block),
                    step.shared_bytes,
                ),
                _places(step, launch, problem, packing, alone),
            )
            for number, step in enumerate(steps)
        ]

    def queue(self, given: Sequence[Any], *stream: Any) -> None:
        """Queues a run.

        Args:
            given: Tensors, scalars, regions of the workspace, a null pointer and maps, as `Launch.names` has
                them.
            stream: On this one; on the current one unless given.
        """
        for launched, places in self._launches:
            launched(tuple([given[place] for place in places]), *stream)


def _places(step: Step, launch: Launch, problem: Problem, packing: Packing | None, alone: bool) -> list[int]:
    """Where a step's arguments stand among what a run is given."""
    names = launch.names(problem)
    place = {name: at for at, name in enumerate(names)}
    null = place[""]
    if packing is not None:
        place[packing.region] = len(names)
        if alone:
            others = [each for each in launch.packings if each.tensor != packing.tensor]
            hidden = [*(each.tensor for each in others), *(each.region for each in others), launch.counter]
        else:
            hidden = [packing.tensor] if step.entry == packing.step else []
        place |= dict.fromkeys(hidden, null)
    return [place[name] for name in step.arguments]


def regions_of(memory: Any, launch: Launch) -> list[Any]:
    """The parts of a workspace that steps are given, then the counter and a null pointer."""
    parts = (memory[first:] for _, first in (launch.workspace.regions if launch.workspace else ()))
    return [*parts, counter(cupy.cuda.runtime.getDevice()) if launch.counter else NULL, NULL]


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


def steps_of(
    module: Any, function: Any, launch: Launch, arrays: Arrays, made: dict[str, Any] | None = None
) -> list[Queued]:
    """What one run queues, in order.

    Args:
        module: CuPy's module of the kernel, with its ``__constant__`` arrays.
        function: The kernel.
        launch: Geometry, padded tensors, pieces, workspace.
        arrays: The arrays on which the kernel computes.
        made: Larger arrays by tensor, and the workspace as ``""``, from an earlier run on the same stream.
            Missing ones are made and added.
    """
    arguments, made = list(arrays.arguments()), {} if made is None else made
    before: list[Queued] = []
    after: list[Queued] = []
    wanted = {each.tensor: tuple(each.shape) for each in launch.padded}
    for number, tensor in enumerate(arrays.problem.tensors):
        array = arguments[number]
        if wanted.get(tensor.name, array.shape) == array.shape:
            continue
        if tensor.name not in made:
            made[tensor.name] = cupy.zeros(wanted[tensor.name], dtype=tensor.dtype)
            if tensor.output:
                made[tensor.name].view(cupy.uint8).fill(POISON)
        larger = arguments[number] = made[tensor.name]
        if tensor.output:
            after.append(_copying(array, larger))
        else:
            before.append(_copying(larger, array))
    if launch.workspace is not None and "" not in made:
        made[""] = workspace(launch.workspace)
    if launch.steps:
        series = Series(module, launch, arrays.problem)
        maps = maps_of(launch, arrays.problem, arguments)
        given = [*arguments, *regions_of(made.get(""), launch), *maps]
        return [*before, partial(series.queue, given), *after]
    if launch.workspace is not None:
        arguments.append(made[""])
    grid, block, shared = three(launch.grid), three(launch.block), launch.shared_bytes

    def launched(*more: Any) -> None:
        function(grid, block, (*arguments, *more), shared)

    if launch.pieces is None:
        return [*before, launched, *after]
    return [*before, *_in_pieces(module, launch.pieces, arrays, launched), *after]


def _copying(target: Any, source: Any) -> Queued:
    """Copies the rows and columns that two arrays have in common."""
    rows, columns = (min(sizes) for sizes in zip(target.shape, source.shape, strict=True))
    function = _copy_rows(cupy.cuda.runtime.getDevice(), target.itemsize)
    grid = (*copy_rows_grid(rows, columns), 1)
    arguments = (
        target, numpy.int64(target.strides[0] // target.itemsize),
        source, numpy.int64(source.strides[0] // source.itemsize), numpy.int64(rows), numpy.int64(columns),
    )  # fmt: skip
    return partial(function, grid, (COPY_THREADS, 1, 1), arguments, 0)


@functools.cache
def _copy_rows(device: int, element_bytes: int) -> Any:
    """Returns the kernel that copies rows, compiled once for each device."""
    capability = int(cupy.cuda.Device(device).compute_capability)
    module = cupy.cuda.function.Module()
    module.load(compile_cubin(copy_rows_source(element_bytes), target_architecture(capability))[0])
    return module.get_function("copy_rows")


def workspace(wanted: Workspace) -> Any:
    """Makes a workspace: zeros, then bytes that read as NaN, so that reads before a write show up."""
    memory = cupy.full(wanted.bytes, POISON, dtype=cupy.uint8)
    memory[: wanted.zeroed_bytes] = 0
    return memory


def _in_pieces(module: Any, pieces: Pieces, arrays: Arrays, launch: Callable[..., None]) -> list[Queued]:
    """For each piece a copy to constant memory, then a launch that is told how many elements came before."""
    symbol, source = int(module.get_global_var(pieces.symbol)), arrays.arrays[pieces.tensor]

    def copy(first: int) -> None:
        address = source.data.ptr + first * source.itemsize
        size = min(pieces.elements, source.size - first) * source.itemsize
        runtime.memcpyAsync(symbol, address, size, DEVICE_TO_DEVICE, cupy.cuda.get_current_stream().ptr)

    steps: list[Queued] = []
    for first in range(0, source.size, pieces.elements):
        steps += [partial(copy, first), partial(launch, numpy.int32(first))]
    return steps


def three(sizes: Sequence[int]) -> tuple[int, int, int]:
    """Completes blocks or threads to x, y and z."""
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z
