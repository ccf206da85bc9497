"""Runs of CUDA kernels: the launches of a run, and the copies around them, queued on a stream.

A run takes addresses of tensors, so a worker's arrays and those of any caller's library are alike to it.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from struct import pack
from types import MappingProxyType
from typing import Any

import cupy
from cupy.cuda import runtime
from cupy_backends.cuda.api import driver

from tuner.declare import launch as declared
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Step, Workspace, copy_rows_grid, copy_rows_source
from tuner.declare.problem import DTYPE_BYTES, Problem, Tensor
from tuner.devices.cuda.native import Argument, DeviceCopy, KernelLaunch, MapTemplate, NativeRun, TensorAddress
from tuner.devices.cuda.nvrtc import compiled_code, target_architecture
from tuner.devices.protocol import Arrays, LaunchFailed
from tuner.results.measurement import memory_reason

#: The first driver that captures such launches into graphs, as cuDriverGetVersion tells it: CUDA 12.3.
LEAST_VERSION = 12030
#: Names the whole workspace among a launch's arguments.
WORKSPACE = "workspace"
#: A padded output and a workspace start full of NaN, so that elements that are never written show up.
POISON = 0xFF
#: Exceptions that CuPy raises if the driver refuses.
DRIVER_ERRORS: tuple[type[Exception], ...] = (runtime.CUDARuntimeError, driver.CUDADriverError)
#: Modules that a worker keeps loaded: all of a survey's.
KEPT_MODULES = 1 << 14


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
    if shared_bytes > declared.UNASKED_SHARED_BYTES:
        wanted = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        driver.funcSetAttribute(function.ptr, wanted, shared_bytes)
    return function


_LOADING = threading.Lock()


def helper(source: str, entry: str) -> Any:
    """A kernel of our own on the current GPU, compiled once for each machine, loaded once for all threads.

    Runs keep its handle alone: the module of a second load would be unloaded under them.
    """
    with _LOADING:
        return _helper(source, entry, runtime.getDevice())


@functools.cache
def _helper(source: str, entry: str, device: int) -> Any:
    capability = int(cupy.cuda.Device(device).compute_capability)
    rendered = Rendered(source, entry, "cuda")
    return load_module(compiled_code(rendered, target_architecture(capability))).get_function(entry)


class PreparedRun:
    """A kernel's run on one stream, ready but for the addresses of its tensors.

    Memory beside the tensors is made here. Runs on several streams need one each, unless they hold no memory;
    with pieces, also a module each, because its ``__constant__`` array is written by every run.

    Attributes:
        bytes: Size of the memory that it holds.
    """

    def __init__(
        self, rendered: Rendered, module: Any, problem: Problem, scalars: Sequence[Any],
        given: Mapping[str, int] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """Takes the functions from a module, and makes workspace and larger tensors.

        Args:
            rendered: The kernel.
            module: CuPy's, on the current GPU.
            problem: Names tensors and scalars.
            scalars: NumPy's numbers of the dtypes that the problem declares.
            given: Region of the workspace -> address, for those that lie elsewhere.

        Raises:
            LaunchFailed: Rows of a mapped tensor do not begin at multiples of 16 bytes.
        """
        launch = rendered.launch
        assert launch is not None, "a CUDA kernel has a launch"
        self._module, self._launch, self._problem = module, launch, problem
        shapes = {padded.tensor: tuple(padded.shape) for padded in launch.padded}
        self._larger = {
            tensor.name: _larger(tensor, shapes[tensor.name])
            for tensor in problem.tensors
            if shapes.get(tensor.name, tensor.shape) != tensor.shape
        }
        self._places = {tensor.name: TensorAddress(place) for place, tensor in enumerate(problem.tensors)}
        self._memory: Any = None if launch.workspace is None else workspace(launch.workspace)
        self.bytes = sum(array.nbytes for array in (*self._larger.values(), self._memory) if array is not None)
        names = (*self._places, *(scalar.name for scalar in problem.scalars))
        names = (*names, WORKSPACE) if launch.workspace else names
        whole = Step(rendered.entry, launch.grid, launch.block, launch.shared_bytes, names)
        elsewhere = {name: pointer(address) for name, address in given.items()}
        kernels = self._kernels(launch.steps or (whole,), self._named(scalars) | elsewhere)
        copied = [tensor for tensor in problem.tensors if tensor.name in self._larger]
        before = self._copies([tensor for tensor in copied if not tensor.output])
        after = self._copies([tensor for tensor in copied if tensor.output])
        self._steps = [*before, *self._in_pieces(kernels), *after]
        self._native = NativeRun(self._steps, len(problem.tensors))

    def again(self) -> NativeRun:
        """The same run, for native code to write addresses into."""
        return NativeRun(self._steps, len(self._problem.tensors))

    def __call__(self, stream: int, *addresses: int) -> None:
        """Queues a run.

        Args:
            stream: Handle of a stream of the current GPU.
            addresses: Of the problem's tensors, which are dense and lie as its layout says.
        """
        status = self._native(stream, *addresses)
        if status:
            driver.check_status(status)

    def _named(self, scalars: Sequence[Any]) -> dict[str, Argument]:
        """What steps' arguments name, the whole workspace, and a null pointer."""
        launch, problem = self._launch, self._problem
        named: dict[str, Argument] = {"": pointer(0), **self._places}
        named |= {name: pointer(larger.data.ptr) for name, larger in self._larger.items()}
        named |= {scalar.name: value.tobytes() for scalar, value in zip(problem.scalars, scalars, strict=True)}
        if launch.workspace is not None:
            first = self._memory.data.ptr
            named |= {
                name: pointer(first + offset) for name, offset in (*launch.workspace.regions, (WORKSPACE, 0))
            }
        if launch.counter:
            named[launch.counter] = pointer(counter(runtime.getDevice()).data.ptr)
        for wanted in launch.maps:
            place, larger = self._places[wanted.tensor], self._larger.get(wanted.tensor)
            tensor = problem.tensors[place.tensor]
            named[wanted.name] = (
                MapTemplate(wanted, tensor, place)
                if larger is None
                else MapTemplate(wanted, replace(tensor, shape=larger.shape), larger.data.ptr)
            )
        return named

    def _kernels(self, steps: Sequence[Step], named: Mapping[str, Argument]) -> list[KernelLaunch]:
        launches: list[KernelLaunch] = []
        for step in steps:
            # What comes before the first step is another run: it may be of any kind.
            early = step.early and bool(launches) and can_start_early()
            function = function_of(self._module, step.entry, step.shared_bytes)
            arguments = tuple(named[name] for name in step.arguments)
            geometry = three(step.grid), three(step.block), step.shared_bytes
            launches.append(KernelLaunch(function.ptr, *geometry, arguments, early))
        return launches

    def _in_pieces(self, launches: list[KernelLaunch]) -> Iterator[KernelLaunch | DeviceCopy]:
        """For each piece a copy to constant memory, then a launch that is told the elements before it."""
        pieces = self._launch.pieces
        if pieces is None:
            yield from launches
            return
        (launch,), place = launches, self._places[pieces.tensor].tensor
        tensor = self._problem.tensors[place]
        count, element_bytes = math.prod(tensor.shape), DTYPE_BYTES[tensor.dtype]
        symbol = int(self._module.get_global_var(pieces.symbol))
        for first in range(0, count, pieces.elements):
            size = min(pieces.elements, count - first) * element_bytes
            yield DeviceCopy(symbol, TensorAddress(place, first * element_bytes), size)
            yield replace(launch, arguments=(*launch.arguments, pack("<i", first)))

    def _copies(self, tensors: Sequence[Tensor]) -> Iterator[KernelLaunch]:
        """Copies inputs' elements to where the kernel reads them, or outputs' to where they belong.

        A launch has two copies where their elements have one size: the host needs 5 us for each.
        """
        for size, group in groupby(tensors, lambda tensor: int(self._larger[tensor.name].itemsize)):
            copies = [self._copy(tensor) for tensor in group]
            function = helper(copy_rows_source(size), "copied")
            for (grid, arguments), (other, more) in zip_longest(copies[::2], copies[1::2], fillvalue=NO_COPY):
                blocks = max(grid[0], other[0]), max(grid[1], other[1]), 2 if more != NO_COPY[1] else 1
                block = declared.COPY_THREADS, 1, 1
                yield KernelLaunch(function.ptr, blocks, block, 0, (*arguments, *more))

    def _copy(self, tensor: Tensor) -> tuple[tuple[int, int], tuple[Argument, ...]]:
        """Blocks of a copy, and its arguments."""
        larger = self._larger[tensor.name]
        there: tuple[Argument, Any] = pointer(larger.data.ptr), larger.shape
        here: tuple[Argument, Any] = self._places[tensor.name], tensor.shape
        (to, to_shape), (source, source_shape) = (here, there) if tensor.output else (there, here)
        rows, columns = (min(sizes) for sizes in zip(to_shape, source_shape, strict=True))
        pitch, *sizes = (pack("<q", size) for size in (to_shape[1], source_shape[1], rows, columns))
        return copy_rows_grid(rows, columns), (to, pitch, source, *sizes)


def pointer(address: int) -> bytes:
    """An address as a kernel's argument."""
    return address.to_bytes(8, "little")


#: Blocks and arguments of a second copy that there is not.
NO_COPY: tuple[tuple[int, int], tuple[Argument, ...]] = (1, 1), (pointer(0),) * 6


@functools.cache
def can_start_early() -> bool:
    """Whether the driver lets a launch start while the one before it ends, in graphs, too."""
    return int(runtime.driverGetVersion()) >= LEAST_VERSION


def _larger(tensor: Tensor, shape: tuple[int, ...]) -> Any:
    """Memory of a padded tensor: zeros beyond the problem's own elements, poison where a kernel writes."""
    array = cupy.zeros(shape, dtype=f"uint{8 * DTYPE_BYTES[tensor.dtype]}")
    if tensor.output:
        array.view(cupy.uint8).fill(POISON)
    return array


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
            module, threads, shared_bytes = _kept_module(code), math.prod(launch.block), launch.shared_bytes
            function = function_of(module, rendered.entry, shared_bytes)
            blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, shared_bytes)
            self.occupancy = float(blocks * threads / device.max_threads_per_sm)
            tensors = arrays.problem.tensors
            self._run = PreparedRun(rendered, module, arrays.problem, arrays.arguments()[len(tensors) :])
        except MemoryError as error:
            # Whatever holds the memory ends with the worker: a context keeps memory that a kernel's stack once
            # took.
            raise LaunchFailed(f"cannot be loaded: {memory_reason(error)}", device_unwell=True) from error
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be loaded: {error}") from error
        self._arrays = [arrays.arrays[tensor.name] for tensor in tensors]
        self._addresses = [array.data.ptr for array in self._arrays]

    def __call__(self) -> None:
        """Queues one run."""
        try:
            self._run(cupy.cuda.get_current_stream().ptr, *self._addresses)
        except DRIVER_ERRORS as error:
            raise LaunchFailed(f"cannot be launched: {error}", device_unwell=True) from error
