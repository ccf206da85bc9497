"""The inputs of a problem on a device: drawn once, placed anew before runs, and compared after them.

Drawing normal numbers costs more than many kernels. So each input is a piece of a longer pool of numbers: a
copy on the device from another offset is another draw. The pool also keeps what the input was, so that a kernel
that writes into an input is found, and the next kernel gets the input unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  arrays may be bfloat16
import numpy

from tuner.declare.problem import DTYPE_BYTES, SIGNIFICANDS, Problem, Tensor
from tuner.devices.comparing import checksums, unequal
from tuner.errors import DeclarationError

#: Elements by which a pool is longer than its input; and the step between offsets, which keeps copies aligned.
ROOM, STEP = 1 << 16, 32
#: Name of an input -> its offset in its pool.
Offsets = Mapping[str, int]


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
        self._xp = xp
        self._random = random.Random(seed)
        self._fixed = problem.operation.fixed
        self._own: set[str] = set()
        self._flipped: dict[str, int] = {}
        self._flips: dict[str, Any] = {}
        self._pools: dict[str, Any] = {}
        self._cells: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        for tensor in problem.inputs:
            array = xp.empty(tensor.shape, dtype=tensor.dtype)
            pool = own_draw(xp, problem, tensor, array.size + ROOM, seed)
            if pool is None:
                pool = drawn(generator, tensor.dtype, (array.size + ROOM,))
            else:
                self._own.add(tensor.name)
            self.arrays[tensor.name] = array
            self._cells[tensor.name] = bits(array)
            self._pools[tensor.name] = bits(pool)
            self._flips[tensor.name] = _flip_of(tensor.dtype, self._cells[tensor.name].dtype)
        self.first: Offsets = dict.fromkeys(self.arrays, 0)
        self.placed: Offsets = self.first
        self.place(self.first)
        self._fingerprint = self._sums()

    def place(self, offsets: Offsets) -> None:
        """Copies a piece of each pool into its input."""
        self._flipped.clear()
        self.placed = offsets
        for name, cells in self._cells.items():
            # A copy of memory: to begin it takes a GPU's host less than to begin a kernel that copies.
            self._xp.copyto(cells, self._pools[name][offsets[name] : offsets[name] + cells.size])

    def shuffle(self) -> None:
        """Places random pieces, none of them the first; where the inputs are fixed, the first ones again."""
        if self._fixed:
            self.place(self.first)
            return
        self.place({name: STEP * self._random.randint(1, ROOM // STEP) for name in self._cells})

    def flip(self) -> None:
        """Changes one random element of each input: a new draw that leaves caches as they are.

        A floating-point number changes its sign, a whole number its lowest bit. Earlier changes are undone.
        Numbers that the operation draws itself stay: others may be out of range for its kernels.
        """
        self.unflip()
        for name, cells in self._cells.items():
            if name in self._own:
                continue
            self._flipped[name] = self._random.randrange(cells.size)
            self._turn(name)

    def unflip(self) -> None:
        """Undoes the changes of `flip`."""
        for name in self._flipped:
            self._turn(name)
        self._flipped.clear()

    def _turn(self, name: str) -> None:
        at = self._flipped[name]
        self._cells[name][at : at + 1] ^= self._flips[name]

    def changed(self) -> str:
        """Returns the name of the first input that differs in any bit from the draw; empty if none does."""
        pairs = self.pairs()
        differ = dict(zip(pairs, unequal(self._xp, list(pairs.values())), strict=True))
        return next((name for name, found in differ.items() if found), "")

    def pairs(self) -> Mapping[str, tuple[Any, Any]]:
        """By name the memory of each input, without flips, and what was placed there."""
        self.unflip()
        return {
            name: (cells, self._pools[name][self.placed[name] : self.placed[name] + cells.size])
            for name, cells in self._cells.items()
        }

    def sound(self) -> bool:
        """False if the pools have changed: something wrote far outside of its arrays."""
        return self._sums() == self._fingerprint

    def _sums(self) -> list[int]:
        return checksums(self._xp, list(self._pools.values()))


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
    place = [each.name for each in problem.inputs].index(tensor.name)
    try:
        found = operation.draws(problem, tensor, numpy.random.default_rng([seed, place]), count)
        pool = None if found is None else numpy.ascontiguousarray(found, dtype=tensor.dtype).reshape(count)
    except Exception as error:
        raise DeclarationError(
            f"draws= of operation {operation.name!r} gives {count} numbers for {tensor.name}, or None; for "
            f"{problem} it fails with {type(error).__name__}: {error}; correct it"
        ) from error
    return None if pool is None else xp.asarray(pool)


def drawn(generator: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Draws normal numbers, or integers below 1000 (below 256 for bytes), from a device's generator."""
    if dtype in ("float32", "float64"):
        return generator.standard_normal(shape, dtype=dtype)
    if dtype in SIGNIFICANDS:  # generators draw no narrower ones
        return generator.standard_normal(shape, dtype="float32").astype(dtype)
    assert dtype in DTYPE_BYTES
    return generator.integers(0, {"uint8": 256}.get(dtype, 1000), shape).astype(dtype)


def _flip_of(dtype: str, cell: Any) -> Any:
    """Returns the bits that change an element into another valid one, and back, by exclusive or."""
    return cell.type(1 << (8 * cell.itemsize - 1) if dtype in SIGNIFICANDS else 1)
