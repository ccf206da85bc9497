"""What an array is to the callables, and what a library of arrays must do for them; NumPy's.

Only what is cheap is read of an array, since it is read at every call: `Family.key` is all that a call may
depend on, `Family.operand` says the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

from tuner.declare.epilogue import Epilogue


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


def index_of(device: str) -> int:
    """The number of a GPU: 1 for ``cuda:1``."""
    return int(device.partition(":")[2] or 0)


class Opaque:
    """An operand that is no array, and knows itself how it is multiplied."""

    def product(self, a: Any, out: Any, asked: str) -> Any:
        """``a @ self``.

        Args:
            a: The left operand.
            out: Where to put the result, or None.
            asked: The precision that the call itself says; empty where it says none.
        """
        raise NotImplementedError


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

    def address(self, array: Any) -> int:
        """Of the first element."""
        ...

    def overlap(self, one: Any, other: Any) -> bool:
        """Whether two arrays may share memory: the bytes from first to last element meet."""
        ...

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """The call with the arrays' device as the current one."""
        ...

    def capturing(self, array: Any) -> bool:
        """Whether work on an array is being captured into a graph, so that nothing may be loaded."""
        ...

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """The library's own product."""
        ...

    def finish(self, product: Any, epilogue: Epilogue, given: Mapping[str, Any]) -> Any:
        """A product's result, by the library's element-wise functions; 16-bit numbers are finished in float32.

        Args:
            product: The library's, which may be written.
            epilogue: What is done.
            given: The further arrays and numbers by name.
        """
        ...

    def transpose(self, a: Any, out: Any) -> Any:
        """The library's own transpose, as a new row-major array or into `out`."""
        ...


def finished(xp: Any, product: Any, epilogue: Epilogue, given: Mapping[str, Any]) -> Any:
    """`Family.finish` of NumPy and CuPy."""
    narrow = product.dtype.itemsize < 4
    result = epilogue.of(xp, product.astype(numpy.float32) if narrow else product, given)
    return result.astype(product.dtype) if narrow else result


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

    def address(self, array: Any) -> int:
        """See `Family`."""
        return int(array.ctypes.data)

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """There is one CPU."""
        return call

    def capturing(self, array: Any) -> bool:
        """NumPy computes at once."""
        return False

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """``numpy.matmul``."""
        return numpy.matmul(a, b) if out is None else numpy.matmul(a, b, out=out)

    def finish(self, product: Any, epilogue: Epilogue, given: Mapping[str, Any]) -> Any:
        """See `Family`."""
        return finished(numpy, product, epilogue, given)

    def transpose(self, a: Any, out: Any) -> Any:
        """``numpy.copyto`` of the transposed view."""
        if out is None:
            return numpy.array(a.T, order="C", subok=True)
        numpy.copyto(out, a.T.copy() if self.overlap(a, out) else a.T)
        return out


NUMPY: Family = NumpyFamily()
