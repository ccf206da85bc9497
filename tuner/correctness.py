"""A problem's arrays on a device, and the check of an output against its float64 reference.

Inputs are drawn fresh from a normal distribution; outputs lie between guard bands and are filled with NaN
before each check, so that elements that were not written and writes outside are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.devices.protocol import GUARD_BYTES, Device
from tuner.errors import DeclarationError
from tuner.measurement import Error
from tuner.problem import DTYPE_BYTES, Problem, Tensor

#: The rms of so few elements says little of what their sums went through: one may be near 0 by chance.
FEW_ELEMENTS = 64
#: More draws of the inputs, for the rms of outputs with few elements; where inputs are not large.
MORE_DRAWS, MORE_DRAWS_BYTES = 8, 64 << 20

#: Every byte of a poisoned output and its guards: NaN in each floating-point format, -1 in integers.
POISON = 0xFF


class Workload:
    """Arrays, references and guards of one problem on one device.

    Attributes:
        problem: What is computed.
        arrays: Name -> array as stored, outputs too.
        references: Name of an output -> float64 array of its shape.
    """

    def __init__(self, device: Device, problem: Problem, seed: int) -> None:
        """Allocates, draws the inputs and computes the references.

        Args:
            device: Where.
            problem: What is computed.
            seed: Of the inputs.

        Raises:
            DeclarationError: The operation's reference fails.
        """
        self.problem = problem
        self._xp = device.xp
        random = device.random(seed)
        self._guarded: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        for tensor in problem.tensors:
            self.arrays[tensor.name] = (
                self._output(tensor) if tensor.output else _drawn(self._xp, random, tensor)
            )
        self.poison()
        self.references = self._reference(self.arrays)
        self._scales = self._typical_rms(random)

    def _output(self, tensor: Tensor) -> Any:
        whole = self._xp.empty(tensor.bytes + 2 * GUARD_BYTES, dtype=self._xp.uint8)
        self._guarded[tensor.name] = whole
        inside = whole[GUARD_BYTES : GUARD_BYTES + tensor.bytes]
        return inside.view(tensor.dtype).reshape(tensor.shape)

    def _typical_rms(self, random: Any) -> dict[str, float]:
        """Per output: its rms; over several draws of the inputs where it has few elements."""
        found = [{name: self._rms(value) for name, value in self.references.items()}]
        inputs = self.problem.inputs
        few = any(tensor.bytes < FEW_ELEMENTS * DTYPE_BYTES[tensor.dtype] for tensor in self.problem.outputs)
        if few and sum(tensor.bytes for tensor in inputs) <= MORE_DRAWS_BYTES:
            for _ in range(MORE_DRAWS):
                drawn = {tensor.name: _drawn(self._xp, random, tensor) for tensor in inputs}
                references = self._reference(self.arrays | drawn)
                found.append({name: self._rms(value) for name, value in references.items()})
        return {name: math.sqrt(sum(each[name] ** 2 for each in found) / len(found)) for name in found[0]}

    def _reference(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.problem.outputs
        try:
            found = self.problem.operation.reference(self._xp, self.problem, arrays)
            named = found if isinstance(found, Mapping) else {outputs[0].name: found}
            return {
                tensor.name: self._xp.asarray(named[tensor.name], dtype=self._xp.float64).reshape(tensor.shape)
                for tensor in outputs
            }
        except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
            raise DeclarationError(
                f"the reference of operation {self.problem.operation.name!r} gives each output in its shape; "
                f"for {self.problem} it fails with {type(error).__name__}: {error}; correct it"
            ) from error

    def _rms(self, values: Any) -> float:
        return math.sqrt(float((values * values).mean()))

    def arguments(self) -> Sequence[Any]:
        """Tensors, then scalars as NumPy numbers, in a kernel's order."""
        import numpy

        scalars = [numpy.dtype(scalar.dtype).type(scalar.value) for scalar in self.problem.scalars]
        return [*(self.arrays[tensor.name] for tensor in self.problem.tensors), *scalars]

    def poison(self) -> None:
        """Fills every output and its guards."""
        for whole in self._guarded.values():
            whole.fill(POISON)

    def check(self) -> tuple[Error, str]:
        """Compares the outputs with the references.

        An element is right when |out - ref| <= tolerance * (rms(ref) + |ref|), see `Problem.tolerance`; the rms
        of an output of few elements is over several draws of the inputs.

        Returns:
            The worst error, and what is wrong: empty when all is right.
        """
        worst = Error(0.0, 0.0, 0.0, 0.0)
        for tensor in self.problem.outputs:
            error = self._compare(tensor.name)
            # Written so that a NaN counts as the worst.
            if not error.bound_ratio <= worst.bound_ratio:
                worst = error
        return worst, self._complaint(worst)

    def _compare(self, name: str) -> Error:
        xp, reference, scale = self._xp, self.references[name], self._scales[name]
        difference = xp.abs(self.arrays[name] - reference)
        largest = float(difference.max())
        total = math.sqrt(float((difference * difference).mean()))
        # Integers are exact: any difference is wrong, and none is right.
        allowed = xp.maximum(self.problem.tolerance * (scale + xp.abs(reference)), 1e-300)
        ratio = float((difference / allowed).max())
        unit = scale or 1.0
        mean = float(difference.mean())
        return Error(largest / unit, total / unit, bound_ratio=ratio, mean_rel=mean / unit)

    def _complaint(self, worst: Error) -> str:
        for name, whole in self._guarded.items():
            low, high = whole[:GUARD_BYTES], whole[-GUARD_BYTES:]
            if not bool((low == POISON).all() & (high == POISON).all()):
                return f"wrote outside of {name}"
        if math.isnan(worst.bound_ratio):
            return "left elements unwritten, or computed NaN"
        if worst.bound_ratio > 1:
            return (
                f"largest error {worst.max_rel:.3g} of the result's rms, {worst.bound_ratio:.3g} times what "
                "rounding explains"
            )
        return ""


def _drawn(xp: Any, random: Any, tensor: Tensor) -> Any:
    if tensor.dtype in ("float32", "float64"):
        return random.standard_normal(tensor.shape, dtype=tensor.dtype)
    if tensor.dtype == "float16":
        return random.standard_normal(tensor.shape, dtype="float32").astype("float16")
    high = {"uint8": 256}.get(tensor.dtype, 1000)
    assert tensor.dtype in DTYPE_BYTES
    return random.integers(0, high, tensor.shape).astype(tensor.dtype)
