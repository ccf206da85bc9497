"""A problem's arrays on a device, and the check of a run on them.

Inputs are drawn fresh from a normal distribution and compared with what was drawn after a run; outputs lie
between guard bands and are filled with NaN before each check, so that elements that were not written and writes
outside are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.declare.problem import DTYPE_BYTES, Problem, Tensor
from tuner.devices.protocol import GUARD_BYTES, Device
from tuner.errors import DeclarationError
from tuner.measuring.inputs import Inputs, Offsets, bits, drawn, fingerprint
from tuner.measuring.verification import Expected, complaint, rms, worst_of
from tuner.results.measurement import Error

#: The rms of so few elements says little of what their sums went through: one may be near 0 by chance.
FEW_ELEMENTS = 64
#: More draws of the inputs, for the rms of outputs with few elements; where inputs are not large.
MORE_DRAWS, MORE_DRAWS_BYTES = 8, 64 << 20

#: Every byte of a poisoned output and its guards: NaN in each floating-point format, -1 in integers.
POISON = 0xFF
STALE = "returned a stale result: the outputs of other inputs than those of this run"


@dataclass(frozen=True)
class Draw:
    """Inputs whose outputs are known.

    Attributes:
        offsets: Where the inputs lie in their pools.
        references: Name of an output -> float64 array of its shape.
        fingerprints: Of the references, in their order.
    """

    offsets: Offsets
    references: Mapping[str, Any]
    fingerprints: tuple[int, ...]


class Workload:
    """Arrays, references and guards of one problem on one device.

    Attributes:
        problem: What is computed.
        inputs: The inputs' arrays, and what is placed in them.
        arrays: Name -> array as stored, outputs too.
        first: The draw that a config is verified on before it is timed.
    """

    def __init__(self, device: Device, problem: Problem, seed: int, checked: bool = True) -> None:
        """Allocates, draws the inputs and computes the references.

        Args:
            device: Where.
            problem: What is computed.
            seed: Of the inputs.
            checked: False to make no references: only the library is to be timed.

        Raises:
            DeclarationError: The operation's reference fails.
        """
        self.problem = problem
        self._xp = device.xp
        generator = device.random(seed)
        self.inputs = Inputs(self._xp, problem.inputs, generator, seed)
        self._guarded: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        for tensor in problem.tensors:
            self.arrays[tensor.name] = (
                self._output(tensor) if tensor.output else self.inputs.arrays[tensor.name]
            )
        self.poison()
        self.first = self._present = Draw(self.inputs.first, {}, ())
        self._more_rms: list[dict[str, float]] = []
        if checked:
            self.first = self._present = self._draw(self.inputs.first)
            self._more_rms = self._rms_of_more_draws(generator)

    def _output(self, tensor: Tensor) -> Any:
        whole = self._xp.empty(tensor.bytes + 2 * GUARD_BYTES, dtype=self._xp.uint8)
        self._guarded[tensor.name] = whole
        inside = whole[GUARD_BYTES : GUARD_BYTES + tensor.bytes]
        return inside.view(tensor.dtype).reshape(tensor.shape)

    def _draw(self, offsets: Offsets) -> Draw:
        """What is placed in the inputs, with its references."""
        references = self._reference(self.arrays)
        return Draw(offsets, references, tuple(fingerprint(bits(each)) for each in references.values()))

    def _rms_of_more_draws(self, generator: Any) -> list[dict[str, float]]:
        """The rms of each output for several draws of the inputs, where it has few elements."""
        inputs = self.problem.inputs
        few = any(tensor.bytes < FEW_ELEMENTS * DTYPE_BYTES[tensor.dtype] for tensor in self.problem.outputs)
        if not few or sum(tensor.bytes for tensor in inputs) > MORE_DRAWS_BYTES:
            return []
        found = []
        for _ in range(MORE_DRAWS):
            more = {tensor.name: drawn(generator, tensor.dtype, tensor.shape) for tensor in inputs}
            references = self._reference(self.arrays | more)
            found.append({name: rms(value) for name, value in references.items()})
        return found

    def _reference(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.problem.outputs
        try:
            found = self.problem.operation.reference(self._xp, self.problem, arrays)
            named = found if isinstance(found, Mapping) else {outputs[0].name: found}
            return {tensor.name: self._own(named[tensor.name]).reshape(tensor.shape) for tensor in outputs}
        except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
            raise DeclarationError(
                f"the reference of operation {self.problem.operation.name!r} gives each output in its shape; "
                f"for {self.problem} it fails with {type(error).__name__}: {error}; correct it"
            ) from error

    def _own(self, reference: Any) -> Any:
        """A reference in float64, and in memory of its own: that of the inputs will hold other numbers."""
        found = self._xp.asarray(reference, dtype=self._xp.float64)
        shared = any(self._xp.may_share_memory(found, each) for each in self.inputs.arrays.values())
        # In rows, as it is read in pieces.
        return found.copy() if shared else self._xp.ascontiguousarray(found)

    @property
    def references(self) -> Mapping[str, Any]:
        """Name of an output -> float64 array of its shape, for the draw that was placed last."""
        return self._present.references

    @cached_property
    def second(self) -> Draw:
        """Another draw with its references: what the timed run is checked on that is chosen at random."""
        self.inputs.shuffle()
        return self._draw(self.inputs.placed)

    def draw_anew(self) -> Draw:
        """Makes another second draw, which no kernel has seen."""
        # The memory of the one before it first.
        self.__dict__.pop("second", None)
        self._present = self.first
        return self.second

    def arguments(self) -> Sequence[Any]:
        """Tensors, then scalars as NumPy numbers, in a kernel's order."""
        import numpy

        scalars = [numpy.dtype(scalar.dtype).type(scalar.value) for scalar in self.problem.scalars]
        return [*(self.arrays[tensor.name] for tensor in self.problem.tensors), *scalars]

    def begin(self, draw: Draw) -> None:
        """Places a draw's inputs, whatever was done to them, and poisons the outputs."""
        self._present = draw
        self.inputs.place(draw.offsets)
        self.poison()

    def begin_again(self) -> None:
        """Turns back what was flipped of the draw that is placed, and poisons the outputs."""
        self.inputs.unflip()
        self.poison()

    def poison(self) -> None:
        """Fills every output and its guards."""
        for whole in self._guarded.values():
            whole.fill(POISON)

    def check(self) -> tuple[Error, str]:
        """Compares the outputs with the references of the draw that was placed last, and the inputs with it.

        An element is right when |out - ref| <= tolerance * (rms(ref) + |ref|), see `Problem.tolerance`; the rms
        of an output of few elements is over several draws of the inputs.

        Returns:
            The worst error, and what is wrong: empty when all is right.
        """
        worst = self._worst(self._present)
        changed = self.inputs.changed()
        if changed:
            return worst, wrote_into(changed)
        return worst, self._outside() or self._stale(complaint(worst))

    def _worst(self, draw: Draw) -> Error:
        return worst_of(
            [
                self._expected(name, values).error_of(self._xp, self.arrays[name])
                for name, values in draw.references.items()
            ]
        )

    def _expected(self, name: str, values: Any) -> Expected:
        squares = [rms(values) ** 2, *(each[name] ** 2 for each in self._more_rms)]
        return Expected(values, math.sqrt(sum(squares) / len(squares)), self.problem.tolerance)

    def _outside(self) -> str:
        for name, whole in self._guarded.items():
            low, high = whole[:GUARD_BYTES], whole[-GUARD_BYTES:]
            if not bool((low == POISON).all() & (high == POISON).all()):
                return f"wrote outside of {name}"
        return ""

    def _stale(self, wrong: str) -> str:
        """The complaint, or that the outputs are those of another draw."""
        others = [draw for draw in self._known if draw is not self._present]
        return STALE if wrong and any(self._worst(each).bound_ratio <= 1 for each in others) else wrong

    @property
    def _known(self) -> list[Draw]:
        return [self.first, *([self.second] if "second" in self.__dict__ else [])]

    def sound(self) -> bool:
        """False where pools or references are not what they were: what was judged by them may be innocent."""
        return self.inputs.sound() and all(
            draw.fingerprints == tuple(fingerprint(bits(each)) for each in draw.references.values())
            for draw in self._known
        )


def wrote_into(name: str) -> str:
    """What is said of a config that changed an input."""
    return f"wrote into the input {name}, which kernels only read"
