"""What an array is to a call, and what a library of arrays does for it; NumPy's.

Only what is cheap is read of an array, since it is read at every call: `Family.key` is all that a call may
depend on, `Family.operand` says the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

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


class Family:
    """A library of arrays, as calls use it; what is here suits NumPy and libraries like it.

    Attributes:
        name: Name of the library.
        base: Its type of arrays.
        xp: Its module.
    """

    name: str
    base: type
    xp: Any

    def key(self, array: Any) -> Hashable:
        """All that a call may depend on of an array of exactly the type `base`, as something to look up."""
        raise NotImplementedError

    def operand(self, array: Any) -> Operand:
        """The same in words."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """A new array of the dtype and on the device of another, row-major."""
        return self.xp.empty(shape, like.dtype)

    def dense(self, array: Any, turned: bool) -> Any:
        """A fresh row-major copy of an array, or of its transpose."""
        return self.xp.array(array.T if turned else array, order="C", copy=True)

    def assign(self, out: Any, result: Any) -> None:
        """Copies a result into an array of the same shape and any strides."""
        self.xp.copyto(out, result)

    def address(self, array: Any) -> int:
        """Of the first element."""
        raise NotImplementedError

    def overlap(self, one: Any, other: Any) -> bool:
        """Whether two arrays may share memory: the bytes from first to last element meet."""
        raise NotImplementedError

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """The call with the arrays' device as the current one."""
        return call

    def capturing(self, array: Any) -> bool:
        """Whether work on an array is being captured into a graph, so that nothing may be loaded."""
        return False

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """The library's own product."""
        return self.xp.matmul(a, b) if out is None else self.xp.matmul(a, b, out=out)

    def finish(self, product: Any, epilogue: Epilogue, given: Mapping[str, Any]) -> Any:
        """A product's result, by the library's element-wise functions; 16-bit numbers are finished in float32.

        Args:
            product: The library's, which may be written.
            epilogue: What is done.
            given: The further arrays and numbers by name.
        """
        narrow = product.dtype.itemsize < 4
        result = epilogue.of(self.xp, product.astype(numpy.float32) if narrow else product, given)
        return result.astype(product.dtype) if narrow else result

    def transpose(self, a: Any, out: Any) -> Any:
        """The library's own transpose, as a new row-major array or into `out`."""
        if out is None:
            return self.dense(a, True)
        self.xp.copyto(out, a.T.copy() if self.overlap(a, out) else a.T)
        return out


class NumpyFamily(Family):
    """Arrays of NumPy, which computes at once on the one CPU."""

    name, base, xp = "NumPy", numpy.ndarray, numpy
    overlap: Any = staticmethod(numpy.may_share_memory)

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

    def address(self, array: Any) -> int:
        """See `Family`."""
        return int(array.ctypes.data)

    def transpose(self, a: Any, out: Any) -> Any:
        """As `Family.transpose`; a new array is of the same subclass."""
        return numpy.array(a.T, order="C", subok=True) if out is None else super().transpose(a, out)


NUMPY: Family = NumpyFamily()
