"""What shapes, devices and launches are like, as numbers that nearness and ranking are learnt from.

All of it comes from declarations: dims, work, layouts, launch geometry. No operation or kernel is known by
name here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.hardware import DeviceInfo
from tuner.kernel import Kernel
from tuner.problem import Problem, Work
from tuner.space import Config

Floats = NDArray[np.float64]

#: log2 beyond which a dim is long: more of it changes little.
LONG = 9.0
#: log2 of flops per byte beyond which arithmetic is the limit on any device.
COMPUTE_BOUND = 6.0
#: log2 of flops, or bytes, below which a launch is mostly overhead.
SMALL_WORK = 28.0
#: log2 of the widest alignment, in elements, that kernels ask for.
ALIGNED = 4
#: Every dim is this long where a launch is compared with an ideal one: divisible by all common tiles.
IDEAL_DIM = 15360
#: Fields of a device by whose ratio two of a kind differ.
SIZES = ("sm_count", "shared_bytes_per_sm", "registers_per_block", "l2_bytes", "cores", "vector_bytes")

#: Columns of `device_features`.
DEVICE_FEATURES = len(SIZES)
#: Of `quantisation`.
QUANTISATION = 2


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


class Geometry:
    """What whole tiles and blocks cost, remembered: launch rules are slow beside all else here."""

    def __init__(self) -> None:
        self._costs: dict[tuple[Any, ...], tuple[float, float]] = {}
        self._ideal: dict[tuple[Any, ...], int] = {}
        self._along: dict[tuple[str, str], frozenset[str]] = {}

    def costs(
        self, kernel: Kernel, problem: Problem, device: DeviceInfo, config: Config
    ) -> tuple[float, float]:
        """Logarithms of time: (waves, padding).

        Waves: the blocks of a launch go round over the multiprocessors, and the fullest one sets the time.
        With fewer blocks than multiprocessors the idle ones cost it. Padding: blocks reach beyond the
        problem's edges. A CPU kernel has no launch; its register tile (MR, NR) gives the padding.
        """
        key = (kernel.name, kernel.source_hash, problem, device.sm_count, config)
        if key not in self._costs:
            self._costs[key] = self._compute(kernel, problem, device, config)
        return self._costs[key]

    def _compute(
        self, kernel: Kernel, problem: Problem, device: DeviceInfo, config: Config
    ) -> tuple[float, float]:
        if kernel.launch is None:
            return 0.0, _tile_padding(problem, config)
        try:
            blocks = math.prod(kernel.launch(problem, config).grid)
            padding = self._padding(kernel, problem, config, blocks)
        except Exception:  # a launch rule of anybody's, at a shape that it may not be made for
            return 0.0, 0.0
        sms = device.sm_count or blocks
        return math.log(-(-blocks // sms) * sms / blocks), max(0.0, padding)

    def _padding(self, kernel: Kernel, problem: Problem, config: Config, blocks: int) -> float:
        """Work that the launch's blocks could do over the work that there is."""
        along = self._grid_dims(kernel, problem, config)
        if not along:
            return 0.0
        dims = {dim: IDEAL_DIM if dim in along else size for dim, size in problem.shape}
        ideal = problem.operation.problem(dims, problem.dtype, problem.layout)
        key = (kernel.name, kernel.source_hash, ideal, config)
        if key not in self._ideal:
            self._ideal[key] = _blocks(kernel, ideal, config)
        more_work = _amount(ideal.work) - _amount(problem.work)
        return math.log(blocks / self._ideal[key]) + math.log(2) * more_work

    def _grid_dims(self, kernel: Kernel, problem: Problem, config: Config) -> frozenset[str]:
        """The dims along which the kernel lays out its blocks."""
        key = (kernel.name, kernel.source_hash)
        if key not in self._along:
            long = {dim: IDEAL_DIM for dim, _ in problem.shape}

            def blocks(dims: Mapping[str, int]) -> int:
                return _blocks(kernel, problem.operation.problem(dims, problem.dtype, problem.layout), config)

            once = blocks(long)
            self._along[key] = frozenset(dim for dim in long if blocks({**long, dim: 2 * IDEAL_DIM}) > once)
        return self._along[key]


def _blocks(kernel: Kernel, problem: Problem, config: Config) -> int:
    assert kernel.launch is not None
    return math.prod(kernel.launch(problem, config).grid)


def _tile_padding(problem: Problem, config: Mapping[str, Any]) -> float:
    total = 0.0
    for dim, size in problem.shape:
        tile = config.get(f"{dim.upper()}R")
        if isinstance(tile, int) and tile > 0:
            total += math.log(-(-size // tile) * tile / size)
    return total
