"""How far problems of one operation are from each other: one measure for lookups, models and studies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

#: Doublings of a dim that another layout counts as, and another element type, precision or epilogue.
OTHER_LAYOUT, OTHER_ARITHMETIC = 1.5, 0.75


def log_dims(shape: Sequence[tuple[str, int]]) -> Floats:
    """Where a shape lies: log2 of its dims, shape (dims,)."""
    return np.log2([size for _, size in shape])


def distances(places: Floats, here: Floats, unlike: Any = 0.0) -> Floats:
    """Distances in doublings: Euclidean between logs of dims, and what other layouts and types count as.

    Args:
        places: Of the problems, shape (..., dims).
        here: From where, broadcast to `places`.
        unlike: Doublings to be added, per problem.
    """
    apart: Floats = np.sqrt(((places - here) ** 2).sum(axis=-1)) + unlike
    return apart
