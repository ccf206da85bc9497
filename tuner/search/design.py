"""Chooses initial configs: few, and far apart."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from tuner.declare.space import Space

#: Random configs among which the design is chosen.
POOL = 600


def spread(space: Space, count: int, taken: Collection[int], rng: np.random.Generator) -> list[int]:
    """Returns positions of legal configs, each as far as possible from the earlier and the taken ones.

    Args:
        space: The legal configs.
        count: Number of configs.
        taken: Positions that were requested before.
        rng: Random number generator.
    """
    size = len(space)
    pool = rng.choice(size, min(POOL, size), replace=False)
    pool = np.array([each for each in pool if int(each) not in taken], dtype=np.intp)
    points = unit_points(space, pool)
    nearest = np.full(len(pool), np.inf)
    for each in unit_points(space, np.array(sorted(taken), dtype=np.intp)):
        nearest = np.minimum(nearest, np.abs(points - each).sum(axis=1))
    chosen: list[int] = []
    while len(chosen) < min(count, len(pool)):
        at = int(np.argmax(nearest)) if np.isfinite(nearest[0]) else int(rng.integers(len(pool)))
        chosen.append(int(pool[at]))
        nearest = np.minimum(nearest, np.abs(points - points[at]).sum(axis=1))
    return chosen


def unit_points(space: Space, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """Returns configs as points: ordered parameters between 0 and 1, the others one-hot with halves.

    The distance of two points is the sum of their absolute differences.
    """
    codes = space.codes[rows]
    parts = []
    for column, (each, positions) in enumerate(zip(space.parameters, space.positions, strict=True)):
        if len(each.values) < 2:
            continue
        if positions is None:
            parts.append(np.eye(len(each.values))[codes[:, column]] / 2)
        else:
            parts.append(positions[codes[:, column]][:, None])
    return np.concatenate(parts or [np.zeros((len(rows), 0))], axis=1)
