"""Compares arrays on a device: with a float64 reference, and byte by byte with what they were.

A check follows every first run and ends every turn of samples, so that its cost limits how many configs are
timed a second. On a GPU each comparison is one kernel (`tuner.devices.cuda.comparing`).
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from tuner.extras import load

#: Elements that NumPy compares at a time: intermediate results stay in a core's cache.
PIECE = 1 << 15
#: Bytes that NumPy compares at a time, in which it looks for any difference.
BYTES = 1 << 22


@dataclass(frozen=True)
class Differences:
    """How an output differs from its reference; NaN in the output is NaN here.

    Attributes:
        largest: The largest difference.
        ratio: The largest of difference over what is allowed.
        total: Sum of the differences.
        squares: Sum of their squares.
    """

    largest: float
    ratio: float
    total: float
    squares: float


def differences(xp: Any, output: Any, values: Any, tolerance: float, scale: float) -> Differences:
    """Compares an output with its reference; tolerance * (scale + |reference|) is allowed.

    Integers are exact: with a tolerance of 0, any difference exceeds what is allowed.

    Args:
        xp: The array module: numpy or cupy.
        output: Flat array of numbers.
        values: The reference: flat float64 array of as many.
        tolerance: See `tuner.declare.problem.Problem.tolerance`.
        scale: Is added to the size of each reference.
    """
    if xp.__name__ == "cupy":
        rows = load("tuner.devices.cuda.comparing:differences")(output, values, tolerance, scale)
    else:
        rows = numpy.array(list(_rows(output, values, tolerance, scale)))
    (largest, ratio), (total, squares) = rows[:, :2].max(axis=0).tolist(), rows[:, 2:].sum(axis=0).tolist()
    return Differences(largest, ratio, total, squares)


def _rows(output: Any, values: Any, tolerance: float, scale: float) -> Iterator[tuple[float, ...]]:
    """Largest difference and ratio, sum and sum of squares of each piece."""
    for start in range(0, values.size, PIECE):
        value = values[start : start + PIECE]
        difference = abs(output[start : start + PIECE].astype(numpy.float64, copy=False) - value)
        allowed = numpy.maximum(tolerance * (scale + abs(value)), 1e-300)
        ratio = (difference / allowed).max()
        yield difference.max(), ratio, difference.sum(), (difference * difference).sum()


def unequal(xp: Any, pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    """Tells of each pair of contiguous arrays, of the same size and dtype, whether they differ in any bit.

    Args:
        xp: The array module: numpy or cupy.
        pairs: Arrays of unsigned integers; see `tuner.workers.inputs.bits`.
    """
    if xp.__name__ == "cupy":
        return list(load("tuner.devices.cuda.comparing:unequal")(pairs))
    return [_unequal(one, other) for one, other in pairs]


def checksums(xp: Any, arrays: Sequence[Any]) -> list[int]:
    """Of each contiguous array a sum of its memory modulo 2^64, which changes if a single bit does.

    Args:
        xp: The array module: numpy or cupy.
        arrays: Arrays of unsigned integers; see `tuner.workers.inputs.bits`.
    """
    if xp.__name__ == "cupy":
        return list(load("tuner.devices.cuda.comparing:checksums")(arrays))
    return [int(array.sum(dtype="uint64")) for array in arrays]


def fingerprint(xp: Any, cells: Any, infinity: int) -> int:
    """Hashes a contiguous array: a sum of its elements by weights of their places, modulo 2^64.

    All NaNs are one. The hash is the same on every device and in every version.

    Args:
        xp: The array module: numpy or cupy.
        cells: Array of unsigned integers; see `tuner.workers.inputs.bits`.
        infinity: Bits of infinity in the array's dtype; 0 for integers.
    """
    if xp.__name__ == "cupy":
        return int(load("tuner.devices.cuda.comparing:fingerprint")(cells, infinity))
    total, magnitude = 0, (1 << (8 * cells.itemsize - 1)) - 1
    for number, start in enumerate(range(0, cells.size, PIECE)):
        piece = cells[start : start + PIECE]
        if infinity:
            piece = numpy.where(piece & magnitude > infinity, cells.dtype.type(infinity + 1), piece)
        total += int(piece.astype(numpy.uint64) @ _weights()[: piece.size]) * _weight_of(number)
    return total % 2**64


def mixed(numbers: Any) -> Any:
    """Hashes whole numbers one by one: 64 bits in, 64 bits out (SplitMix64's step; Steele and others, 2014)."""
    numbers = (numpy.asarray(numbers, numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> numpy.uint64(31))


@functools.cache
def _weights() -> Any:
    """Weights of the places in a piece."""
    return mixed(numpy.arange(PIECE)) | numpy.uint64(1)


def _weight_of(piece: int) -> int:
    return int(mixed(numpy.array([PIECE + piece]))[0]) | 1


def _unequal(one: Any, other: Any) -> bool:
    step = BYTES // one.itemsize
    pieces = (slice(start, start + step) for start in range(0, one.size, step))
    return any(bool((one[piece] != other[piece]).any()) for piece in pieces)
