"""Runs one config of a kernel on a caller's arrays, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import InputError
from tuner.python.arguments import check, made, operand_of, seen
from tuner.python.arrays import index_of
from tuner.python.gpu_arrays import TorchFamily, family_of, given_back


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
