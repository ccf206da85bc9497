"""What shapes and devices are like, as numbers that nearness is learnt from.

All of it comes from declarations: dims, work, layouts, limits. No operation is known by name here.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem, Work

Floats = NDArray[np.float64]

#: log2 beyond which a dim is long: more of it changes little.
LONG = 9.0
#: log2 of flops per byte beyond which arithmetic is the limit on any device.
COMPUTE_BOUND = 6.0
#: log2 of flops, or bytes, below which a launch is mostly overhead.
SMALL_WORK = 28.0
#: log2 of the widest alignment, in elements, that kernels ask for.
ALIGNED = 4
#: Fields of a device by whose ratio two of a kind differ.
SIZES = ("sm_count", "shared_bytes_per_sm", "registers_per_block", "l2_bytes", "cores", "vector_bytes")


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


def apart(ours: Floats, theirs: Floats, dims: int) -> Floats:
    """How far two problems lie apart in each respect, none below 0.

    Args:
        ours: Of one problem, from `shape_features`.
        theirs: Of others, shape (problems, features).
        dims: Dims of the operation.
    """
    steps = np.abs(theirs - ours)
    numbers, letters = steps[..., : 3 * dims + 4], steps[..., 3 * dims + 4 :]
    return np.concatenate([numbers, np.minimum(letters, 1.0)], axis=-1)


def prior_weights(dims: int, letters: int) -> Floats:
    """Variance of log(time ratio) that each unit of `apart` brings, before records say better.

    A dim that doubles costs a config some 2 % of its standing, another layout some 10 %.
    """
    per_dim = [0.0004, 0.002, 0.0008]
    return np.array([*per_dim * dims, 0.0003, 0.001, 0.0005, 0.002, *[0.01] * letters])


def device_features(device: DeviceInfo) -> Floats:
    """Sizes of a device, as log2."""
    return np.array([math.log2(1 + getattr(device, name)) for name in SIZES])


#: As `prior_weights`, for a doubling of each of `SIZES`.
DEVICE_WEIGHTS = np.array([0.01, 0.01, 0.01, 0.003, 0.01, 0.05])
#: Another architecture.
ARCHITECTURE_WEIGHT = 0.04


def _amount(work: Work) -> float:
    return math.log2(1 + (work.flops or work.bytes))
