"""What an array is to the callables: NumPy's, CuPy's, PyTorch's, or another library's that shares its memory.

Only what is cheap is read of an array, since it is read at every call: `Family.key` is all that a call may
depend on, `Family.operand` says the same in words.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

#: GPU kernels read whole vectors: an array begins at a multiple of this.
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class Operand:
    """An array without its content.

    Attributes:
        family: Name of the library it belongs to: ``NumPy``, ``CuPy``, ``PyTorch``.
        shape: Sizes.
        strides: Bytes from one element to the next, per axis.
        dtype: Element type, e.g. ``float32``; with its byte order where that is not the machine's own.
        itemsize: Bytes of an element.
        device: ``cpu`` or ``cuda:0``.
        aligned: True where it begins where a kernel can read it.
        writable: False for an array that may only be read.
        plain: False where only its own library may compute on it (masked arrays, matrices, gradients).
    """

    family: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    device: str
    aligned: bool = True
    writable: bool = True
    plain: bool = True

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def bytes(self) -> int:
        """Size of its elements in bytes."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        return f"{self.family} {self.dtype} of shape {self.shape} on {self.device}"


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of a row-major array without gaps."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Family(Protocol):
    """What differs between libraries of arrays."""

    name: str
    base: type

    def key(self, array: Any) -> Hashable:
        """All that a call may depend on of an array of exactly the type `base`, as something to look up."""
        ...

    def operand(self, array: Any) -> Operand:
        """The same in words."""
        ...

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """A new array of the dtype and on the device of another, row-major."""
        ...

    def dense(self, array: Any, turned: bool) -> Any:
        """A fresh row-major copy of an array, or of its transpose."""
        ...

    def assign(self, out: Any, result: Any) -> None:
        """Copies a result into an array of the same shape and any strides."""
        ...

    def overlap(self, one: Any, other: Any) -> bool:
        """Whether two arrays may share memory."""
        ...

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """The call with the arrays' device as the current one."""
        ...

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """The library's own product."""
        ...

    def transpose(self, a: Any, out: Any) -> Any:
        """The library's own transpose, as a new row-major array or into `out`."""
        ...


class NumpyFamily:
    """Arrays of NumPy."""

    name = "NumPy"
    base: type = numpy.ndarray

    def key(self, array: Any) -> Hashable:
        """Flags hold whether it is aligned and writable."""
        return array.shape, array.strides, array.dtype, array.flags.num

    def operand(self, array: Any) -> Operand:
        """Subclasses are left to NumPy, which knows what they mean."""
        dtype = array.dtype
        return Operand(
            self.name, array.shape, array.strides, dtype.name if dtype.isnative else dtype.str, dtype.itemsize,
            "cpu", array.flags.aligned, array.flags.writeable, type(array) is numpy.ndarray,
        )  # fmt: skip

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """See `Family`."""
        return numpy.empty(shape, like.dtype)

    def dense(self, array: Any, turned: bool) -> Any:
        """See `Family`."""
        return numpy.array(array.T if turned else array, order="C", subok=False)

    def assign(self, out: Any, result: Any) -> None:
        """See `Family`."""
        numpy.copyto(out, result)

    overlap = staticmethod(numpy.may_share_memory)

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """There is one CPU."""
        return call

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """``numpy.matmul``."""
        return numpy.matmul(a, b) if out is None else numpy.matmul(a, b, out=out)

    def transpose(self, a: Any, out: Any) -> Any:
        """``numpy.copyto`` of the transposed view."""
        if out is None:
            return numpy.array(a.T, order="C", subok=True)
        numpy.copyto(out, a.T.copy() if self.overlap(a, out) else a.T)
        return out


class CupyFamily:
    """Arrays of CuPy, given as the module, which the caller has loaded."""

    name = "CuPy"

    def __init__(self, cupy: Any) -> None:
        self._xp, self.base = cupy, cupy.ndarray

    def key(self, array: Any) -> Hashable:
        """The device, and how the pointer is aligned, beside what says how it lies."""
        data = array.data
        return array.shape, array.strides, array.dtype, data.device_id, data.ptr % ALIGNMENT_BYTES

    def operand(self, array: Any) -> Operand:
        """See `Family`."""
        dtype, data = array.dtype, array.data
        return Operand(
            self.name, array.shape, array.strides, dtype.name if dtype.isnative else dtype.str, dtype.itemsize,
            f"cuda:{data.device_id}", data.ptr % ALIGNMENT_BYTES == 0, True, type(array) is self._xp.ndarray,
        )  # fmt: skip

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """See `Family`."""
        return self._xp.empty(shape, like.dtype)

    def dense(self, array: Any, turned: bool) -> Any:
        """See `Family`."""
        return self._xp.array(array.T if turned else array, order="C", copy=True)

    def assign(self, out: Any, result: Any) -> None:
        """See `Family`."""
        self._xp.copyto(out, result)

    def overlap(self, one: Any, other: Any) -> bool:
        """Whether the bytes from first to last element meet."""
        return _meet(_span(one.data.ptr, one), _span(other.data.ptr, other))

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """Arrays may lie on another GPU than the current one."""
        index, current, to = index_of(device), self._xp.cuda.runtime.getDevice, self._xp.cuda.Device

        def called(*arrays: Any) -> Any:
            if current() == index:
                return call(*arrays)
            with to(index):
                return call(*arrays)

        return called

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """``cupy.matmul``; for two axes by ``ndarray.dot``, which does the same with less around it."""
        if out is None and a.ndim <= 2 and b.ndim <= 2:
            return a.dot(b)
        return self._xp.matmul(a, b) if out is None else self._xp.matmul(a, b, out=out)

    def transpose(self, a: Any, out: Any) -> Any:
        """CuPy's copy of the transposed view."""
        if out is None:
            return self._xp.array(a.T, order="C", copy=True)
        self._xp.copyto(out, a.T.copy() if self.overlap(a, out) else a.T)
        return out


class TorchFamily:
    """Tensors of PyTorch, given as the module, which the caller has loaded."""

    name = "PyTorch"

    def __init__(self, torch: Any) -> None:
        self._torch, self.base = torch, torch.Tensor

    def key(self, array: Any) -> Hashable:
        """Whether gradients or a pending negation belong to it, beside what CuPy's key has."""
        return (
            array.shape, array.stride(), array.dtype, array.device, array.data_ptr() % ALIGNMENT_BYTES,
            array.requires_grad, array.is_neg(),
        )  # fmt: skip

    def operand(self, array: Any) -> Operand:
        """Tensors that carry gradients, lie in the host's memory or are not strided are left to PyTorch."""
        dtype, itemsize = str(array.dtype).rpartition(".")[2], array.element_size()
        device, shape = str(array.device), tuple(array.shape)
        if device.partition(":")[0] != "cuda" or not self._is_plain(array):
            strides = dense_strides(shape, itemsize)
            return Operand(self.name, shape, strides, dtype, itemsize, device, plain=False)
        strides = tuple(step * itemsize for step in array.stride())
        aligned = array.data_ptr() % ALIGNMENT_BYTES == 0
        return Operand(self.name, shape, strides, dtype, itemsize, device, aligned)

    def _is_plain(self, array: Any) -> bool:
        strided = getattr(self._torch, "strided", None)
        return (
            type(array) is self._torch.Tensor
            and not array.requires_grad
            and not array.is_neg()
            and getattr(array, "layout", strided) == strided
        )

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """See `Family`."""
        return like.new_empty(shape)

    def dense(self, array: Any, turned: bool) -> Any:
        """See `Family`."""
        made = array.new_empty(tuple(array.shape)[::-1] if turned else tuple(array.shape))
        made.copy_(array.t() if turned else array)
        return made

    def assign(self, out: Any, result: Any) -> None:
        """See `Family`."""
        out.copy_(result)

    def overlap(self, one: Any, other: Any) -> bool:
        """Whether the bytes from first to last element meet."""
        return _meet(*(_span(each.data_ptr(), self.operand(each)) for each in (one, other)))

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """PyTorch goes where its tensors are, and a launch sees to that itself."""
        return call

    def stream(self, array: Any) -> int:
        """Handle of PyTorch's current stream on a tensor's device."""
        return int(self._torch.cuda.current_stream(array.device).cuda_stream)

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """``torch.matmul``."""
        return self._torch.matmul(a, b) if out is None else self._torch.matmul(a, b, out=out)

    def transpose(self, a: Any, out: Any) -> Any:
        """PyTorch's copy of the transposed view."""
        turned = a.permute(*reversed(range(a.ndim)))
        if out is None:
            return turned.contiguous() if a.ndim > 1 else turned.clone()
        return out.copy_(turned.clone() if self.overlap(a, out) else turned)


def index_of(device: str) -> int:
    """The number of a GPU: 1 for ``cuda:1``."""
    return int(device.partition(":")[2] or 0)


def _span(pointer: int, array: Any) -> tuple[int, int]:
    """Addresses of the first byte and behind the last."""
    if 0 in array.shape:
        return pointer, pointer
    steps = [step * (size - 1) for size, step in zip(array.shape, array.strides, strict=True)]
    return pointer + sum(min(step, 0) for step in steps), pointer + array.itemsize + sum(
        max(step, 0) for step in steps
    )


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


NUMPY: Family = NumpyFamily()


def family_of(array: Any) -> Family | None:
    """The library that an array belongs to; None for what is no array of NumPy, CuPy or PyTorch."""
    if isinstance(array, numpy.ndarray):
        return NUMPY
    for kind in type(array).__mro__:
        library = kind.__module__.partition(".")[0]
        module = sys.modules.get(library)
        if library == "cupy" and isinstance(array, getattr(module, "ndarray", ())):
            return _made(CupyFamily, module)
        if library == "torch" and isinstance(array, getattr(module, "Tensor", ())):
            return _made(TorchFamily, module)
    return None


#: One family for each library that was met; a dict, since two threads may put the same in.
_FAMILIES: dict[tuple[type, Any], Family] = {}


def _made(kind: type[CupyFamily] | type[TorchFamily], module: Any) -> Family:
    return _FAMILIES.setdefault((kind, module), kind(module))


def shares_memory_with_others(array: Any) -> bool:
    """Whether an array of an unknown library offers its memory: DLPack or the CUDA array interface."""
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")
