"""Change points over a board's nights: they confirm afterwards what a night said, and show creep.

The nights are cut into stretches of equal level by ruptures' PELT (Truong, Oudre and Vayatis, 2020; Killick,
Fearnhead and Eckley, 2012). A change point costs so much that nights without one are seldom cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.watch.noise import Floats

#: Nights of a stretch at the least, and nights that are cut at all.
LEAST_STRETCH, LEAST_NIGHTS = 2, 6
#: Cost of a change point, in variances of a night, times the logarithm of the number of nights.
PENALTY = 6.0


@dataclass(frozen=True)
class Stretch:
    """Nights of equal level.

    Attributes:
        first: Index of its first night.
        last: Index of its last night.
        level: Mean of the logarithms.
    """

    first: int
    last: int
    level: float


def stretches(values: Sequence[float]) -> list[Stretch]:
    """Cuts one series into stretches of equal level.

    Args:
        values: A logarithm for each night, the first first.
    """
    series = np.asarray(values, dtype=np.float64)
    ends = [len(series)]
    if len(series) >= LEAST_NIGHTS:
        ends = _cuts(series)
    starts = [0, *ends[:-1]]
    return [
        Stretch(start, end - 1, float(series[start:end].mean()))
        for start, end in zip(starts, ends, strict=True)
        if end > start
    ]


def _cuts(series: Floats) -> list[int]:
    import ruptures  # type: ignore[import-untyped]

    # The deviation of a night, from neighbours: a change of level hardly counts in it.
    sigma = float(np.median(np.abs(np.diff(series)))) * 1.4826 / np.sqrt(2.0)
    if sigma == 0.0:
        return [len(series)]
    penalty = PENALTY * np.log(len(series))
    search = ruptures.Pelt(model="l2", min_size=LEAST_STRETCH, jump=1).fit(series / sigma)
    return [int(each) for each in search.predict(pen=penalty)]
