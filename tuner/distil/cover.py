"""Chooses the few columns of a matrix that cover its rows best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def cover(speeds: Floats, count: int, given: Sequence[int] = ()) -> list[int]:
    """The columns whose best, row by row, is fastest on average.

    Greedy: the column that gains most comes next; a column that then gains by being exchanged for another
    is, until none does. Greedy alone reaches at least 63 % of the gain that is possible, since a column
    never gains more once others are there.

    Args:
        speeds: Shape (rows, columns): relative speed, 0 where a column may not be used for a row.
        count: Columns wanted.
        given: Columns that are there in any case; they count.

    Returns:
        Columns in the order chosen; fewer than `count` where more would gain nothing.
    """
    chosen = list(given)
    while len(chosen) < min(count, speeds.shape[1]):
        gains = np.maximum(speeds, _best(speeds, chosen)[:, None]).mean(axis=0)
        column = int(np.argmax(gains))
        if gains[column] <= _best(speeds, chosen).mean() + 1e-12:
            break
        chosen.append(column)
    return _exchanged(speeds, chosen, len(given))


def _best(speeds: Floats, columns: Sequence[int]) -> Floats:
    if not columns:
        return np.zeros(len(speeds))
    best: Floats = speeds[:, list(columns)].max(axis=1)
    return best


def _exchanged(speeds: Floats, chosen: list[int], given: int) -> list[int]:
    """Exchanges one column at a time while that gains."""
    gained = True
    while gained:
        gained = False
        for place in range(given, len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            now = _best(speeds, chosen).mean()
            with_each = np.maximum(speeds, _best(speeds, others)[:, None]).mean(axis=0)
            column = int(np.argmax(with_each))
            if with_each[column] > now + 1e-9:
                chosen[place] = column
                gained = True
    return chosen
