"""Features in which configs may be similar, as tables of distances between levels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.declare.space import Space, Value

Floats = NDArray[np.float64]

#: Twos that divide a value, counted up to this; a warp is 2**5.
MOST_TWOS = 6
#: Levels into which the range of a product's log is divided.
PAIR_LEVELS = 24


class Features:
    """Features of a space's configs.

    Each parameter is a feature: the distance of two values is between 0 and 1 by their order, or 0 or 1 if they
    have none. A parameter of whole numbers that are not all powers of two has a second feature, how often 2
    divides the value: for hardware it matters whether 48, 56 or 64 threads are a whole number of warps. Each
    pair of ordered parameters has a feature for the product of their values, because threads, tiles and bytes
    are products.

    Attributes:
        tables: For each feature, the distances between its levels.
        is_pair: True for products.
    """

    def __init__(self, space: Space) -> None:
        self._lookups: list[tuple[tuple[int, ...], NDArray[np.intp]]] = []
        self.tables: list[Floats] = []
        self.is_pair: list[bool] = []
        for column, (each, positions) in enumerate(zip(space.parameters, space.positions, strict=True)):
            size = len(each.values)
            if size < 2:
                continue
            own = np.arange(size)
            if positions is None:
                self._add((column,), own, 1.0 - np.eye(size))
                continue
            self._add((column,), own, np.abs(positions[:, None] - positions[None]))
            if each.scale == "linear" and size > 3 and all(isinstance(value, int) for value in each.values):
                twos = np.array([_twos(value) for value in each.values], dtype=float)
                if np.ptp(twos) > 0:
                    twos /= np.ptp(twos)
                    self._add((column,), own, np.abs(twos[:, None] - twos[None]))
        logs = _logs(space)
        for at, (first, one) in enumerate(logs):
            for second, other in logs[:at]:
                self._add_pair((first, second), one[:, None] + other[None])

    def _add_pair(self, columns: tuple[int, int], logs: Floats) -> None:
        scaled = (logs - logs.min()) / np.ptp(logs)
        levels, lookup = np.unique(np.round(scaled * PAIR_LEVELS) / PAIR_LEVELS, return_inverse=True)
        table = np.abs(levels[:, None] - levels[None])
        self._add(columns, lookup.reshape(logs.shape), table, is_pair=True)

    def _add(
        self, columns: tuple[int, ...], lookup: NDArray[np.intp], table: Floats, is_pair: bool = False
    ) -> None:
        self._lookups.append((columns, lookup))
        self.tables.append(table)
        self.is_pair.append(is_pair)

    def levels(self, codes: NDArray[Any]) -> NDArray[np.intp]:
        """Level of each config in each feature: shape (configs, features)."""
        found = [lookup[tuple(codes[:, column] for column in columns)] for columns, lookup in self._lookups]
        return np.stack(found, axis=1) if found else np.zeros((len(codes), 0), np.intp)


def _logs(space: Space) -> list[tuple[int, Floats]]:
    """(column, log2 of the values) of the ordered parameters with more than two values, all positive."""
    found = []
    for column, each in enumerate(space.parameters):
        if each.scale == "categorical" or len(each.values) < 3:
            continue
        values = np.array(each.values, dtype=float)
        if values.min() > 0:
            found.append((column, np.log2(values)))
    return found


def _twos(value: Value) -> int:
    number = int(value)
    return min(MOST_TWOS, (number & -number).bit_length() - 1) if number else MOST_TWOS
