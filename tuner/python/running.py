"""Runs kernels in this process: compiled and loaded for a device, then on arrays of a caller's library."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem, Tensor
from tuner.declare.space import Config
from tuner.devices.detect import is_on_host, kind_of, language_of
from tuner.devices.protocol import DeviceKind
from tuner.errors import InputError
from tuner.extras import load
from tuner.python import arrays as families
from tuner.python.arrays import KEY_OF, NUMPY, Family, family_of
from tuner.python.decisions import device_info, keep

#: Runs a kernel on stored arrays, in the order of the problem's tensors.
Runs = Callable[..., None]
#: Hash of a rendered CPU kernel -> its entry function, ready to run: shapes share what is compiled.
_ENTRIES: dict[str, Callable[..., Any]] = {}


class ReadyKernel:
    """A rendered kernel, compiled (or taken from the cache) and loaded for one device.

    Attributes:
        problem: What it computes.
        loaded: What launches it on a GPU; None on the host.
    """

    def __init__(self, rendered: Rendered, problem: Problem, device: DeviceInfo, spec: str) -> None:
        """Compiles and loads it.

        Args:
            rendered: The kernel.
            problem: What it computes.
            device: What it is compiled for.
            spec: ``cpu`` or ``cuda:0``: where it runs.

        Raises:
            CompileFailed: The kernel does not compile.
        """
        self.loaded: Any = None
        self.problem = problem
        if kind_of(spec).is_host:
            from tuner.devices.cpu.numba import ready

            known = _ENTRIES.get(rendered.hash)
            self._entry = known or _ENTRIES.setdefault(rendered.hash, ready(rendered, problem))
        else:
            loaded = load(language_of(rendered.target).loader)
            self.loaded = loaded(rendered, problem, device, families.index_of(spec))

    def runs(self, family: Family, numbers: Mapping[str, Any] | None = None, writable: bool = True) -> Runs:
        """What runs it on arrays of a library.

        Args:
            family: The library.
            numbers: Values for some of the problem's scalars, by name.
            writable: False if some arrays may only be read.
        """
        scalars = self._scalars(numbers or {})
        if self.loaded is not None:
            return family.runs(self.loaded.with_scalars(scalars))
        entry, values = self._entry, tuple(scalar.item() for scalar in scalars)
        if writable:
            return (lambda *arrays: entry(*arrays, *values)) if values else entry
        # Numba would compile anew for arrays that cannot be written.
        return lambda *arrays: entry(*map(_as_writable, arrays), *values)

    def launches(self, family: Family) -> Runs | None:
        """What launches it at addresses of a library's arrays; None for arrays of the host."""
        return None if self.loaded is None else family.launches(self.loaded.with_scalars(self._scalars({})))

    def _scalars(self, given: Mapping[str, Any]) -> list[Any]:
        """NumPy's numbers for the problem's scalars."""
        return [
            numpy.dtype(scalar.dtype).type(given.get(scalar.name, scalar.value))
            for scalar in self.problem.scalars
        ]


def _as_writable(array: Any) -> Any:
    """An array, or its memory described as if it may be written; kernels only read their inputs."""
    if array.flags.writeable:
        return array
    interface = array.__array_interface__
    writable = interface | {"data": (interface["data"][0], False)}
    return numpy.asarray(SimpleNamespace(__array_interface__=writable, array=array))  # which keeps the memory


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
        self.numbers = tuple(scalar.name for scalar in problem.scalars if scalar.name not in problem.dims)
        self._rendered, self._kind = render(kernel, problem, Config(config)), kind_of(device.kind)
        self._spec = spec if spec.startswith(f"{device.kind}:") else self._kind.first
        self._ready: dict[str, ReadyKernel] = {}
        self._calls: dict[Hashable, Runs] = {}
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
        name, like = next(iter(given.items()), ("", None))
        results = {
            output.name: given[output.name] if output.name in given else made(output, like, name)
            for output in self.problem.outputs
        }
        tensors = [(given | results)[tensor.name] for tensor in self.problem.tensors]
        key = key_of(tensors), tuple(numbers.items())
        run = self._calls.get(key)
        if run is None:
            views = views_of(self.problem, tensors, self._kind)
            run = self.run_for(views, numbers)
            if key[0] is not None and all(map(operator.is_, views, tensors)):
                keep(self._calls, key, run)
            tensors = views
        run(*tensors)
        if like is not None and family_of(like) is None:
            results |= {
                name: families.given_back(array, like) for name, array in results.items() if name not in given
            }
        return next(iter(results.values())) if len(results) == 1 else tuple(results.values())

    def _by_name(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        inputs, every = ([one.name for one in of] for of in (self.problem.inputs, self.problem.tensors))
        written = [tensor.name for tensor in self.problem.outputs]
        names = every if len(arrays) > len(inputs) else inputs
        if len(arrays) != len(names) or not named.keys() <= set(written):
            may, got = ", ".join((*written, *self.numbers)), ", ".join(named) or "nothing"
            raise InputError(
                f"{self.problem} takes {', '.join(inputs)}, and maybe {may} by name; got {len(arrays)} arrays, "
                f"and {got} by name"
            )
        return dict(zip(names, arrays, strict=True)) | dict(named)

    def run_for(self, arrays: Sequence[Any], numbers: Mapping[str, float]) -> Runs:
        """What runs the kernel on arrays that were checked, and on others that lie as these do.

        Args:
            arrays: One for each of the problem's tensors, as `views_of` returns them.
            numbers: Values for some of `numbers`.
        """
        family, on_host = family_of(arrays[0]), self._kind.is_host
        assert family is not None, "what was checked belongs to a library that is known"
        if family is NUMPY and not on_host:
            return partial(self._run_copies, dict(numbers))
        device = self._kind.first if on_host else family.operand(arrays[0]).device
        writable = not on_host or all(array.flags.writeable for array in arrays)
        return family.at_home(self._on(device).runs(family, numbers, writable), device)

    def _run_copies(self, numbers: Mapping[str, float], *arrays: Any) -> None:
        """By way of the GPU's memory; arrays of NumPy hold the outputs once it returns."""
        from tuner.devices.cuda.calling import to_gpu, to_host

        copies = [to_gpu(array, families.index_of(self._spec)) for array in arrays]
        self.run_for(copies, numbers)(*copies)
        for tensor, copy, array in zip(self.problem.tensors, copies, arrays, strict=True):
            if tensor.output:
                to_host(copy, array)

    def _on(self, device: str) -> ReadyKernel:
        """The kernel on a device, compiled and loaded at the first call."""
        if device not in self._ready:
            with self._loading:
                if device not in self._ready:
                    # The arrays may lie on a GPU of another model than the one that it was tuned on.
                    ready = ReadyKernel(self._rendered, self.problem, device_info(device), device)
                    self._ready[device] = ready
        return self._ready[device]


def key_of(values: Iterable[Any]) -> tuple[Hashable, ...] | None:
    """All that a call may depend on of some arrays; None if one is of no library that is known by its type."""
    try:
        return tuple([KEY_OF[type(value)](value) for value in values])
    except (KeyError, RuntimeError):
        return None


def device_of(values: object, target: str) -> str:
    """The device that arrays are on, among other arguments; the first GPU for a CUDA kernel on host arrays."""
    for value in values if isinstance(values, Iterable) else ():
        family = family_of(value)
        if family is not None and not is_on_host(family.operand(value).device):
            return family.operand(value).device
    return kind_of(target).first


def view_of(name: str, array: Any) -> Any:
    """An array of NumPy, of CuPy or of PyTorch on a GPU, on the memory of any array.

    Args:
        name: What messages call it.
        array: An array of one of these, or of a library that shares its memory.

    Raises:
        InputError: It is no array, carries gradients, or does not share its memory.
    """
    if not families.is_array(array):
        raise InputError(f"{name} is an array, got {type(array).__name__}; pass one")
    if getattr(array, "requires_grad", False):
        raise InputError(f"{name} carries gradients, which no kernel sees; pass {name}.detach()")
    family = family_of(array)
    if family is not None and (family.name != "PyTorch" or str(array.device).startswith("cuda")):
        return array
    try:
        # NumPy takes what PyTorch shares by DLPack for memory that may only be read.
        return array.numpy() if family is not None else families.view(array)
    except (BufferError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name} shares its memory by DLPack or the CUDA array interface, {type(array).__name__} does not: "
            f"{error}; convert it to NumPy, CuPy or PyTorch"
        ) from error


def views_of(problem: Problem, arrays: Sequence[Any], kind: DeviceKind, dense: bool = True) -> list[Any]:
    """Arrays as a kernel is handed them; its declaration says how they lie in memory.

    Args:
        problem: What it computes.
        arrays: One for each of its tensors, as a caller passed them.
        kind: Where the kernel runs.
        dense: False if gaps between elements do no harm.

    Raises:
        InputError: One has another shape, dtype, order or place than the kernel takes.
    """
    tensors = problem.tensors
    views = [view_of(tensor.name, array) for tensor, array in zip(tensors, arrays, strict=True)]
    operands = {tensor: families.operand_of(view) for tensor, view in zip(tensors, views, strict=True)}
    for tensor, operand in operands.items():
        if wrong := _wrong(tensor, operand, dense):
            raise InputError(f"{tensor.name} {wrong}")
    places = {tensor.name: f"{operand.family} on {operand.device}" for tensor, operand in operands.items()}
    at = next(iter(operands.values())).device
    if len(set(places.values())) > 1 or (kind.is_host and at != kind.first):
        got = ", ".join(f"{name} of {place}" for name, place in places.items())
        where = f"one device{', the CPU,' if kind.is_host else ''} and are of one library"
        raise InputError(f"all arrays of a call lie on {where}, got {got}; bring them together")
    return views


def _wrong(tensor: Tensor, operand: families.Operand, dense: bool) -> str:
    """How an array is not as a kernel takes it, and what to do; empty if it is."""
    if operand.shape != tensor.shape or operand.dtype != tensor.dtype:
        got = f"got {operand.dtype} of shape {operand.shape}"
        return f"is {tensor.dtype} of shape {tensor.shape}, {got}; pass such an array, or tune for this one"
    if dense and not operand.is_row_major:
        return "lies in memory row by row without gaps, got another order; copy it"
    if not operand.aligned:
        return "begins at a multiple of 16 bytes, as configs were checked, got a part of an array; copy it"
    if tensor.output and not operand.writable:
        return "is written by the kernel, got an array that is read-only; pass another"
    return ""


def made(tensor: Tensor, like: Any, name: str) -> Any:
    """A new array for an output, of the library and on the device of another; NumPy's if there is none.

    Args:
        tensor: The output.
        like: An array as a caller passed it, or None.
        name: What messages call that array.
    """
    family = None if like is None else family_of(like)
    if family is not None and family.name == "PyTorch":
        return like.new_empty(tensor.shape, dtype=getattr(sys.modules["torch"], tensor.dtype))
    operand = None if like is None else families.operand_of(view_of(name, like))
    if operand is None or operand.family == "NumPy":
        return numpy.empty(tensor.shape, tensor.dtype)
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(families.index_of(operand.device)):
        return cupy.ndarray(tensor.shape, numpy.dtype(tensor.dtype))
