"""What an array is to a call, and what a library of arrays does for it; NumPy's.

Only what is cheap is read of an array, since it is read at every call: `Family.key` is all that a call may
depend on, `Family.operand` says the same in words.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy

from tuner.declare.epilogue import COLUMN, Epilogue


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

    @property
    def span(self) -> tuple[int, int]:
        """Bytes from its first element to the lowest one, and to behind the highest."""
        if 0 in self.shape:
            return 0, 0
        steps = [step * (size - 1) for size, step in zip(self.shape, self.strides, strict=True)]
        return sum(step for step in steps if step < 0), self.itemsize + sum(step for step in steps if step > 0)

    @property
    def turned(self) -> Operand:
        """Its transposed view; of a stack, that of each matrix."""
        shape, strides = self.shape, self.strides
        return replace(self, shape=shape[:-2] + shape[-2:][::-1], strides=strides[:-2] + strides[-2:][::-1])

    @property
    def once(self) -> Operand:
        """Without repetitions: leading axes of a stack along which nothing changes have one element."""
        lead = zip(self.shape[:-2], self.strides[:-2], strict=True)
        return replace(self, shape=(*(size if step else 1 for size, step in lead), *self.shape[-2:]))

    @property
    def inner(self) -> Operand:
        """One element of the first axis."""
        aligned = self.family == NUMPY.name or self.strides[0] % ALIGNMENT_BYTES == 0
        return replace(self, shape=self.shape[1:], strides=self.strides[1:], aligned=self.aligned and aligned)

    def rows(self, kept: int) -> tuple[int, ...]:
        """Its shape with all axes but the last `kept` as one."""
        lead = self.ndim - kept
        return self.shape if lead <= 1 else (math.prod(self.shape[:lead]), *self.shape[lead:])

    def flat(self, kept: int) -> Operand | None:
        """The same elements with all axes but the last `kept` as one; None where they are no single axis."""
        axes = self.ndim - kept
        if axes <= 1:
            return self
        lead = [pair for pair in zip(self.shape[:axes], self.strides[:axes], strict=True) if pair[0] != 1]
        if any(step != size * inner for (_, step), (size, inner) in pairwise(lead)) and 0 not in self.shape:
            return None
        step = lead[-1][1] if lead else self.itemsize * math.prod(self.shape[axes:])
        return replace(self, shape=self.rows(kept), strides=(step, *self.strides[axes:]))

    @property
    def is_row_major(self) -> bool:
        """Whether elements lie in order and without gaps; axes of size 1 may have any stride."""
        expected = self.itemsize
        for size, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and step != expected and 0 not in self.shape:
                return False
            expected *= size
        return True


def row_major(
    family: str, shape: tuple[int, ...], dtype: str, itemsize: int, device: str, plain: bool = True
) -> Operand:
    """A row-major array without gaps."""
    strides = tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return Operand(family, shape, strides, dtype, itemsize, device, plain=plain)


def index_of(device: str) -> int:
    """The number of a GPU: 1 for ``cuda:1``."""
    return int(device.partition(":")[2] or 0)


class Family:
    """A library of arrays, as calls use it; this one is NumPy, which computes at once on the one CPU.

    Attributes:
        name: Name of the library.
        base: Its type of arrays.
        xp: Its module.
    """

    name: str = "NumPy"
    base: Any = numpy.ndarray
    xp: Any = numpy
    #: Whether two arrays may share memory: the bytes from first to last element meet.
    overlap: Any = staticmethod(numpy.may_share_memory)
    #: All that a call may depend on of an array of exactly the type `base`, as something to look up. NumPy's
    #: flags hold whether it is aligned and writable.
    key: Any = operator.attrgetter("shape", "strides", "dtype", "flags.num")
    #: The library's own product of two arrays, into a third or, for None, a new one.
    matmul: Any = staticmethod(numpy.matmul)

    def found(self, kept: dict[Any, Any], *arrays: Any) -> Any:
        """What is kept for some arrays, the last of which may be None.

        Raises:
            KeyError: Nothing is.
        """
        return kept[tuple([KEY_OF[type(array)](array) for array in arrays if array is not None])]

    def operand(self, array: Any) -> Operand:
        """The same in words. Subclasses are left to the library, which knows what they mean."""
        dtype, plain = array.dtype, type(array) is self.base
        name = dtype.name if dtype.isnative else dtype.str
        return Operand(self.name, array.shape, array.strides, name, dtype.itemsize, *self._place(array), plain)

    def _place(self, array: Any) -> tuple[str, bool, bool]:
        """The device, and whether the array is aligned and writable."""
        return "cpu", array.flags.aligned, array.flags.writeable

    def empty(self, shape: tuple[int, ...], like: Any, dtype: str = "") -> Any:
        """A new array of the dtype (unless given) and on the device of another, row-major."""
        return self.xp.empty(shape, dtype or like.dtype)

    def converted(self, array: Any, dtype: str) -> Any:
        """An array in another dtype."""
        return array.astype(dtype)

    def dense(self, array: Any, turned: bool) -> Any:
        """A fresh row-major copy of an array, or of its matrices' transposes."""
        return self.xp.array(array.swapaxes(-2, -1) if turned else array, order="C", copy=True, subok=True)

    def assign(self, out: Any, result: Any) -> None:
        """Copies a result into an array of the same shape and any strides."""
        self.xp.copyto(out, result)

    def address(self, array: Any) -> int:
        """Of the first element."""
        return int(array.ctypes.data)

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """The call with the arrays' device as the current one."""
        return call

    def launches(self, loaded: Any) -> Callable[..., None]:
        """What launches a kernel on a GPU: takes an array on the current device, and the addresses of all."""
        raise NotImplementedError

    def runs(self, loaded: Any) -> Callable[..., None]:
        """What launches a kernel that is loaded on a GPU, the current device being that of the arrays."""
        launch, address = self.launches(loaded), self.address
        return lambda *arrays: launch(arrays[0], *map(address, arrays))

    def stream(self, array: Any) -> int | None:
        """Handle of the library's current stream on an array's device; None for that of CuPy."""
        return None

    def capturing(self, array: Any) -> bool:
        """Whether work on an array is being captured into a graph, so that nothing may be loaded."""
        return False

    def begin_library(self, device: str) -> None:
        """Loads what the library's first product may be captured with."""

    def finished(self, a: Any, b: Any, epilogue: Epilogue, given: Mapping[str, Any], out: Any) -> Any:
        """The library's product of two arrays with what is behind it, maybe in `out`; see `finish`."""
        return self.finish(self.matmul(a, b, None), epilogue, given)

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

    def grouped(self, a: Any, b: Any, offsets: Any, out: Any) -> Any:
        """The library's products, one for each group; the host waits for the offsets."""
        apart = out is None or self.overlap(out, a) or self.overlap(out, b)
        to, first = self.empty((a.shape[0], b.shape[2]), a) if apart else out, 0
        for matrix, end in zip(b, offsets.tolist(), strict=True):
            if end > first:
                self.xp.matmul(a[first:end], matrix, out=to[first:end])
            first = end
        if out is None or not apart:
            return to
        self.assign(out[:first], to[:first])
        return out

    def transpose(self, a: Any, out: Any) -> Any:
        """The library's own transpose, as a new row-major array or into `out`."""
        if out is None:
            return self.dense(a.T, False)
        self.xp.copyto(out, a.T.copy() if self.overlap(a, out) else a.T)
        return out


NUMPY = Family()


#: GPU kernels read whole vectors: an array begins at a multiple of this.
ALIGNMENT_BYTES = 16


class GpuFamily(Family):
    """A library of arrays on GPUs, given as the module, which the caller has loaded."""

    def __init__(self, module: Any) -> None:
        self.xp, self.base = module, getattr(module, "Tensor", None) or module.ndarray

    def overlap(self, one: Any, other: Any) -> bool:
        """See `Family`."""
        begin, end = self._span(one)
        other_begin, other_end = self._span(other)
        return begin < other_end and other_begin < end

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """See `Family`."""
        return self.xp.matmul(a, b) if out is None else self.xp.matmul(a, b, out=out)

    def _span(self, array: Any) -> tuple[int, int]:
        """Addresses of the first byte and behind the last."""
        address, (low, high) = self.address(array), self.operand(array).span
        return address + low, address + high


class CupyFamily(GpuFamily):
    """Arrays of CuPy."""

    name = "CuPy"

    def key(self, array: Any) -> Hashable:
        """The device, and how the pointer is aligned, beside what says how it lies."""
        data = array.data
        return array.shape, array.strides, array.dtype, data.device_id, data.ptr % ALIGNMENT_BYTES

    def _place(self, array: Any) -> tuple[str, bool, bool]:
        return f"cuda:{array.data.device_id}", array.data.ptr % ALIGNMENT_BYTES == 0, True

    def dense(self, array: Any, turned: bool) -> Any:
        """See `Family`."""
        return self.xp.array(array.swapaxes(-2, -1) if turned else array, order="C", copy=True)

    def empty(self, shape: tuple[int, ...], like: Any, dtype: str = "") -> Any:
        """As ``cupy.empty``, by what that calls: a fraction of a microsecond less."""
        return self.base(shape, dtype or like.dtype)

    def address(self, array: Any) -> int:
        """See `Family`."""
        return array.data.ptr  # type: ignore[no-any-return]

    def at_home(self, call: Callable[..., Any], device: str) -> Callable[..., Any]:
        """Arrays may lie on another GPU than the current one, where there is another."""
        if self.xp.cuda.runtime.getDeviceCount() == 1:
            return call
        index, current, to = index_of(device), self.xp.cuda.runtime.getDevice, self.xp.cuda.Device

        def called(*arrays: Any) -> Any:
            if current() == index:
                return call(*arrays)
            with to(index):
                return call(*arrays)

        return called

    def launches(self, loaded: Any) -> Callable[..., None]:
        """On CuPy's current stream."""
        stream, run_at = self.xp.cuda.get_current_stream, loaded.run_at
        return lambda like, *addresses: run_at(stream().ptr, *addresses)

    def capturing(self, array: Any) -> bool:
        """Whether CuPy's current stream is, or cannot say for another that is."""
        try:
            return bool(self.xp.cuda.get_current_stream().is_capturing())
        except RuntimeError:  # the default stream beside a capture: the runtime refuses the question
            return True

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """``cupy.matmul``; for two axes by ``ndarray.dot``, which does the same with less around it."""
        plain = out is None and a.ndim <= 2 and b.ndim <= 2
        return a.dot(b) if plain else super().matmul(a, b, out)


class TorchFamily(GpuFamily):
    """Tensors of PyTorch, which goes where its tensors are; a launch sees to that itself."""

    name = "PyTorch"

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self._parameter, self._asks_for_gradients = torch.nn.Parameter, torch.is_grad_enabled
        KEY_OF[self._parameter], FOUND_OF[self._parameter] = self.key, self.found

    def found(self, kept: dict[Any, Any], *arrays: Any) -> Any:
        """See `Family`: PyTorch's own check, which guards compiled programs, takes half of the time of keys."""
        a, b, *more = arrays if arrays[-1] is not None else arrays[:-1]
        near = a.numel(), b.numel(), *[array.numel() for array in more]
        check, call = kept.get(near, NOTHING)
        if check is not None and check(a, b, *more):
            addresses = a.data_ptr() | b.data_ptr()
            for array in more:
                addresses |= array.data_ptr()
            if addresses % ALIGNMENT_BYTES == 0:
                return call
        call = super().found(kept, a, b, *more)
        if check is None and not getattr(call, "pending", False):
            kept[near] = self.check((a, b, *more)), call
        return call

    def check(self, arrays: Sequence[Any]) -> Callable[..., bool] | None:
        """What tells whether other tensors lie as these do, gradients, negations and autocast included.

        Returns:
            None where one does not begin where kernels can read.
        """
        try:
            if any(array.data_ptr() % ALIGNMENT_BYTES for array in arrays):
                return None
            lie = [[list(of(array)) for array in arrays] for of in (self.base.size, self.base.stride)]
        except RuntimeError:  # sparse, or within vmap: no memory of its own
            return None
        guards = self.xp._C._dynamo.guards
        guard = guards.TensorGuards(*arrays, dynamic_dims_sizes=lie[0], dynamic_dims_strides=lie[1])
        return guard.check  # type: ignore[no-any-return]

    def key(self, array: Any) -> Hashable:
        """Whether gradients (where they are asked for) or a negation belong to it, beside what CuPy's key has.

        It costs most of what a call does beside the launch: strides are asked for where they tell something.
        """
        return (
            array.shape, array.is_contiguous() or array.stride(), array.dtype,
            array.get_device() if array.is_cuda else array.device, array.data_ptr() % ALIGNMENT_BYTES,
            array.requires_grad and self._asks_for_gradients(), array.is_neg(),
        )  # fmt: skip

    def _learns(self, *arrays: Any) -> bool:
        return self._asks_for_gradients() and any(array.requires_grad for array in arrays)

    def operand(self, array: Any) -> Operand:
        """Tensors that carry gradients, lie in the host's memory or are not strided are left to PyTorch."""
        dtype, itemsize = str(array.dtype).rpartition(".")[2], array.element_size()
        device, shape, strided = str(array.device), tuple(array.shape), getattr(self.xp, "strided", None)
        plain = (
            device.partition(":")[0] == "cuda"
            and type(array) in (self.xp.Tensor, self._parameter)
            and not (array.is_neg() or self._learns(array))
            and getattr(array, "layout", strided) == strided
        )
        if not plain:
            return row_major(self.name, shape, dtype, itemsize, device, plain=False)
        strides = tuple(step * itemsize for step in array.stride())
        aligned = array.data_ptr() % ALIGNMENT_BYTES == 0
        return Operand(self.name, shape, strides, dtype, itemsize, device, aligned)

    def empty(self, shape: tuple[int, ...], like: Any, dtype: str = "") -> Any:
        """See `Family`."""
        return like.new_empty(shape, dtype=getattr(self.xp, dtype)) if dtype else like.new_empty(shape)

    def matmul(self, a: Any, b: Any, out: Any) -> Any:
        """See `Family`; on a CPU PyTorch writes an `out` that is still to be read."""
        if out is not None and not out.is_cuda and any(map(self.xp._C._is_alias_of, (out, out), (a, b))):
            return out.copy_(self.xp.matmul(a, b))
        return super().matmul(a, b, out)

    def converted(self, array: Any, dtype: str) -> Any:
        """See `Family`."""
        return array.to(getattr(self.xp, dtype))

    def dense(self, array: Any, turned: bool) -> Any:
        """See `Family`."""
        array = array.swapaxes(-2, -1) if turned else array
        return array.new_empty(tuple(array.shape)).copy_(array)

    def assign(self, out: Any, result: Any) -> None:
        """See `Family`."""
        out.copy_(result)

    def address(self, array: Any) -> int:
        """See `Family`."""
        return array.data_ptr()  # type: ignore[no-any-return]

    def stream(self, array: Any) -> int:
        """Handle of PyTorch's current stream on a tensor's device."""
        # What `current_stream` asks, without an object around it.
        return int(self.xp._C._cuda_getCurrentRawStream(array.get_device()))

    def launches(self, loaded: Any) -> Callable[..., None]:
        """On PyTorch's current stream."""
        stream, run_at = self.stream, loaded.run_at
        return lambda like, *addresses: run_at(stream(like), *addresses)

    def grouped(self, a: Any, b: Any, offsets: Any, out: Any) -> Any:
        """PyTorch's own where it has one, which needs no trip to the host; gradients pass."""
        own = getattr(self.xp.nn.functional, "grouped_mm", None)
        if own is not None and a.dtype == self.xp.bfloat16 and a.is_cuda and not (a.shape[1] | b.shape[2]) % 8:
            result = own(a, b, offs=offsets)
        elif out is None and (a.requires_grad or b.requires_grad):
            ends = offsets.tolist()
            result = self.xp.cat([a[i:j] @ one for i, j, one in zip([0, *ends], ends, b, strict=False)])
        else:
            return super().grouped(a, b, offsets, out)
        return result if out is None else out.copy_(result)

    def begin_library(self, device: str) -> None:
        """Makes PyTorch's handle of cuBLAS, which cannot be made during a capture."""
        with self.xp.cuda.device(device):
            if not self.xp.cuda.is_current_stream_capturing():  # else the capture would end
                self.xp.cuda.current_blas_handle()

    def capturing(self, array: Any) -> bool:
        """Whether PyTorch's current stream is."""
        return array.is_cuda and bool(self.xp.cuda.is_current_stream_capturing())

    def finished(self, a: Any, b: Any, epilogue: Epilogue, given: Mapping[str, Any], out: Any) -> Any:
        """See `Family`; PyTorch's own linear layer where a bias is added first."""
        if epilogue.bias != COLUMN or epilogue.alpha or epilogue.beta or b.ndim != 2:
            return super().finished(a, b, epilogue, given, out)
        rest, bias = epilogue.activation or epilogue.residual, given["bias"]
        is_apart = out is not None and not any(self.xp._C._is_alias_of(out, one) for one in (a, b, bias))
        if is_apart and a.ndim == 2 and a.dtype == out.dtype and not (rest or self._learns(a, b, bias)):
            return self.xp.addmm(bias, a, b, out=out)
        product = self.xp.nn.functional.linear(a, b.t(), bias)
        return self.finish(product, replace(epilogue, bias=""), given) if rest else product

    def finish(self, product: Any, epilogue: Epilogue, given: Mapping[str, Any]) -> Any:
        """See `Family`; gradients pass."""
        torch, dtype = self.xp, product.dtype
        result = product.float() if product.element_size() < 4 else product
        if epilogue.alpha:
            result = result * given["alpha"]
        if epilogue.beta:
            result = result + given["beta"] * given["c_in"]
        if epilogue.bias:
            bias = given["bias"]
            result = result + (bias[:, None] if epilogue.bias == "bias-row" else bias)
        if epilogue.activation:
            result = self._activated(result, epilogue.activation)
        if epilogue.residual:
            result = result + given["residual"]
        return result if torch.is_tensor(result) and result.dtype == dtype else result.to(dtype)

    def _activated(self, values: Any, activation: str) -> Any:
        functional = self.xp.nn.functional
        if activation.startswith("gelu"):
            return functional.gelu(values, approximate="tanh" if activation == "gelu-tanh" else "none")
        return getattr(functional, activation)(values)

    def transpose(self, a: Any, out: Any) -> Any:
        """PyTorch's copy of the transposed view."""
        turned = a.permute(*reversed(range(a.ndim)))
        if out is None:
            return turned.contiguous() if a.ndim > 1 else turned.clone()
        return out.copy_(turned.clone() if self.overlap(a, out) else turned)


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
#: Type of arrays -> their `Family.key` and `Family.found`, for the types that no subclass is.
KEY_OF: dict[type, Callable[[Any], Hashable]] = {numpy.ndarray: NUMPY.key}
FOUND_OF: dict[type, Callable[..., Any]] = {numpy.ndarray: NUMPY.found}
#: No check, and no call.
NOTHING = None, None


def _made(kind: type[CupyFamily] | type[TorchFamily], module: Any) -> Family:
    family = _FAMILIES.setdefault((kind, module), kind(module))
    KEY_OF[family.base], FOUND_OF[family.base] = family.key, family.found
    return family


def shares_memory_with_others(array: Any) -> bool:
    """Whether an array of an unknown library offers its memory: DLPack or the CUDA array interface."""
    return hasattr(array, "__dlpack__") or hasattr(array, "__cuda_array_interface__")


def is_array(value: object) -> bool:
    """True for an array of a library that is known, or that shares its memory."""
    if isinstance(value, numpy.generic):
        return False
    return family_of(value) is not None or shares_memory_with_others(value)


def as_array(given: Any) -> Any:
    """An array for what NumPy's functions take in its place."""
    nested = isinstance(given, list | tuple | int | float | complex | numpy.generic)
    return numpy.asarray(given) if nested else given


def common_family(function: str, arrays: Mapping[str, Any], out: Any) -> Family | None:
    """The library of all arrays; None for one that shares its memory.

    Args:
        function: Its name, for messages.
        arrays: What it reads, by argument; one is ``a``.
        out: What it writes, or None.

    Raises:
        TypeError: What is no array, or arrays of several libraries.
    """
    named = dict(arrays) | ({} if out is None else {"out": out})
    kinds = {}
    for name, array in named.items():
        family = family_of(array)
        if family is None and not shares_memory_with_others(array):
            raise TypeError(
                f"{function}: {name} is an array of NumPy, CuPy or PyTorch, or one that offers DLPack or the "
                f"CUDA array interface, got {type(array).__name__}"
            )
        kinds[name] = family.name if family else type(array).__name__
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} of {kind}" for name, kind in kinds.items())
        raise TypeError(f"{function}: all arrays are of one library, got {listed}; convert one of them")
    return family_of(arrays["a"])


#: DLPack's number for memory of the host.
_HOST = 1


def view(array: Any) -> Any:
    """A NumPy or CuPy array on the memory of another library's array."""
    on_host = hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) == _HOST
    if on_host:
        return numpy.from_dlpack(array)
    from tuner.devices.cuda.calling import adopted

    return adopted(array)


def operand_of(array: Any) -> Operand:
    """An array of any library, without its content."""
    family = family_of(array)
    return family.operand(array) if family is not None else operand_of(view(array))


def given_back(result: Any, like: Any) -> Any:
    """The result as an array of the library of another: by the array API standard's ``from_dlpack``."""
    namespace = getattr(like, "__array_namespace__", None)
    library = namespace() if namespace else sys.modules.get(type(like).__module__.partition(".")[0])
    take = getattr(library, "from_dlpack", None)
    return take(result) if take else result
