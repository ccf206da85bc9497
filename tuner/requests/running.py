"""Runs one config of a kernel on a caller's arrays, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

from tuner.callables.arrays import index_of
from tuner.callables.families import family_of
from tuner.callables.foreign import view
from tuner.callables.gpu_arrays import TorchFamily
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, render
from tuner.declare.problem import Problem, Tensor
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.requests.arguments import is_array


class Runner:
    """A kernel with its config, ready to run on arrays of its problem's shapes.

    Attributes:
        problem: The problem that it computes.
    """

    def __init__(self, kernel: Kernel, problem: Problem, config: Mapping[str, Any], device: DeviceInfo) -> None:
        """Keeps what is to run; it is compiled at the first call.

        Args:
            kernel: The kernel.
            problem: What it computes.
            config: A legal config.
            device: Where it runs.
        """
        self.problem = problem
        self._rendered = render(kernel, problem, Config(config))
        self._device = device
        self._entry: Callable[..., Any] | None = None
        self._loaded: dict[int, Any] = {}

    def __call__(self, *arrays: Any, **outputs: Any) -> Any:
        """Runs the kernel.

        Args:
            arrays: The inputs, in the order of the problem's tensors; or all tensors in that order.
            outputs: Arrays to write, by name; those left out are made.

        Returns:
            The output, or a tuple of several, of the library that the inputs are of.

        Raises:
            InputError: An array is missing, or has another shape, dtype or layout than the problem says.
        """
        tensors, written = self.problem.tensors, [each.name for each in self.problem.outputs]
        inputs = [each.name for each in self.problem.inputs]
        names = [each.name for each in tensors] if len(arrays) == len(tensors) else inputs
        unknown = [name for name in outputs if name not in written]
        if len(arrays) != len(names) or unknown:
            got = f"the name {unknown[0]!r}" if unknown else f"{len(arrays)} arrays"
            raise InputError(
                f"{self.problem} takes {', '.join(inputs)}, and maybe {', '.join(written)} by name; got {got}"
            )
        given = dict(zip(names, arrays, strict=True)) | outputs
        for each in tensors:
            if each.name not in given:
                given[each.name] = _empty(each, arrays[0] if arrays else None)
            _check(each, given[each.name])
        self.run(*(given[each.name] for each in tensors))
        found = tuple(given[name] for name in written)
        return found[0] if len(found) == 1 else found

    def run(self, *arrays: Any) -> None:
        """Runs the kernel on all tensors, in the problem's order, unchecked."""
        if self._device.kind == "cpu":
            self._on_host(*map(_viewed, arrays))
            return
        first = _viewed(arrays[0])
        if not hasattr(first, "data") or not hasattr(first.data, "device_id"):
            raise InputError(
                f"{self.problem} runs on arrays of its GPU, got one of NumPy; pass arrays of CuPy or PyTorch"
            )
        index = index_of(f"cuda:{first.data.device_id}")
        if index not in self._loaded:
            from tuner.devices.calling import Loaded

            self._loaded[index] = Loaded(self._rendered, self.problem, self._device, index)
        found = family_of(arrays[0])
        if isinstance(found, TorchFamily):  # on PyTorch's stream, not on CuPy's
            addresses = (found.address(each) for each in arrays)
            self._loaded[index].run_at(found.stream(arrays[0]), *addresses)
            return
        with first.device:
            self._loaded[index].run(*map(_viewed, arrays))

    def _on_host(self, *arrays: Any) -> None:
        if self._entry is None:
            from tuner.devices.numba_source import ready

            self._entry = ready(self._rendered, self.problem)
        scalars = (numpy.dtype(each.dtype).type(each.value).item() for each in self.problem.scalars)
        self._entry(*arrays, *scalars)


def _viewed(array: Any) -> Any:
    """An array of NumPy or CuPy on the memory of any."""
    found = family_of(array)
    return array if found is not None and found.name in ("NumPy", "CuPy") else view(array)


def _empty(tensor: Tensor, like: Any) -> Any:
    found = None if like is None else family_of(like)
    if found is None or found.name == "NumPy":
        return numpy.empty(tensor.shape, tensor.dtype)
    if found.name == "CuPy":
        import sys

        return sys.modules["cupy"].empty(tensor.shape, tensor.dtype)
    return like.new_empty(tensor.shape, dtype=getattr(__import__("torch"), tensor.dtype))


def _check(tensor: Tensor, array: Any) -> None:
    """Kernels read memory as the declaration says it lies, so that nothing else may be passed."""
    if not is_array(array):
        raise InputError(f"{tensor.name} is an array, got {type(array).__name__}; pass one")
    seen = _viewed(array)
    if tuple(seen.shape) != tensor.shape or str(seen.dtype) != tensor.dtype:
        raise InputError(
            f"{tensor.name} is {tensor.dtype} of shape {tensor.shape}, got {seen.dtype} of shape "
            f"{tuple(seen.shape)}; pass such an array, or tune for this one"
        )
    if not seen.flags.c_contiguous:
        raise InputError(f"{tensor.name} lies in memory row by row without gaps, got another order; copy it")
