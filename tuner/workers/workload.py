"""A problem's arrays on a device, and the check of a run on them.

Inputs are drawn fresh from a normal distribution, and compared with their original values after a run. Outputs
lie between guard bands. Before each run they are poisoned, by turns with NaN, huge numbers of either sign and
what looks like a result. So unwritten elements, writes out of bounds and kernels that read what an output held
before are found.
"""

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy

from tuner.declare.problem import DTYPE_BYTES, SIGNIFICANDS, Problem, Tensor
from tuner.devices.comparing import checksums, differences, fingerprint, unequal
from tuner.devices.protocol import GUARD_BYTES, Arrays, Device
from tuner.errors import DeclarationError
from tuner.results.measurement import Error
from tuner.workers.inputs import Inputs, Offsets, bits, infinity_of, numpy_dtype


def worst_of(errors: list[Error]) -> Error:
    """Returns the error that exceeds its bound most; NaN counts as the worst."""
    none = Error(0.0, 0.0, 0.0, 0.0)
    return max(errors, key=lambda error: (math.isnan(error.bound_ratio), error.bound_ratio), default=none)


def complaint(worst: Error) -> str:
    """Describes what is wrong with an output; empty if nothing is."""
    if math.isnan(worst.bound_ratio):
        return UNWRITTEN
    if worst.bound_ratio > 1:
        return (
            f"largest error {worst.max_rel:.3g} of the result's rms, {worst.bound_ratio:.3g} times what "
            "rounding explains"
        )
    return ""


def outputs_of(xp: Any, problem: Problem, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name of an output -> what the operation's reference makes of arrays."""
    values = problem.operation.reference(xp, problem, arrays)
    return values if isinstance(values, Mapping) else {problem.outputs[0].name: values}


def rms(values: Any) -> float:
    """Root of the mean square."""
    return math.sqrt(float((values * values).mean()))


#: The rms of this few elements says little about their rounding errors: one may be near 0 by chance.
FEW_ELEMENTS = 64
#: Number of further draws of the inputs for the rms of outputs with few elements, unless inputs are large.
MORE_DRAWS, MORE_DRAWS_BYTES = 8, 64 << 20

#: Every byte of a guard, and of an output that is poisoned with NaN: NaN in each floating-point format, -1 in
#: integers.
POISON = 0xFF
#: What an output holds before a run, by turns. A kernel may ignore NaN, as fmax does, or return if it finds a
#: number.
NAN, HUGE, NEGATIVE, PLAUSIBLE = POISONS = ("NaN", "huge numbers", "huge negative numbers", "another result")
#: Elements that are compared after a timed run, at random places; there are so many sets of places.
PROBES, PROBE_SETS = 32, 64
#: Share of timed runs whose inputs have a reference; the others have inputs that no run had before.
KNOWN = 7 / 8
UNWRITTEN = "left elements unwritten, or computed NaN"
STALE = "returned a stale result: outputs of other inputs than this run's"


@dataclass(frozen=True)
class Draw:
    """A draw of the inputs with known outputs.

    Attributes:
        offsets: Offsets of the inputs in their pools.
        references: Name of an output -> float64 array of its shape.
        fingerprints: Fingerprints of the references, in their order.
        rms: Name of an output -> root of the mean square of its reference.
    """

    offsets: Offsets
    references: Mapping[str, Any]
    fingerprints: tuple[int, ...]
    rms: Mapping[str, float]


class Workload(Arrays):
    """Arrays, references and guards of one problem on one device.

    Attributes:
        problem: What is computed.
        inputs: The inputs' arrays and pools.
        arrays: Name -> array as stored, including outputs.
        first: The draw on which a config is verified before it is timed.
    """

    def __init__(
        self, device: Device, problem: Problem, seed: int, checked: bool = True, generator: Any = None
    ) -> None:
        """Allocates, draws the inputs and computes the references.

        Args:
            device: Where.
            problem: What is computed.
            seed: Seed of the inputs.
            checked: False to make no references: only the library is to be timed.
            generator: Of the device's, to go on with; one begun with the seed when None. To begin one costs a
                GPU some 50 ms.

        Raises:
            DeclarationError: The operation's reference fails.
        """
        self.problem = problem
        self._xp = device.xp
        generator = device.random(seed) if generator is None else generator
        self.inputs = Inputs(self._xp, problem, generator, seed)
        self._guarded: dict[str, Any] = {}
        self._guard = self._xp.full(GUARD_BYTES, POISON, dtype=self._xp.uint8)
        self._chance = random.Random(seed)
        self._kinds = itertools.cycle((HUGE, PLAUSIBLE, NEGATIVE, NAN))
        self._kind, self._set = NAN, 0
        #: The draw of the last timed run; None if its inputs have no reference.
        self._timed: Draw | None = None
        outputs = {tensor.name: self._output(tensor) for tensor in problem.outputs}
        self.arrays = self.inputs.arrays | outputs
        sets = numpy.random.default_rng(seed)
        self._places = {
            name: self._xp.asarray(sets.integers(0, max(array.size, 1), (PROBE_SETS, PROBES)))
            for name, array in outputs.items()
        }
        self.poison()
        self.first = self._present = Draw(self.inputs.first, {}, (), {})
        self._more_rms: list[dict[str, float]] = []
        self._seed = seed
        if checked:
            self.first = self._present = self._draw(self.inputs.first)
            self._more_rms = self._rms_of_more_draws(generator)

    def _output(self, tensor: Tensor) -> Any:
        """An output between its guards."""
        whole = self._guarded[tensor.name] = self._xp.empty(tensor.bytes + 2 * GUARD_BYTES, dtype="uint8")
        inside = whole[GUARD_BYTES : GUARD_BYTES + tensor.bytes]
        return inside.view(tensor.dtype).reshape(tensor.shape)

    def _draw(self, offsets: Offsets) -> Draw:
        """Returns the current inputs as a draw, with their references."""
        references = self._reference(self.arrays)
        rms_of = {name: rms(values) for name, values in references.items()}
        return Draw(offsets, references, self._fingerprints(references), rms_of)

    def _fingerprints(self, references: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(checksums(self._xp, [bits(values) for values in references.values()]))

    def _rms_of_more_draws(self, generator: Any) -> list[dict[str, float]]:
        """Returns the rms of each output that has few elements, over several draws of the inputs."""
        inputs = self.problem.inputs
        few = any(tensor.bytes < FEW_ELEMENTS * DTYPE_BYTES[tensor.dtype] for tensor in self.problem.outputs)
        if not few or self.problem.operation.fixed or sum(tensor.bytes for tensor in inputs) > MORE_DRAWS_BYTES:
            return []
        seeds = range(self._seed + 1, self._seed + 1 + MORE_DRAWS)
        draws = (Inputs(self._xp, self.problem, generator, seed).arrays for seed in seeds)
        references = (self._reference({**self.arrays, **more}) for more in draws)
        return [{name: rms(values) for name, values in outputs.items()} for outputs in references]

    def _reference(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        problem = self.problem
        try:
            values = outputs_of(self._xp, problem, arrays)
            return {
                tensor.name: self._own(values[tensor.name]).reshape(tensor.shape) for tensor in problem.outputs
            }
        except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
            raise DeclarationError(
                f"the reference of operation {problem.operation.name!r} gives each output in its shape; "
                f"for {problem} it fails with {type(error).__name__}: {error}; correct it"
            ) from error

    def _own(self, reference: Any) -> Any:
        """Returns a reference in float64 and in memory of its own, because the inputs' memory will change."""
        values = self._xp.asarray(reference, dtype=self._xp.float64)
        shared = any(self._xp.may_share_memory(values, array) for array in self.inputs.arrays.values())
        # Row-major, because it is read in pieces.
        return values.copy() if shared else self._xp.ascontiguousarray(values)

    @property
    def references(self) -> Mapping[str, Any]:
        """Name of an output -> float64 array of its shape, for the current draw."""
        return self._present.references

    @cached_property
    def second(self) -> Draw:
        """A second draw with its references, for checking a randomly chosen timed run."""
        self.inputs.shuffle()
        return self._draw(self.inputs.placed)

    def draw_anew(self) -> Draw:
        """Replaces the second draw by one that no kernel has run on."""
        # Free the memory of the previous one first.
        self.__dict__.pop("second", None)
        self._present = self.first
        return self.second

    def begin(self, draw: Draw, poison: str = NAN) -> None:
        """Places a draw's inputs, even if they were changed, and poisons the outputs.

        Args:
            draw: The inputs.
            poison: What the outputs hold then, one of `POISONS`.
        """
        self._present = draw
        self.inputs.place(draw.offsets)
        self.poison()
        if poison != NAN:
            self._fill(poison)

    def begin_fixed(self, kind: str, poison: str = NAN) -> None:
        """Fills the inputs with fixed numbers, see `fixed_cells`, and poisons the outputs."""
        self.inputs.place_fixed(kind)
        self._fill(poison)

    def fingerprints(self) -> tuple[int, ...]:
        """Of each output a hash of its bits, on the device; all NaNs are one."""
        return tuple(
            fingerprint(self._xp, bits(self.arrays[tensor.name]), infinity_of(tensor.dtype))
            for tensor in self.problem.outputs
        )

    def begin_again(self) -> None:
        """Undoes flips in the current draw, and poisons the outputs."""
        self.inputs.unflip()
        self.poison()

    def poison(self) -> None:
        """Poisons every output with NaN, and its guards."""
        for whole in self._guarded.values():
            whole.fill(POISON)

    def _fill(self, kind: str) -> None:
        """Poisons the outputs; guards stay as they are, and are compared after the last run."""
        for tensor in self.problem.outputs:
            cells = bits(self.arrays[tensor.name])
            if kind == PLAUSIBLE:
                result = self._present.references[tensor.name].reshape(-1)[::-1]
                self._xp.copyto(self.arrays[tensor.name].reshape(-1), result, casting="unsafe")
            else:
                cells.fill(poison_cell(kind, tensor.dtype))

    def before_timed(self, cold: bool) -> None:
        """Prepares a timed run, outside of its timing: inputs that are known or not, and poisoned outputs.

        In the regimes without a flush, whole copies would leave other data in the caches than a run does. There
        one element of each input changes, or none, and a few elements of the outputs are poisoned.

        Args:
            cold: True for the regimes with a flush.
        """
        kind = next(self._kinds)
        self._kind = HUGE if kind == PLAUSIBLE and not cold else kind
        is_known = self._kind == PLAUSIBLE or self.problem.operation.fixed or self._chance.random() < KNOWN
        self._set = self._chance.randrange(PROBE_SETS)
        if cold:
            draw = self._chance.choice(self._known)
            if is_known:
                self.inputs.place(draw.offsets)
                self._present = draw
            else:
                self.inputs.shuffle()
            self._fill(self._kind)
            self._timed = draw if is_known else None
            return
        (self.inputs.unflip if is_known else self.inputs.flip)()
        self._timed = self._present if is_known else None
        for tensor in self.problem.outputs:
            places = self._places[tensor.name][self._set]
            bits(self.arrays[tensor.name])[places] = poison_cell(self._kind, tensor.dtype)

    def after_timed(self, allowance: float = 1.0) -> str:
        """What is wrong with the last timed run at a few elements at random places; empty if nothing is.

        They are compared with the reference if the run's inputs are known, else with what they held before.

        Args:
            allowance: So many times the tolerance is allowed.
        """
        for tensor in self.problem.outputs:
            places = self._places[tensor.name][self._set]
            cells = on_host(self._xp, bits(self.arrays[tensor.name])[places])
            if self._timed is not None and self._timed.references:
                wrong = self._wrong_at(tensor, cells, on_host(self._xp, places), allowance)
                if wrong:
                    return wrong
            elif tensor.dtype in SIGNIFICANDS and (cells == poison_cell(self._kind, tensor.dtype)).any():
                return UNWRITTEN
        return ""

    def _wrong_at(self, tensor: Tensor, cells: Any, places: Any, allowance: float) -> str:
        """What is wrong with some elements of an output; empty if nothing is."""
        assert self._timed is not None
        values = cells.view(numpy_dtype(tensor.dtype)).astype(numpy.float64)
        wrong = PROBES - self._agreeing(self._timed, tensor.name, values, places, allowance)
        if not wrong:
            return ""
        others = (draw for draw in self._known if draw is not self._timed)
        if any(self._agreeing(draw, tensor.name, values, places, allowance) == PROBES for draw in others):
            return STALE
        return (
            f"{wrong} of {PROBES} elements at random places are wrong, where {tensor.name} held {self._kind} "
            f"before the run; a kernel writes all of an output, and reads it only then"
        )

    def _agreeing(self, draw: Draw, name: str, values: Any, places: Any, allowance: float) -> int:
        """How many elements agree with the reference of a draw."""
        right = on_host(self._xp, draw.references[name].reshape(-1)[self._xp.asarray(places)])
        allowed = allowance * self.problem.tolerance * (self._scale(draw, name) + abs(right))
        return int((abs(values - right) <= allowed).sum())

    def check(self, allowance: float = 1.0) -> tuple[Error, str]:
        """Compares the outputs with the references of the current draw, and the inputs with the draw.

        An element is right when |out - ref| <= tolerance * (rms(ref) + |ref|), see `Problem.tolerance`; for an
        output of few elements, the rms is over several draws of the inputs.

        Args:
            allowance: So many times the tolerance is allowed.

        Returns:
            The worst error, and what is wrong; empty if all is correct.
        """
        worst = self._worst(self._present)
        touched = self.touched()
        if touched:
            return worst, touched
        judged = replace(worst, bound_ratio=worst.bound_ratio / allowance)
        return worst, self._stale(complaint(judged))

    def _worst(self, draw: Draw) -> Error:
        return worst_of([self._error(draw, name) for name in draw.references])

    def _error(self, draw: Draw, name: str) -> Error:
        output, values = self.arrays[name].reshape(-1), draw.references[name].reshape(-1)
        scale = self._scale(draw, name)
        away = differences(self._xp, output, values, self.problem.tolerance, scale)
        unit, count = scale or 1.0, values.size
        root = math.sqrt(away.squares / count)
        return Error(away.largest / unit, root / unit, away.ratio, mean_rel=away.total / count / unit)

    def _scale(self, draw: Draw, name: str) -> float:
        """The rms relative to which rounding errors are measured."""
        squares = [draw.rms[name] ** 2, *(more[name] ** 2 for more in self._more_rms)]
        return math.sqrt(sum(squares) / len(squares))

    def touched(self) -> str:
        """What is wrong with memory that no kernel writes: inputs, and guards. A GPU is waited for once."""
        into = "wrote into the input {}, which kernels only read"
        pairs = [(into.format(name), pair) for name, pair in self.inputs.pairs().items()]
        pairs += [
            (f"wrote outside of {name}", (guard, self._guard))
            for name, whole in self._guarded.items()
            for guard in (whole[:GUARD_BYTES], whole[-GUARD_BYTES:])
        ]
        differ = unequal(self._xp, [pair for _, pair in pairs])
        return next((wrong for (wrong, _), differs in zip(pairs, differ, strict=True) if differs), "")

    def _stale(self, wrong: str) -> str:
        """Returns the complaint, or the stale message if the outputs are those of another draw."""
        others = [draw for draw in self._known if draw is not self._present]
        return STALE if wrong and any(self._worst(draw).bound_ratio <= 1 for draw in others) else wrong

    @property
    def _known(self) -> list[Draw]:
        return [self.first, *([self.second] if "second" in self.__dict__ else [])]

    def sound(self) -> bool:
        """False if pools or references have changed: configs judged by them may be innocent."""
        guard = bool((self._guard == POISON).all())
        return (
            guard
            and self.inputs.sound()
            and all(draw.fingerprints == self._fingerprints(draw.references) for draw in self._known)
        )


def poison_cell(kind: str, dtype: str) -> Any:
    """An element of a poisoned output, as an unsigned number of its bits."""
    form = numpy_dtype(dtype)
    unsigned = numpy.dtype(f"uint{8 * form.itemsize}")
    if kind == NAN:
        return unsigned.type(numpy.iinfo(unsigned).max)
    if dtype in SIGNIFICANDS:
        largest = float(ml_dtypes.finfo(form).max) / 4  # type: ignore[no-untyped-call]
        value = largest if kind == HUGE else -largest
    else:
        limits = numpy.iinfo(form)
        value = int(limits.max if kind == HUGE else limits.min) // 2
    return numpy.array([value], form).view(unsigned)[0]


def on_host(xp: Any, array: Any) -> Any:
    """An array in the host's memory."""
    return array if xp is numpy else xp.asnumpy(array)
