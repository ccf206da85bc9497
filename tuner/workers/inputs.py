"""The inputs of a problem on a device: drawn once, placed anew before runs, and compared after them.

Drawing normal numbers costs more than many kernels. So each input is a piece of a longer pool of numbers: a
copy on the device from another offset is another draw. The pool also keeps what the input was, so that a kernel
that writes into an input is found, and the next kernel gets the input unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  arrays may be bfloat16
import numpy

from tuner.declare.problem import DTYPE_BYTES, SIGNIFICANDS, Problem, Tensor
from tuner.devices.comparing import checksums
from tuner.errors import DeclarationError

#: Elements by which a pool is longer than its input; and the step between offsets, which keeps copies aligned.
ROOM, STEP = 1 << 16, 32
#: Name of an input -> its offset in its pool.
Offsets = Mapping[str, int]


@dataclass
class _Pool:
    """An input's memory, and the longer pool of numbers that it is a piece of; both as unsigned numbers.

    Attributes:
        cells: The input's elements.
        numbers: The pool.
        flip: Bits that change an element into another valid one, and back, by exclusive or; None for numbers
            that the operation draws itself: others may be out of range for its kernels.
        flipped: Places of elements that are changed.
    """

    cells: Any
    numbers: Any
    flip: Any
    flipped: list[int] = field(default_factory=list)

    def turn(self) -> None:
        """Changes the elements that are flipped."""
        for place in self.flipped:
            self.cells[place : place + 1] ^= self.flip


class Inputs:
    """The arrays of a problem's inputs, and the pools that they come from.

    Attributes:
        arrays: Name -> array as stored; its memory stays the same for all draws.
        first: Offsets of the pieces that were placed first.
        placed: Offsets of the pieces that were placed last.
    """

    def __init__(self, xp: Any, problem: Problem, generator: Any, seed: int) -> None:
        """Draws the pools, and places the first piece of each.

        Args:
            xp: The array module: numpy or cupy.
            problem: Whose inputs.
            generator: The device's random generator, for the numbers.
            seed: Seed of the offsets.

        Raises:
            DeclarationError: The operation draws too few numbers, or numbers of no use.
        """
        self._xp, self._fixed = xp, problem.operation.fixed
        self._random = random.Random(seed)
        self._pools: dict[str, _Pool] = {}
        self.arrays: dict[str, Any] = {}
        for tensor in problem.inputs:
            array = self.arrays[tensor.name] = xp.empty(tensor.shape, dtype=tensor.dtype)
            own = own_draw(xp, problem, tensor, array.size + ROOM, seed)
            numbers = drawn(generator, tensor.dtype, array.size + ROOM) if own is None else own
            flip = _flip_of(tensor.dtype, bits(array).dtype) if own is None else None
            self._pools[tensor.name] = _Pool(bits(array), bits(numbers), flip)
        self.first: Offsets = dict.fromkeys(self.arrays, 0)
        self.placed: Offsets = self.first
        self.place(self.first)
        self._fingerprint = self._sums()

    def place(self, offsets: Offsets) -> None:
        """Copies a piece of each pool into its input."""
        self.placed = offsets
        for cells, piece in self.pairs().values():
            # A copy of memory: to begin it takes a GPU's host less than to begin a kernel that copies.
            self._xp.copyto(cells, piece)

    def shuffle(self) -> None:
        """Places random pieces, none of them the first; where the inputs are fixed, the first ones again."""
        if self._fixed:
            self.place(self.first)
            return
        self.place({name: STEP * self._random.randint(1, ROOM // STEP) for name in self._pools})

    def flip(self) -> None:
        """Changes one random element of each input: a new draw that leaves caches as they are.

        A floating-point number changes its sign, a whole number its lowest bit. Earlier changes are undone.
        """
        self.unflip()
        for pool in self._pools.values():
            if pool.flip is not None:
                pool.flipped.append(self._random.randrange(pool.cells.size))
                pool.turn()

    def unflip(self) -> None:
        """Undoes the changes of `flip`."""
        for pool in self._pools.values():
            pool.turn()
            pool.flipped.clear()

    def pairs(self) -> Mapping[str, tuple[Any, Any]]:
        """By name the memory of each input, without flips, and what was placed there."""
        self.unflip()
        return {
            name: (pool.cells, pool.numbers[self.placed[name] : self.placed[name] + pool.cells.size])
            for name, pool in self._pools.items()
        }

    def sound(self) -> bool:
        """False if the pools have changed: something wrote far outside of its arrays."""
        return self._sums() == self._fingerprint

    def _sums(self) -> list[int]:
        return checksums(self._xp, [pool.numbers for pool in self._pools.values()])


def bits(array: Any) -> Any:
    """Returns an array's memory as a flat array of unsigned numbers, each as long as an element."""
    return array.reshape(-1).view(f"uint{8 * array.itemsize}")


def own_draw(xp: Any, problem: Problem, tensor: Tensor, count: int, seed: int) -> Any:
    """Draws an input as its operation says; None where that says nothing.

    Args:
        xp: The array module.
        problem: The problem.
        tensor: The input.
        count: How many numbers.
        seed: Seed; each input has a generator of its own.

    Raises:
        DeclarationError: The operation's rule fails, or gives another number of numbers.
    """
    operation = problem.operation
    if operation.draws is None:
        return None
    place = [own.name for own in problem.inputs].index(tensor.name)
    try:
        numbers = operation.draws(problem, tensor, numpy.random.default_rng([seed, place]), count)
        if numbers is None:
            return None
        return xp.asarray(numpy.ascontiguousarray(numbers, dtype=tensor.dtype).reshape(count))
    except Exception as error:
        raise DeclarationError(
            f"draws= of operation {operation.name!r} gives {count} numbers for {tensor.name}, or None; for "
            f"{problem} it fails with {type(error).__name__}: {error}; correct it"
        ) from error


def drawn(generator: Any, dtype: str, count: int) -> Any:
    """Draws normal numbers, or integers below 1000 (below 256 for bytes), from a device's generator."""
    if dtype in ("float32", "float64"):
        return generator.standard_normal(count, dtype=dtype)
    if dtype in SIGNIFICANDS:  # generators draw no narrower ones
        return generator.standard_normal(count, dtype="float32").astype(dtype)
    assert dtype in DTYPE_BYTES
    return generator.integers(0, {"uint8": 256}.get(dtype, 1000), count).astype(dtype)


def _flip_of(dtype: str, cell: Any) -> Any:
    """Returns the bits that change an element into another valid one, and back, by exclusive or."""
    return cell.type(1 << (8 * cell.itemsize - 1) if dtype in SIGNIFICANDS else 1)
