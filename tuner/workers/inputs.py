"""The inputs of a problem on a device: drawn once, placed anew before runs, and compared after them.

Drawing normal numbers costs more than many kernels. So each input is a piece of a longer pool of numbers: a
copy on the device from another offset is another draw. The pool also keeps what the input was, so that a kernel
that writes into an input is found, and the next kernel gets the input unchanged.
"""

import functools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy

from tuner.declare.epilogue import E5M2, FLOAT8_DTYPES
from tuner.declare.problem import DTYPE_BYTES, SIGNIFICANDS, Problem, Tensor
from tuner.devices.comparing import checksums, mixed
from tuner.errors import DeclarationError

#: Elements by which a pool is longer than its input; and the step between offsets, which keeps copies aligned.
ROOM, STEP = 1 << 16, 32
#: Elements after which a fixed input repeats: a prime, so that rows of a matrix begin at different ones.
PERIOD = 65_521
#: Likewise of numbers of 8 bits that are drawn.
EIGHTS_PERIOD = 4_194_301
#: Kinds of fixed inputs: nearly normal numbers; and such of widely different exponents, among zeros of both
#: signs and some subnormal numbers, with an infinity, a NaN and an infinity at these places.
FIXED_KINDS = NORMAL, WIDE = "normal", "wide"
PLACES = 3, 20_011, 45_007
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
        step: Offsets of pieces are multiples of it.
        fixed: What `place_fixed` places; None for `fixed_cells`.
        flipped: Places of elements that are changed.
    """

    cells: Any
    numbers: Any
    flip: Any
    step: int = STEP
    fixed: Any = None
    flipped: list[int] = field(default_factory=list)

    @property
    def most(self) -> int:
        """Steps to the last piece."""
        return int((self.numbers.size - self.cells.size) // self.step)

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
        self._dtypes = {tensor.name: tensor.dtype for tensor in problem.inputs}
        self._random = random.Random(seed)
        self._pools: dict[str, _Pool] = {}
        self.arrays: dict[str, Any] = {}
        for tensor in problem.inputs:
            array = self.arrays[tensor.name] = xp.empty(tensor.shape, dtype=held(xp, tensor.dtype))
            own = own_draw(xp, problem, tensor, array.size + ROOM, seed)
            numbers = drawn(xp, generator, tensor.dtype, array.size + ROOM) if own is None else own
            flip = _flip_of(tensor.dtype, bits(array).dtype) if own is None else None
            pool = self._pools[tensor.name] = _Pool(bits(array), bits(numbers), flip)
            if numbers.ndim > 1:
                pool.step = array.size
                pool.fixed = bits(own_draw(xp, problem, tensor, array.size, 0)[0])
        self.first: Offsets = dict.fromkeys(self.arrays, 0)
        self.placed: Offsets = self.first
        self.place(self.first)
        self._fingerprint = self._sums()

    def place_fixed(self, kind: str) -> None:
        """Fills the inputs with numbers that are the same in every run, on every device: see `fixed_cells`."""
        for number, (name, pool) in enumerate(self._pools.items()):
            if pool.fixed is not None:
                self._xp.copyto(pool.cells, pool.fixed)
                continue
            table = fixed_cells(self._xp, kind, self._dtypes[name], number)
            whole = pool.cells.size // PERIOD * PERIOD
            pool.cells[:whole].reshape(-1, PERIOD)[...] = table
            pool.cells[whole:] = table[: pool.cells.size - whole]

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
        self.place({name: pool.step * self._random.randint(1, pool.most) for name, pool in self._pools.items()})

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


@functools.cache
def fixed_cells(xp: Any, kind: str, dtype: str, number: int) -> Any:
    """The bits of the first `PERIOD` elements of a fixed input; the others repeat them.

    They are made of whole numbers, and rounded once.

    Args:
        xp: The array module: numpy or cupy.
        kind: One of `FIXED_KINDS`; whole numbers have one kind, of values as `drawn` gives.
        dtype: The input's.
        number: The input's place among the inputs.
    """
    form, digits = numpy_dtype(dtype), mixed(numpy.arange(PERIOD) + (number << 32))
    if dtype not in SIGNIFICANDS:
        return xp.asarray(bits((digits % numpy.uint64({"uint8": 256}.get(dtype, 1000))).astype(form)))
    # The sum of four 16-bit numbers is nearly normal; 16 more bits fill the significand.
    fields = digits.view(numpy.uint16).reshape(-1, 4).astype(numpy.int64)
    more, low = mixed(digits), mixed(digits + numpy.uint64(1)) >> numpy.uint64(48)
    values = ((fields.sum(axis=1) - 131070) * 65536 + low.astype(numpy.int64)) * 2.0**-31
    if kind == WIDE:
        reach = {"float16": 6, E5M2: 6, "float8_e4m3fn": 4}.get(dtype, 20)
        values = numpy.ldexp(values, (more % numpy.uint64(2 * reach + 1)).astype(numpy.int64) - reach)
    cells = bits(values.astype(form))
    if kind == WIDE:
        cell, infinity = cells.dtype.type, infinity_of(dtype)
        sign, fraction = 1 << (8 * cells.itemsize - 1), (1 << (SIGNIFICANDS[dtype] - 1)) - 1
        cells[5::8] &= cell(sign)
        cells[7::4099] &= cell(sign | fraction)  # few: a CPU takes 100 times as long for them
        specials = (infinity, infinity + 1 + fraction // 2, sign | infinity)
        for turn, place in enumerate(PLACES):
            cells[place] = cell(specials[(number + turn) % 3])
    return xp.asarray(cells)


def infinity_of(dtype: str) -> int:
    """The bits of infinity as a whole number; 0 for integers."""
    return int(bits(numpy.array([math.inf], numpy_dtype(dtype)))[0]) if dtype in SIGNIFICANDS else 0


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of a name; bfloat16 comes from ml_dtypes."""
    return numpy.dtype(getattr(ml_dtypes, name, name))


def held(xp: Any, dtype: str) -> str:
    """The dtype of an array that holds such numbers: CuPy has none of 8 bits, and holds bytes."""
    return "uint8" if dtype in (*FLOAT8_DTYPES, E5M2) and xp is not numpy else dtype


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
        numbers = numpy.ascontiguousarray(numbers, dtype=tensor.dtype)
        # Several rows are whole draws of the input, which lose their sense where they are cut.
        size = math.prod(tensor.shape)
        shape = (-1, size) if numbers.shape[1:] == (size,) else count
        return xp.asarray(numbers.reshape(shape))
    except Exception as error:
        raise DeclarationError(
            f"draws= of operation {operation.name!r} gives {count} numbers for {tensor.name}, or None; for "
            f"{problem} it fails with {type(error).__name__}: {error}; correct it"
        ) from error


def drawn(xp: Any, generator: Any, dtype: str, count: int) -> Any:
    """Draws normal numbers, or integers below 1000 (below 256 for bytes), from a device's generator."""
    if dtype in (*FLOAT8_DTYPES, E5M2):  # the host converts them, in 35 ns each
        numbers = generator.standard_normal(min(count, EIGHTS_PERIOD), dtype="float32")
        cells = xp.asarray(bits((numbers if xp is numpy else xp.asnumpy(numbers)).astype(dtype)))
        return xp.tile(cells, -(-count // cells.size))[:count].view(held(xp, dtype))
    if dtype in ("float32", "float64"):
        return generator.standard_normal(count, dtype=dtype)
    if dtype in SIGNIFICANDS:  # generators draw no narrower ones
        return generator.standard_normal(count, dtype="float32").astype(dtype)
    assert dtype in DTYPE_BYTES
    return generator.integers(0, {"uint8": 256}.get(dtype, 1000), count).astype(dtype)


def _flip_of(dtype: str, cell: Any) -> Any:
    """Returns the bits that change an element into another valid one, and back, by exclusive or."""
    return cell.type(1 << (8 * cell.itemsize - 1) if dtype in SIGNIFICANDS else 1)
