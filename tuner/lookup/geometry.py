"""What whole blocks and tiles cost: from the tiles that a kernel declares, computed for arrays of configs.

A CUDA kernel of a user's own may declare none. Then its launch rule tells: a function of one config, and slow
beside all else here. So a few configs are launched at long and short dims, which tells how many elements of
each dim a block takes. Where that follows a law of the parameters (``BM``, ``BLOCK*ITEMS``,
``BLOCK//SPAN*ROWS``, times a constant) the law stands for the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.lookup.features import Floats
from tuner.lookup.legality import Points

#: Costs that `KernelConfigs.costs` tells apart: waves and padding.
COSTS = 2
#: Configs that a law is learnt from.
PROBES = 10
#: A dim this long has whole blocks: divisible by all common tiles.
LONG_DIM = 15360
#: How exactly a law must hold, as a fraction.
EXACTNESS = 0.02


@dataclass(frozen=True)
class Blocks:
    """How a kernel lays out its blocks, for each of its configs.

    Attributes:
        tiles: Dim -> elements of it that one block takes; dims that blocks are not laid out along are missing.
        others: Blocks for each tile, along no dim (shares of a sum, say).
    """

    tiles: Mapping[str, Floats]
    others: Floats


class KernelConfigs:
    """The configs of one kernel among those that are known."""

    def __init__(self, kernel: Kernel, configs: Sequence[Config]) -> None:
        """Takes configs.

        Args:
            kernel: Their kernel.
            configs: The configs; what is no point of the kernel as it is now is never legal.
        """
        self.kernel, self.points = kernel, Points(kernel, configs)
        self._configs = [config for config, fits in zip(configs, self.points.fits, strict=True) if fits]
        self._blocks: dict[tuple[str, ...], Blocks | None] = {}

    def costs(self, problem: Problem, device: DeviceInfo) -> Floats:
        """Logarithms of time that whole blocks cost: waves and padding.

        Waves: blocks go round over the multiprocessors, and the fullest one sets the time; with fewer blocks
        than multiprocessors the idle ones cost it. Padding: blocks, or the register tiles of a CPU kernel,
        reach beyond the problem's edges.

        Returns:
            Shape (2, configs); zeros where no tiles are declared and the launch rule follows no law.
        """
        costs = np.zeros((COSTS, len(self.points.fits)))
        blocks = self._blocks_of(problem)
        if blocks is None:
            return costs
        count, padding = blocks.others.copy(), np.zeros(len(blocks.others))
        for dim, size in problem.shape:
            if dim in blocks.tiles:
                along = np.ceil(size / blocks.tiles[dim] - 1e-9)
                count *= along
                padding += np.log(along * blocks.tiles[dim] / size)
        costs[1, self.points.fits] = np.maximum(padding, 0.0)
        if self.kernel.launch is not None and device.sm_count:
            rounds = np.ceil(count / device.sm_count - 1e-9)
            costs[0, self.points.fits] = np.log(rounds * device.sm_count / count)
        return costs

    def _blocks_of(self, problem: Problem) -> Blocks | None:
        if self.kernel.tiles is not None:
            return self._declared(problem)
        if self.kernel.launch is None:
            return None
        return self._learnt(problem)

    def _declared(self, problem: Problem) -> Blocks | None:
        """The tiles that the kernel declares; None where its rule fails, or gives what is no tile."""
        assert self.kernel.tiles is not None
        count = len(self._configs)
        if not count:
            return None
        try:
            with np.errstate(all="ignore"):
                told = self.kernel.tiles(problem, SimpleNamespace(**self.points.arrays))
            tiles = {dim: np.broadcast_to(np.asarray(tile, float), (count,)) for dim, tile in told.items()}
        except Exception:  # a rule of anybody's
            return None
        if not all(np.isfinite(tile).all() and (tile > 0).all() for tile in tiles.values()):
            return None
        return Blocks(tiles, np.ones(count))

    def _learnt(self, problem: Problem) -> Blocks | None:
        key = problem.dtype, problem.layout, problem.precision, problem.epilogue
        if key not in self._blocks:
            known = next((each for each in self._blocks.values() if each is not None), None)
            if known is None or not self._holds(known, problem):
                known = self._learn(problem) if self._configs else None
            self._blocks[key] = known
        return self._blocks[key]

    def _holds(self, blocks: Blocks, problem: Problem) -> bool:
        """Whether what was learnt for another dtype or layout holds for this one, by two configs."""
        for at in {0, len(self._configs) - 1}:
            try:
                probed = _probe(self.kernel, problem, self._configs[at])
            except Exception:  # a launch rule of anybody's
                return False
            law = {"": blocks.others, **blocks.tiles}
            found = {name: value for name, value in probed.items() if math.isfinite(value)}
            stays = len(found) == 1
            if not stays and any(
                name not in law or abs(law[name][at] / value - 1) > EXACTNESS for name, value in found.items()
            ):
                return False
        return True

    def _learn(self, problem: Problem) -> Blocks | None:
        columns = {name: np.asarray(each) for name, each in self.points.arrays.items()}
        at = np.unique(np.linspace(0, len(self._configs) - 1, PROBES).astype(int))
        try:
            probed = [_probe(self.kernel, problem, self._configs[number]) for number in at]
        except Exception:  # a launch rule of anybody's, at dims that it may not be made for
            return None
        # Blocks that stay and take tile after tile are as many at any shape; their tiles are like the others'.
        laid_out = [any(map(math.isfinite, (each[dim] for dim in problem.dims))) for each in probed]
        if any(laid_out):
            at, probed = at[laid_out], [each for each, fits in zip(probed, laid_out, strict=True) if fits]
        numbers = {name: each.astype(float) for name, each in columns.items() if each.dtype.kind in "iuf"}
        laws = {name: _law(numbers, at, [each[name] for each in probed]) for name in probed[0]}
        if any(law is None for law in laws.values()):
            return None
        told = {name: law for name, law in laws.items() if law is not None}
        others = told.pop("")
        return Blocks({dim: tile for dim, tile in told.items() if np.isfinite(tile).all()}, others)


def _probe(kernel: Kernel, problem: Problem, config: Config) -> dict[str, float]:
    """Elements of each dim that a block takes, infinite where blocks are not laid out along it; "": others."""
    long = dict.fromkeys(problem.dims, LONG_DIM)
    blocks = _count(kernel, problem, config, long)
    found, others = {}, float(blocks)
    for dim in long:
        ratio = blocks / _count(kernel, problem, config, {**long, dim: 1})
        found[dim] = LONG_DIM / ratio if ratio > 1 else math.inf
        others /= ratio
    return {**found, "": others}


def _count(kernel: Kernel, problem: Problem, config: Config, dims: Mapping[str, int]) -> int:
    assert kernel.launch is not None
    asked = problem.at(dims)
    return math.prod(kernel.launch(asked, config).grid)


def _law(parameters: Mapping[str, Floats], at: Any, values: Sequence[float]) -> Floats | None:
    """The value for every config by the simplest law that holds for those probed; None where none does."""
    told = np.array(values)
    count = len(next(iter(parameters.values()))) if parameters else int(at.max()) + 1
    if np.isinf(told).all():
        return np.full(count, math.inf)
    if np.isinf(told).any():
        return None
    every = np.array([np.ones(count), *(each for each in parameters.values() if (each > 0).all())])
    for terms in _TERMS:
        factors = told / terms(every[:, at])
        spread, middle = np.ptp(factors, axis=-1), factors.mean(axis=-1)
        fitting = np.argwhere(spread <= EXACTNESS * middle)
        if len(fitting):
            place = tuple(fitting[0])
            some = every[list(place)]  # terms of these alone: all would be many
            found: Floats = terms(some)[tuple(range(len(place)))] * float(np.median(factors[place]))
            return found
    return None


def _shares(each: Floats) -> Floats:
    """How often one parameter goes into another, at least once."""
    found: Floats = np.maximum(each[:, None] // each[None, :], 1.0)
    return found


#: What a law may say, the simplest first: a parameter or a constant, a product, a quotient, that times a third.
_TERMS: tuple[Callable[[Floats], Floats], ...] = (
    lambda each: each,
    lambda each: each[:, None] * each[None, :],
    _shares,
    lambda each: _shares(each)[:, :, None] * each[None, None, :],
)
