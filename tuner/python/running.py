"""Runs one config of a kernel on a caller's arrays, in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import DTYPE_BYTES, Problem, Tensor
from tuner.declare.shapes import KernelArgument
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import InputError
from tuner.python.arrays import (
    Operand,
    TorchFamily,
    family_of,
    given_back,
    index_of,
    shares_memory_with_others,
    view,
)


class ConfigRunner:
    """A kernel with its config, ready to run on arrays of its problem's shapes.

    Arrays of CuPy run on CuPy's current stream, tensors of PyTorch on PyTorch's. Arrays of NumPy are copied to
    the GPU and back where the kernel is for one.

    Attributes:
        problem: The problem that it computes.
        numbers: Names of the numbers that a call may choose: those that are no sizes.
    """

    def __init__(
        self, kernel: Kernel, problem: Problem, config: Mapping[str, Any], device: DeviceInfo, spec: str = ""
    ) -> None:
        """Keeps what is to run; it is compiled at the first call.

        Args:
            kernel: The kernel.
            problem: What it computes.
            config: A legal config.
            device: What it was tuned on.
            spec: The GPU that arrays of NumPy are copied to, such as ``cuda:1``; the first one if empty.
        """
        self.problem = problem
        self.numbers = tuple(each.name for each in problem.scalars if each.name not in problem.dims)
        self._rendered = render(kernel, problem, Config(config))
        self._device, self._index = device, index_of(spec) if spec.startswith(f"{device.kind}:") else 0
        self._entry: Callable[..., Any] | None = None
        self._loaded: dict[int, Any] = {}
        self._loading = threading.Lock()

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Runs the kernel.

        Args:
            arrays: The inputs, in the order of the problem's tensors; or all tensors in that order.
            named: Arrays to write, by name; those left out are made. Numbers that are no sizes; those left out
                are as they were when it was tuned.

        Returns:
            The output, or a tuple of several, of the library that the inputs are of.

        Raises:
            InputError: An array is missing, or has another shape, dtype, layout or place than the problem says.
        """
        numbers = {name: named.pop(name) for name in self.numbers if name in named}
        given = self._by_name(arrays, named)
        for name, array in given.items():
            seen(name, array)
        like = arrays[0] if arrays else next(iter(named.values()), None)
        fresh = [each.name for each in self.problem.outputs if each.name not in given]
        for each in self.problem.outputs:
            if each.name in fresh:
                given[each.name] = made(each, like)
        every = self.checked(*(given[each.name] for each in self.problem.tensors))
        self.run(*every, numbers=numbers)
        foreign = like is not None and family_of(like) is None
        found = tuple(
            given_back(given[each.name], like) if foreign and each.name in fresh else given[each.name]
            for each in self.problem.outputs
        )
        return found[0] if len(found) == 1 else found

    def _by_name(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        written = [each.name for each in self.problem.outputs]
        inputs = [each.name for each in self.problem.inputs]
        names = [each.name for each in self.problem.tensors] if len(arrays) > len(inputs) else inputs
        unknown = [name for name in named if name not in written]
        if len(arrays) != len(names) or unknown:
            got = f"the name {unknown[0]!r}" if unknown else f"{len(arrays)} arrays"
            may = ", ".join((*written, *self.numbers))
            raise InputError(f"{self.problem} takes {', '.join(inputs)}, and maybe {may} by name; got {got}")
        return dict(zip(names, arrays, strict=True)) | dict(named)

    def checked(self, *arrays: Any, dense: bool = True) -> tuple[Any, ...]:
        """Arrays for all tensors as `run` takes them, once they are what the kernel reads and writes.

        Args:
            arrays: One for each of the problem's tensors.
            dense: False to take arrays with gaps on a CPU, where Numba compiles for what it is given.

        Raises:
            InputError: One is not.
        """
        tensors, kind = self.problem.tensors, self._device.kind
        found = tuple(seen(tensor.name, array) for tensor, array in zip(tensors, arrays, strict=True))
        check(tensors, found, kind, dense or not kind_of(kind).is_host)
        return found

    def run(self, *arrays: Any, numbers: Mapping[str, float] | None = None) -> None:
        """Runs the kernel on arrays that were `checked`, or that lie as these did.

        Args:
            arrays: One for each of the problem's tensors.
            numbers: Values for some of `numbers`.
        """
        scalars = tuple(
            numpy.dtype(each.dtype).type((numbers or {}).get(each.name, each.value))
            for each in self.problem.scalars
        )
        if kind_of(self._device.kind).is_host:
            self._on_host(arrays, scalars)
        elif isinstance(arrays[0], numpy.ndarray):
            self._by_copies(arrays, scalars)
        else:
            self._on_gpu(arrays, scalars)

    def _on_host(self, arrays: Sequence[Any], scalars: Sequence[Any]) -> None:
        if self._entry is None:
            from tuner.devices.cpu.numba import ready

            with self._loading:
                self._entry = self._entry or ready(self._rendered, self.problem)
        self._entry(*arrays, *(each.item() for each in scalars))

    def _on_gpu(self, arrays: Sequence[Any], scalars: Sequence[Any]) -> None:
        device, family = operand_of(arrays[0]).device, family_of(arrays[0])
        assert family is not None, "what was seen belongs to a library that is known"
        loaded = self._on(index_of(device)).with_scalars(scalars)
        if isinstance(family, TorchFamily):  # on PyTorch's stream, not on CuPy's
            loaded.run_at(family.stream(arrays[0]), *map(family.address, arrays))
            return
        family.at_home(loaded.run, device)(*arrays)

    def _by_copies(self, arrays: Sequence[Any], scalars: Sequence[Any]) -> None:
        """By way of the GPU's memory; arrays of NumPy hold the outputs once it returns."""
        from tuner.devices.cuda.calling import to_gpu, to_host

        copies = [to_gpu(each, self._index) for each in arrays]
        self._on_gpu(copies, scalars)
        for tensor, copy, array in zip(self.problem.tensors, copies, arrays, strict=True):
            if tensor.output:
                to_host(copy, array)

    def _on(self, index: int) -> Any:
        """The kernel on a GPU, compiled and loaded at the first call."""
        if index not in self._loaded:
            from tuner.devices.cuda.calling import Loaded, device_info

            with self._loading:
                if index not in self._loaded:
                    # The arrays may lie on a GPU of another model than the one that it was tuned on.
                    self._loaded[index] = Loaded(self._rendered, self.problem, device_info(index), index)
        return self._loaded[index]


#: Python's and NumPy's kinds of numbers -> dtype of a scalar argument.
_KINDS = {"i": "int64", "u": "int64", "b": "int64", "f": "float64"}


def named(arguments: object, names: Sequence[str], function: str) -> dict[str, Any]:
    """Arguments by name.

    Args:
        arguments: By name, or in the order of the names.
        names: What the function takes, in order.
        function: Its name, for messages.

    Raises:
        InputError: Some are missing, or too many.
    """
    if isinstance(arguments, Mapping):
        missing, unknown = set(names) - arguments.keys(), arguments.keys() - set(names)
        if missing or unknown:
            wrong = f"{sorted(missing)[0]!r} is missing" if missing else f"got {sorted(unknown)[0]!r}"
            raise InputError(f"{function} takes {', '.join(names)}; {wrong}; give exactly these")
        return {name: arguments[name] for name in names}
    given = list(arguments) if isinstance(arguments, Sequence) else [arguments]
    if len(given) != len(names):
        raise InputError(
            f"{function} takes {len(names)} arguments ({', '.join(names)}), got {len(given)}; give one for "
            "each, parameters left out"
        )
    return dict(zip(names, given, strict=True))


def is_array(value: object) -> bool:
    """True for an array of a library that is known, or that shares its memory."""
    if isinstance(value, numpy.generic):
        return False
    return family_of(value) is not None or shares_memory_with_others(value)


def described(name: str, value: Any, dtype: str = "") -> KernelArgument:
    """An argument in words.

    Args:
        name: Its name.
        value: An array or a number.
        dtype: That of a number, as the source declares it; by default that of Python's number.

    Raises:
        InputError: It is neither, or its dtype is not for kernels.
    """
    if is_array(value):
        found = family_of(value)
        operand = found.operand(value) if found is not None else None
        shape = operand.shape if operand is not None else tuple(view(value).shape)
        told = operand.dtype if operand is not None else view(value).dtype.name
        return KernelArgument(name, _allowed(name, told), tuple(int(size) for size in shape))
    if isinstance(value, bool | int | float | numpy.generic):
        plain = value.item() if isinstance(value, numpy.generic) else value
        kind = numpy.asarray(plain).dtype.kind
        if kind in _KINDS:
            if kind == "f" and dtype.startswith("int"):
                raise InputError(f"{name} is a whole number in the source, got {plain}; pass one")
            own = dtype or (str(value.dtype) if isinstance(value, numpy.floating) else _KINDS[kind])
            return KernelArgument(
                name, _allowed(name, own), None, int(plain) if kind in "iub" else float(plain)
            )
    raise InputError(
        f"an argument is an array (NumPy, CuPy, PyTorch, or one that speaks DLPack) or a number, {name} is "
        f"{type(value).__name__}; pass one of these"
    )


def _allowed(name: str, dtype: str) -> str:
    if dtype not in DTYPE_BYTES:
        raise InputError(f"an argument is of {', '.join(DTYPE_BYTES)}, {name} is {dtype}; convert it")
    return dtype


def with_outputs(arguments: Sequence[KernelArgument], outputs: Sequence[str]) -> tuple[KernelArgument, ...]:
    """Arguments, those marked that a kernel writes.

    Raises:
        InputError: None of them is written, or an output is no array.
    """
    arrays = [each.name for each in arguments if each.shape is not None]
    for name in outputs:
        if name not in arrays:
            raise InputError(f"outputs= names arrays ({', '.join(arrays)}), got {name!r}; correct it")
    if not outputs:
        raise InputError(
            f"a kernel writes an array, and nothing tells which of {', '.join(arrays) or 'none'}; name it by "
            "outputs="
        )
    return tuple(replace(each, output=each.name in outputs) for each in arguments)


def on_host(array: Any) -> numpy.ndarray[Any, Any]:
    """A NumPy array with an array's numbers."""
    for name in ("get", "detach"):
        if hasattr(array, name) and not isinstance(array, numpy.ndarray):
            array = getattr(array, name)()
            array = array.cpu() if name == "detach" else array
    if isinstance(array, numpy.ndarray):
        return numpy.ascontiguousarray(array)
    return numpy.ascontiguousarray(array if hasattr(array, "__array__") else numpy.from_dlpack(array))


def key_of(value: Any) -> Hashable:
    """All of an argument that a prepared run depends on: an array that was `seen`, or a number."""
    found = family_of(value)
    key: Hashable = value if found is None else found.key(value)
    return key


def device_of(values: Any, target: str) -> str:
    """The device that arrays are on, among other arguments; the first GPU for a CUDA kernel on host arrays."""
    for value in values if isinstance(values, Iterable) else ():
        found = family_of(value) if is_array(value) else None
        if found is not None and found.operand(value).device.startswith("cuda"):
            return found.operand(value).device
    return kind_of(target).first


def seen(name: str, array: Any) -> Any:
    """An array of NumPy, of CuPy or of PyTorch on a GPU, on the memory of any array.

    Args:
        name: What messages call it.
        array: An array of one of these, or of a library that shares its memory.

    Raises:
        InputError: It is no array, carries gradients, or does not share its memory.
    """
    if not is_array(array):
        raise InputError(f"{name} is an array, got {type(array).__name__}; pass one")
    if getattr(array, "requires_grad", False):
        raise InputError(f"{name} carries gradients, which no kernel sees; pass {name}.detach()")
    family = family_of(array)
    if family is not None and (family.name != "PyTorch" or str(array.device).startswith("cuda")):
        return array
    try:
        # NumPy takes what PyTorch shares by DLPack for memory that may only be read.
        return array.numpy() if family is not None else view(array)
    except (BufferError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name} shares its memory by DLPack or the CUDA array interface, {type(array).__name__} does not: "
            f"{error}; convert it to NumPy, CuPy or PyTorch"
        ) from error


def operand_of(array: Any) -> Operand:
    """What there is to know of an array that was `seen`."""
    family = family_of(array)
    assert family is not None, "what was seen belongs to a library that is known"
    return family.operand(array)


def check(tensors: Sequence[Tensor], arrays: Sequence[Any], kind: str, dense: bool = True) -> None:
    """Compares arrays with what a kernel reads: its declaration says how they lie in memory.

    Args:
        tensors: The problem's tensors.
        arrays: An array for each, as `seen`.
        kind: ``cuda`` or ``cpu``: where the kernel runs.
        dense: False if gaps between elements do no harm.

    Raises:
        InputError: One has another shape, dtype, order or place than the kernel takes.
    """
    operands = [operand_of(each) for each in arrays]
    for tensor, operand in zip(tensors, operands, strict=True):
        _check_one(tensor, operand, dense)
    devices = sorted({each.device for each in operands})
    if len(devices) > 1:
        places = ", ".join(
            f"{one.name} on {other.device}" for one, other in zip(tensors, operands, strict=True)
        )
        raise InputError(f"all arrays of a call lie on one device, got {places}; bring them together")
    families = sorted({each.family for each in operands})
    if len(families) > 1:  # each of them has streams of its own
        raise InputError(
            f"all arrays of a call are of one library, got {' and '.join(families)}; convert some, e.g. "
            "by cupy.from_dlpack"
        )
    if kind_of(kind).is_host and devices != [kind]:
        raise InputError(
            f"the kernel is for the CPU, got arrays on {devices[0]}; pass arrays of the host's memory"
        )


def _check_one(tensor: Tensor, operand: Operand, dense: bool) -> None:
    name = tensor.name
    if operand.shape != tensor.shape or operand.dtype != tensor.dtype:
        raise InputError(
            f"{name} is {tensor.dtype} of shape {tensor.shape}, got {operand.dtype} of shape "
            f"{operand.shape}; pass such an array, or tune for this one"
        )
    if dense and not _is_dense(operand):
        raise InputError(f"{name} lies in memory row by row without gaps, got another order; copy it")
    if not operand.aligned:
        raise InputError(
            f"{name} begins at a multiple of 16 bytes, as configs were checked, got one in between, such as a "
            "part of an array; copy it"
        )
    if tensor.output and not operand.writable:
        raise InputError(f"{name} is written by the kernel, got an array that is read-only; pass another")


def _is_dense(operand: Operand) -> bool:
    """True for elements row by row without gaps; strides of axes of one element say nothing."""
    step = operand.itemsize
    for size, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if size > 1 and stride != step and 0 not in operand.shape:
            return False
        step *= size
    return True


def made(tensor: Tensor, like: Any) -> Any:
    """A new array for an output, of the library and on the device of another; NumPy's if there is none.

    Args:
        tensor: The output.
        like: An array as a caller passed it, or None.
    """
    family = None if like is None else family_of(like)
    if family is not None and family.name == "PyTorch":
        return like.new_empty(tensor.shape, dtype=getattr(sys.modules["torch"], tensor.dtype))
    operand = None if like is None else operand_of(seen(tensor.name, like))
    if operand is None or operand.family == "NumPy":
        return numpy.empty(tensor.shape, tensor.dtype)
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(index_of(operand.device)):
        return cupy.ndarray(tensor.shape, numpy.dtype(tensor.dtype))
