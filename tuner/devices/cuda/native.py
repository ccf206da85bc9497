"""Queues all launches of a run by one native call: it writes addresses and a stream into prepared memory.

Launch configurations, arguments and templates of tensor maps are made once. A small function that LLVM compiles
in a few milliseconds walks them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.launch import ALIGNMENT_BYTES, TensorMap
from tuner.declare.problem import DTYPE_BYTES, Tensor
from tuner.devices.protocol import LaunchFailed

#: ``CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`` (cuda.h).
PROGRAMMATIC_STREAM_SERIALIZATION = 6
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
        address: What it maps: a tensor of the call, or memory at a fixed address.
        dtype: ``CUtensorMapDataType``.
        shape: Elements along each dim; the contiguous dim first, in this and the following.
        pitches_bytes: Between neighbours along each dim but the first.
        box: Elements along each dim.
        swizzle: ``CUtensorMapSwizzle``.
        promotion: ``CUtensorMapL2promotion``.
    """

    address: TensorAddress | int
    dtype: int
    shape: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int

    @classmethod
    def of(cls, wanted: TensorMap, tensor: Tensor, address: TensorAddress | int) -> MapTemplate:
        """The map of a tensor that is dense and row-major.

        Raises:
            LaunchFailed: Its rows do not begin at multiples of 16 bytes.
        """
        shape, element_bytes = tensor.shape[::-1], DTYPE_BYTES[tensor.dtype]
        pitches = tuple(element_bytes * math.prod(shape[: place + 1]) for place in range(len(shape) - 1))
        if any(pitch % ALIGNMENT_BYTES for pitch in pitches):
            raise LaunchFailed(
                f"the rows of a mapped tensor begin at multiples of {ALIGNMENT_BYTES} bytes; {tensor.name} of "
                f"shape {tensor.shape} has rows of {pitches} bytes"
            )
        whole_lines = all(pitch % LINE_BYTES == 0 for pitch in pitches)
        promotion = PROMOTION[wanted.promotion if whole_lines else LINE_BYTES]
        kind = DATA_TYPES[tensor.dtype]
        return cls(address, kind, shape, pitches, wanted.box[::-1], SWIZZLE[wanted.swizzle], promotion)


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


class NativeRun:
    """The launches of a run, ready but for addresses and stream. Threads may call it at the same time."""

    def __init__(
        self, steps: Sequence[KernelLaunch | DeviceCopy], tensors: int, functions: Sequence[int] = ()
    ) -> None:
        """Lays out the memory that the launches are queued from.

        Args:
            steps: In order.
            tensors: Addresses that come with each call.
            functions: Addresses of `FUNCTIONS`; the installed driver's unless given.
        """
        self._lock = threading.Lock()
        self._kept: list[Any] = []  # memory that the native code reads
        self._addresses = self._memory((ctypes.c_uint64 * max(tensors, 1))())
        self._writes: list[int] = []
        self._maps: list[int] = []
        records = [word for step in steps for word in self._record(step)]
        sections = (self._writes, self._maps, records)
        words = [ctypes.addressof(self._addresses), *(functions or driver_functions())]
        for section, width in zip(sections, WIDTHS, strict=True):
            words += [len(section) // width, self._words(section)]
        self._program = self._words(words)
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
            return self._queue(self._program, stream)

    def _memory(self, made: Any) -> Any:
        self._kept.append(made)
        return made

    def _words(self, words: Sequence[int]) -> int:
        """Address of new memory with some 64-bit words."""
        return ctypes.addressof(self._memory((ctypes.c_uint64 * max(len(words), 1))(*words)))

    def _record(self, step: KernelLaunch | DeviceCopy) -> tuple[int, ...]:
        """A step as the native code reads it: its kind, and three words."""
        if isinstance(step, DeviceCopy):
            source = self._words([0])
            self._writes += [source, step.source.tensor, step.source.offset_bytes]
            return COPY, step.target, source, step.size_bytes
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
            self._writes += [value, argument.tensor, argument.offset_bytes]
            return value
        memory = self._memory(ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT_BYTES))
        at = -(-ctypes.addressof(memory) // MAP_ALIGNMENT_BYTES) * MAP_ALIGNMENT_BYTES
        to = argument.address
        address = self._words([to]) if isinstance(to, int) else self._argument(to)
        rank = len(argument.shape)
        boxes = (ctypes.c_uint32 * (2 * rank))(*argument.box, *[1] * rank)
        box = ctypes.addressof(self._memory(boxes))
        self._maps += [
            at, argument.dtype, rank, address, self._words(argument.shape), self._words(argument.pitches_bytes),
            box, box + 4 * rank, argument.swizzle, argument.promotion,
        ]  # fmt: skip
        return at


#: Kinds of steps.
LAUNCH, COPY = 0, 1
#: Words of an address to write, of a map to encode, and of a step.
WIDTHS = (3, 10, 4)


#: They own the machine code.
_ENGINES: list[Any] = []


@functools.cache
def native_queue() -> Callable[[int, int], int]:
    """Compiles what queues a run: writes addresses, encodes maps, and calls the driver for each step.

    Returns:
        Takes the address of a program and a stream; returns the driver's status. It does not hold the GIL.
    """
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(str(_queue_code()))
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64)
    queue = kind(engine.get_function_address("queue"))
    _ENGINES.append(engine)
    return queue


def _queue_code() -> Any:
    """The function as LLVM has it."""
    from llvmlite import ir

    word, narrow = ir.IntType(64), ir.IntType(32)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(word, [word, word]), "queue")
    program, stream = function.args
    code = ir.IRBuilder(function.append_basic_block())

    def pointer(at: Any, offset: int = 0) -> Any:
        return code.inttoptr(code.add(at, word(offset)), word.as_pointer())

    def load(at: Any, offset: int = 0) -> Any:
        return code.load(pointer(at, offset))

    @contextlib.contextmanager
    def records(section: int) -> Iterator[Any]:
        """A loop over a section of the program: what is generated inside is done for each record."""
        count, first = load(program, 32 + 16 * section), load(program, 40 + 16 * section)
        end = code.add(first, code.mul(count, word(8 * WIDTHS[section])))
        head, body, after = (function.append_basic_block() for _ in range(3))
        before = code.block
        code.branch(head)
        code.position_at_end(head)
        at = code.phi(word)
        at.add_incoming(first, before)
        code.cbranch(code.icmp_unsigned("<", at, end), body, after)
        code.position_at_end(body)
        yield at
        at.add_incoming(code.add(at, word(8 * WIDTHS[section])), code.block)
        code.branch(head)
        code.position_at_end(after)

    def call(entry: int, kinds: str, *values: Any) -> None:
        """Calls a function of the program's head with words (``w``) and ints (``i``); ends where it fails."""
        kind = ir.FunctionType(narrow, [word if letter == "w" else narrow for letter in kinds])
        narrowed = [
            value if letter == "w" else code.trunc(value, narrow)
            for letter, value in zip(kinds, values, strict=True)
        ]
        status = code.call(code.inttoptr(load(program, 8 * entry), kind.as_pointer()), narrowed)
        with code.if_then(code.icmp_signed("!=", status, narrow(0)), likely=False):
            code.ret(code.sext(status, word))

    addresses = load(program)
    with records(0) as at:
        tensor = load(code.add(addresses, code.mul(load(at, 8), word(8))))
        code.store(code.add(tensor, load(at, 16)), pointer(load(at)))
    with records(1) as at:
        made, kind, rank, address, *sizes, swizzle, promotion = (load(at, 8 * place) for place in range(10))
        call(2, "wiiwwwwwiiii", made, kind, rank, load(address), *sizes, word(0), swizzle, promotion, word(0))
    with records(2) as at:
        kind, one, two, three = (load(at, 8 * place) for place in range(4))
        with code.if_else(code.icmp_unsigned("==", kind, word(LAUNCH))) as (launch, copy):
            with launch:
                code.store(stream, pointer(one, LaunchConfig.stream.offset))
                call(1, "wwww", one, two, three, word(0))
            with copy:
                call(3, "wwww", one, load(two), three, stream)
    code.ret(word(0))
    return module
