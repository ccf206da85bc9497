"""Queues all launches of a run by one native call: it writes addresses and a stream into prepared memory.

Launch configurations, arguments and templates of tensor maps are made once. A small function that LLVM compiles
in a few milliseconds walks them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.declare.launch import ALIGNMENT_BYTES, MAP_TYPES, PROMOTIONS, SWIZZLES, TensorMap
from tuner.declare.problem import DTYPE_BYTES, Tensor
from tuner.devices.protocol import LaunchFailed

#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`` (cuda.h).
PROGRAMMATIC_STREAM_SERIALIZATION = 6
#: Bytes of a line of L2.
LINE_BYTES = 128
#: Size and alignment of a ``CUtensorMap``.
MAP_BYTES, MAP_ALIGNMENT_BYTES = 128, 64


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


@dataclass(frozen=True)
class TensorAddress:
    """An argument that comes with each call: where a tensor lies.

    Attributes:
        tensor: Its place among the call's addresses.
        offset_bytes: From its start.
    """

    tensor: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class MapTemplate:
    """An argument that is encoded with each call: a tensor map (``cuTensorMapEncodeTiled``).

    Attributes:
        wanted: Its box and how it is copied.
        tensor: What it maps, dense and row-major.
        address: Where that lies: a tensor of the call, or memory at a fixed address.
    """

    wanted: TensorMap
    tensor: Tensor
    address: TensorAddress | int

    def __post_init__(self) -> None:
        if any(pitch % ALIGNMENT_BYTES for pitch in self.pitches_bytes):
            raise LaunchFailed(
                f"the rows of a mapped tensor begin at multiples of {ALIGNMENT_BYTES} bytes; "
                f"{self.tensor.name} of shape {self.tensor.shape} has rows of {self.pitches_bytes} bytes"
            )

    @property
    def pitches_bytes(self) -> tuple[int, ...]:
        """Bytes between neighbours along each dim but the last, which is contiguous; the last but one first."""
        shape, element_bytes = self.tensor.shape[::-1], DTYPE_BYTES[self.tensor.dtype]
        return tuple(element_bytes * math.prod(shape[: place + 1]) for place in range(len(shape) - 1))

    @property
    def promotion(self) -> int:
        """``CUtensorMapL2promotion``: where rows begin amid lines of L2, a miss brings in one line."""
        whole_lines = all(pitch % LINE_BYTES == 0 for pitch in self.pitches_bytes)
        return PROMOTIONS[self.wanted.promotion if whole_lines else LINE_BYTES]


#: An argument of a kernel: what comes with a call, or the bytes of a value that stays.
Argument = TensorAddress | MapTemplate | bytes


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a kernel.

    Attributes:
        function: The driver's handle.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        arguments: In order.
        early: True if it may start while the launch before it ends.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]
    early: bool = False


@dataclass(frozen=True)
class DeviceCopy:
    """A copy within the device's memory.

    Attributes:
        target: Address.
        source: What is copied.
        size_bytes: How much.
    """

    target: int
    source: TensorAddress
    size_bytes: int


@dataclass(frozen=True)
class LibraryCall:
    """A call of a library's function that returns a status, with the stream as its 16th argument.

    Attributes:
        function: Address.
        arguments: Numbers, where tensors lie, and, in tuples, pointers to words that say where.
        memory: What it reads beside the tensors.
    """

    function: int
    arguments: tuple[int | TensorAddress | tuple[TensorAddress], ...]
    memory: Any = None


#: A step of a run.
NativeStep = KernelLaunch | DeviceCopy | LibraryCall
#: Are told of runs that are queued at addresses: run, stream, addresses.
NOTED: list[Callable[[Any, int, tuple[int, ...]], None]] = []
#: Functions of the driver, in the order in which the native code knows them.
FUNCTIONS = ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuMemcpyDtoDAsync_v2")


@functools.cache
def driver_functions() -> tuple[int, ...]:
    """Addresses of `FUNCTIONS`.

    Raises:
        OSError: There is no driver.
        AttributeError: It is older than CUDA 12.
    """
    library = ctypes.CDLL("libcuda.so.1")
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


#: Kinds of records, words of one and of a call's arguments. Writes of addresses come first, then maps.
WRITE, ENCODE, LAUNCH, COPY, CALL, END = range(6)
RECORD_WORDS, CALL_WORDS = 11, 15


class NativeRun:
    """The launches of a run, ready but for addresses and stream. Threads may call it at the same time."""

    def __init__(self, steps: Sequence[NativeStep], tensors: int, functions: Sequence[int] = ()) -> None:
        """Lays out the memory that the launches are queued from.

        Args:
            steps: In order.
            tensors: Addresses that come with each call.
            functions: Addresses of `FUNCTIONS`; the installed driver's unless given.
        """
        self._lock = threading.Lock()
        self._kept: list[Any] = []  # memory that the native code reads
        self._addresses = self._memory((ctypes.c_uint64 * max(tensors, 1))())
        self._writes: list[tuple[int, ...]] = []
        self._maps: list[tuple[int, ...]] = []
        launches = [self._record(step) for step in steps]
        words = [ctypes.addressof(self._addresses), *(functions or driver_functions())]
        for record in (*self._writes, *self._maps, *launches, (END,)):
            words += [*record, *[0] * (RECORD_WORDS - len(record))]
        #: Where native code finds what to queue.
        self.program = self._words(words)
        self._queue = native_queue()

    def __call__(self, stream: int, *addresses: int) -> int:
        """Queues a run.

        Args:
            stream: Handle of a stream of the current device.
            addresses: Of the tensors.

        Returns:
            The driver's status, 0 for success.
        """
        with self._lock:
            self._addresses[:] = addresses
            return self._queue(self.program, stream)

    def _memory(self, made: Any) -> Any:
        self._kept.append(made)
        return made

    def _words(self, words: Sequence[int]) -> int:
        """Address of new memory with some 64-bit words."""
        return ctypes.addressof(self._memory((ctypes.c_uint64 * max(len(words), 1))(*words)))

    def _record(self, step: NativeStep) -> tuple[int, ...]:
        if isinstance(step, LibraryCall):
            words = self._memory((ctypes.c_uint64 * CALL_WORDS)())
            for place, word in enumerate(step.arguments):
                if isinstance(word, TensorAddress):
                    to = ctypes.addressof(words) + 8 * place
                    self._writes.append((WRITE, to, word.tensor, word.offset_bytes))
                else:
                    words[place] = self._argument(*word) if isinstance(word, tuple) else word
            self._memory(step.memory)
            return CALL, step.function, ctypes.addressof(words)
        if isinstance(step, DeviceCopy):
            return COPY, step.target, self._argument(step.source), step.size_bytes
        attributes = ctypes.pointer(_EARLY) if step.early else None
        config = LaunchConfig(step.grid, step.block, step.shared_bytes, None, attributes, int(step.early))
        arguments = self._words([self._argument(argument) for argument in step.arguments])
        return LAUNCH, ctypes.addressof(self._memory(config)), step.function, arguments

    def _argument(self, argument: Argument) -> int:
        """Where the driver finds an argument."""
        if isinstance(argument, bytes):
            return ctypes.addressof(self._memory(ctypes.create_string_buffer(argument, max(len(argument), 8))))
        if isinstance(argument, TensorAddress):
            value = self._words([0])
            self._writes.append((WRITE, value, argument.tensor, argument.offset_bytes))
            return value
        memory = self._memory(ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT_BYTES))
        at = -(-ctypes.addressof(memory) // MAP_ALIGNMENT_BYTES) * MAP_ALIGNMENT_BYTES
        to, tensor, wanted = argument.address, argument.tensor, argument.wanted
        address = self._words([to]) if isinstance(to, int) else self._argument(to)
        rank = len(tensor.shape)
        boxes = (ctypes.c_uint32 * (2 * rank))(*wanted.box[::-1], *[1] * rank)
        box = ctypes.addressof(self._memory(boxes))
        sizes, pitches = self._words(tensor.shape[::-1]), self._words(argument.pitches_bytes)
        self._maps.append((
            ENCODE, at, MAP_TYPES[tensor.dtype][1], rank, address, sizes, pitches, box, box + 4 * rank,
            SWIZZLES[wanted.swizzle][1], argument.promotion,
        ))  # fmt: skip
        return at


@functools.cache
def native_queue() -> Callable[[int, int], int]:
    """Compiles what queues a run: writes addresses, encodes maps, and calls the driver for each step.

    Returns:
        Takes the address of a program and a stream; returns the driver's status. It does not hold the GIL.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(Path(__file__).with_name("queue.ll").read_text(encoding="utf-8"))
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64)
    queue: Any = kind(engine.get_function_address("queue"))
    queue.engine = engine  # it owns the machine code
    return queue  # type: ignore[no-any-return]
