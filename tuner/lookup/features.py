"""What shapes are like, as numbers, from their declarations; no operation is known by name here."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.declare.problem import Problem, Work

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

#: log2 beyond which a dim is long: more of it changes little.
LONG = 9.0
#: log2 of flops per byte beyond which arithmetic is the limit on any device.
COMPUTE_BOUND = 6.0
#: log2 of flops, or bytes, below which a launch is mostly overhead.
SMALL_WORK = 28.0
#: log2 of the widest alignment, in elements, that kernels ask for.
ALIGNED = 4


def shape_features(problem: Problem) -> Floats:
    """Where a problem lies among others of its operation, dtype and any layout.

    Returns:
        Per dim: log2, the same up to `LONG`, alignment. Then work, work up to `SMALL_WORK`, flops per byte,
        the same up to `COMPUTE_BOUND`. Then the layout's letters as numbers.
    """
    found: list[float] = []
    for _, size in problem.shape:
        length = math.log2(size)
        alignment = min((size & -size).bit_length() - 1, ALIGNED)
        found += [length, min(length, LONG), float(alignment)]
    work = _amount(problem.work)
    intensity = math.log2(1 + problem.work.flops / max(problem.work.bytes, 1.0))
    found += [work, min(work, SMALL_WORK), intensity, min(intensity, COMPUTE_BOUND)]
    return np.array([*found, *(float(ord(letter)) for letter in problem.layout)])


def _amount(work: Work) -> float:
    return math.log2(1 + (work.flops or work.bytes))
